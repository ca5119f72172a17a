"""Finds the files in a provider's output, whose shape nobody promises: a URL, a list, or anything nested."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Literal
from urllib.parse import urlsplit

from providers.contract import JSON

MediaKind = Literal["image", "video", "audio", "file"]
MAX_FILES = 256

_KINDS: dict[str, MediaKind] = {
    **dict.fromkeys(("png", "jpg", "jpeg", "webp", "gif", "avif", "bmp", "tif", "tiff", "heic"), "image"),
    **dict.fromkeys(("mp4", "webm", "mov", "mkv", "m4v", "avi"), "video"),
    **dict.fromkeys(("mp3", "wav", "flac", "ogg", "oga", "m4a", "aac", "opus"), "audio"),
}
_FETCHABLE = re.compile(r"(?i)(?:https?://[^\s/]|data:[^\s,]*,)")


def urls_in(output: JSON) -> list[str]:
    """Every http, https or data URL among the strings of `output`, each once, in order, at most 256 of them."""
    found: dict[str, None] = {}
    for text in _strings(output):
        if _FETCHABLE.match(text):
            found[text] = None
        if len(found) == MAX_FILES:
            break
    return list(found)


def kind_of(url: str) -> MediaKind:
    """What a URL seems to hold, by the type a data URL declares or the extension of a path; `file` when
    unknown.

    Only a first guess: what is downloaded is judged by its bytes.
    """
    if url[:5].lower() == "data:":
        family = url[5:64].lower().partition("/")[0]
        return next((kind for kind in _KINDS.values() if kind == family), "file")
    try:
        suffix = PurePosixPath(urlsplit(url).path).suffix
    except ValueError:
        return "file"
    return _KINDS.get(suffix.lower().lstrip("."), "file")


def _strings(value: JSON) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
