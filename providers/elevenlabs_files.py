"""Files that travel inside a request: data URLs (RFC 2397), and the parts of a form they become.

ElevenLabs takes voice samples and audio to align as bytes only (its Python client: multipart `files` and `file`), and
a call is one request, so nothing is fetched from elsewhere first: what an app wants to send is in what it submits.
"""

import base64
import binascii
import re
from typing import Annotated

from pydantic import AfterValidator, Field

from providers.http import Part
from providers.sniff import HEAD_BYTES, sniff

MAX_CHARS = 256 * 1024  # of one data URL; a whole request that is stored may not be longer either
INLINE = (
    "give the file itself as data:<type>;base64,<bytes>; the whole request may have 256 KiB, which is about 190 KB"
    " of audio (48 seconds of MP3 at 32 kbit/s)"
)

_DATA_URL = re.compile(
    r"data:((?:audio|video)/[a-z0-9][a-z0-9.+-]{0,60})(?:;[a-z]+=[a-z0-9_.-]+)*;base64,", re.IGNORECASE
)


def _checked(url: str) -> str:
    if url[:8].lower().startswith(("http://", "https://")):
        raise ValueError(f"ElevenLabs fetches no address here: {INLINE}")
    _read(url)
    return url


# A data URL of audio or video. ValueError, as a field's error, says how a file is given.
Inline = Annotated[str, Field(min_length=1, max_length=MAX_CHARS), AfterValidator(_checked)]


def part(field: str, url: str, number: int = 0) -> Part:
    """The file of a checked data URL as a part of a form, with a name of our own making."""
    content_type, content = _read(url)
    return Part(field, content, f"file-{number}.{sniff(content[:HEAD_BYTES]).extension}", content_type)


def plain(field: str, value: object) -> Part:
    """A plain field: true and false as JSON writes them, everything else as text."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return Part(field, text.encode())


def _read(url: str) -> tuple[str, bytes]:
    head = _DATA_URL.match(url)
    if head is None:
        raise ValueError(f"not a data URL of audio or video: {INLINE}")
    try:
        content = base64.b64decode(url[head.end() :], validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a data URL whose base64 cannot be decoded") from None
    if not content:
        raise ValueError("a data URL without a file in it")
    return head.group(1).lower(), content
