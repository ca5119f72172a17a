"""Fetches result media from where a provider says it is, trusting neither the URL nor what it answers.

A host must be on the kind's list and resolve to public addresses only; the connection goes to an address
that was checked, under the name that was asked for (Host and TLS alike), so that a second DNS answer has
nothing to say. Every redirect starts over.
"""

import asyncio
import base64
import binascii
import hashlib
import re
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import BinaryIO
from urllib.parse import unquote_to_bytes

import httpx

from providers.addresses import Resolver, is_public, resolve
from providers.contract import Media
from providers.errors import DownloadError
from providers.sniff import HEAD_BYTES, FileType, sniff
from providers.text import safe_text, safe_url

MAX_REDIRECTS = 3
MAX_ADDRESSES = 4
MAX_URL = 8192
_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*|[0-9a-f:.]{2,45}")  # a name, or an address of version 6
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GONE = frozenset({403, 404, 410})
_LATER = frozenset({401, 408, 425, 429})
_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
RESOLVE_SECONDS = 10.0
# Of a file that comes in drops: this much has to come within this time, or it is better asked for again.
PART_BYTES, PART_SECONDS = 256 * 1024, 60.0


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was written. `sha256` is hex, `size` in bytes; type and extension (no dot) are judged by the
    bytes.
    """

    sha256: str
    size: int
    content_type: str
    extension: str


@dataclass(frozen=True, slots=True)
class _Rules:
    allowed_hosts: Collection[str]
    insecure_hosts: Collection[str]
    authorization: str | None
    key_header: str
    resolver: Resolver


async def fetch(
    client: httpx.AsyncClient,
    media: Media,
    destination: BinaryIO,
    *,
    allowed_hosts: Collection[str],
    max_bytes: int,
    deadline: timedelta,
    insecure_hosts: Collection[str] = frozenset(),
    authorization: str | None = None,
    key_header: str = "authorization",
    resolver: Resolver = resolve,
) -> Fetched:
    """Write the media to `destination`, from its current position on; after an error what was written is of
    no use.

    `allowed_hosts` are names, a leading dot standing for subdomains. `insecure_hosts` (host:port) may also
    be plain HTTP and private: for the sandbox. `authorization` is sent as `key_header` if the media says so,
    and only to the host of its own URL. `deadline` spans everything; finding the host, connecting, each answer and each
    part of the file have limits of their own below it. Raises DownloadError: `result_url_forbidden`,
    `result_too_large`, `result_wrong_type`, `result_refused` (not retryable); `result_gone`,
    `result_unavailable`, `result_unreachable`, `result_timeout`, `result_truncated`, `result_empty`
    (retryable). OSError of `destination` passes through.
    """
    sink = _Sink(destination, media.kind, max_bytes)
    if media.content is not None:
        sink.write(media.content)
        return sink.finish()
    if media.url[:5].lower() == "data:":
        sink.write(_inline(media.url, max_bytes))
        return sink.finish()
    rules = _Rules(allowed_hosts, insecure_hosts, authorization if media.authorised else None, key_header, resolver)
    try:
        async with asyncio.timeout(deadline.total_seconds()), _opened(client, media.url, rules) as response:
            await _pour(response, sink, max_bytes)
            return sink.finish()
    except (httpx.InvalidURL, UnicodeError):
        # httpx reads a redirect's address before we do, and some it cannot.
        raise _forbidden("a redirect to no address") from None
    except (httpx.HTTPError, httpx.StreamError) as error:
        code = "result_truncated" if sink.size else "result_unavailable"
        what = f"{safe_url(media.url)}: the transfer broke ({type(error).__name__})"
        raise DownloadError(code, what, retryable=True) from None
    except TimeoutError:
        raise DownloadError("result_timeout", f"{safe_url(media.url)}: not whole in time", retryable=True) from None


class _Sink:
    """Counts, hashes and judges what is written."""

    def __init__(self, destination: BinaryIO, kind: str, max_bytes: int) -> None:
        self._destination, self._kind, self._max_bytes = destination, kind, max_bytes
        self._hash = hashlib.sha256()
        self._head = bytearray()
        self._type: FileType | None = None
        self.size = 0

    def write(self, part: bytes) -> None:
        self.size += len(part)
        if self.size > self._max_bytes:
            raise _too_large(self._max_bytes)
        if self._type is None:
            self._head += part[:HEAD_BYTES]
            if len(self._head) >= HEAD_BYTES:
                self._judge()
        self._hash.update(part)
        self._destination.write(part)

    def finish(self) -> Fetched:
        if self.size == 0:
            raise DownloadError("result_empty", "the file is empty", retryable=True)
        kind = self._type or self._judge()
        return Fetched(self._hash.hexdigest(), self.size, kind.content_type, kind.extension)

    def _judge(self) -> FileType:
        found = sniff(bytes(self._head))
        if self._kind == "file":
            fits = found.family != "page"
        else:
            fits = self._kind == found.family or self._kind in found.also
        if not fits:
            raise DownloadError(
                "result_wrong_type", f"{self._kind} was expected, {found.content_type} came", retryable=False
            )
        self._type = found
        return found


@asynccontextmanager
async def _opened(client: httpx.AsyncClient, url: str, rules: _Rules) -> AsyncIterator[httpx.Response]:
    """The 200 response at the end of at most three redirects, each of them checked like the first URL."""
    origin = here = _checked(url, rules)
    for _ in range(MAX_REDIRECTS + 1):
        authorization = rules.authorization if _netloc(here) == _netloc(origin) else None
        response = await _send(client, here, rules, authorization)
        try:
            if response.status_code not in _REDIRECTS:
                _accept(response, here)
                yield response
                return
            here = _checked(str(here.join(response.headers.get("location", ""))), rules)
        finally:
            await response.aclose()
    raise _forbidden(f"more than {MAX_REDIRECTS} redirects")


def _checked(text: str, rules: _Rules) -> httpx.URL:
    """The URL, if it is one that we would ever ask."""
    try:
        url = httpx.URL(text if len(text) <= MAX_URL else "")
    except (httpx.InvalidURL, UnicodeError):
        raise _forbidden("not a URL") from None
    host = url.raw_host.decode("ascii").lower()
    if not _HOST.fullmatch(host) or url.userinfo or url.fragment:
        raise _forbidden(f"{safe_url(text)}: no host, or a user or fragment in it")
    if _netloc(url) in rules.insecure_hosts and url.scheme in ("http", "https"):
        return url
    if url.scheme != "https" or url.port not in (None, 443):
        raise _forbidden(f"{safe_url(text)}: not https on its own port")
    if not any(_matches(host, allowed.lower()) for allowed in rules.allowed_hosts):
        raise _forbidden(f"{safe_url(text)}: its host is not one of this provider's")
    return url


async def _send(client: httpx.AsyncClient, url: httpx.URL, rules: _Rules, authorization: str | None) -> httpx.Response:
    """The response of the first address that takes a connection; all are checked before any is tried."""
    port = url.port or (443 if url.scheme == "https" else 80)
    host = url.raw_host.decode("ascii")
    addresses = await _addresses(host, port, rules, exempt=_netloc(url) in rules.insecure_hosts)
    refused: Exception | None = None
    for address in addresses[:MAX_ADDRESSES]:
        # One connection a file: a kept one is known to the pool by its address only, and might be reused for another
        # name at that address, whose certificate was never shown.
        headers = {
            "host": url.netloc.decode("ascii"),
            "accept": "*/*",
            "accept-encoding": "identity",
            "connection": "close",
        }
        if authorization is not None:
            headers[rules.key_header] = authorization
        request = httpx.Request(
            "GET",
            url.copy_with(host=address),
            headers=headers,
            extensions={"sni_hostname": host, "timeout": _TIMEOUT.as_dict()},
        )
        try:
            return await client.send(request, stream=True, follow_redirects=False, auth=None)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            refused = error
    why = type(refused).__name__ if refused else "no address"
    raise DownloadError("result_unreachable", f"{safe_url(str(url))}: no connection ({why})", retryable=True)


async def _addresses(host: str, port: int, rules: _Rules, *, exempt: bool) -> Sequence[str]:
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            addresses = await rules.resolver(host.strip("[]"), port)
    except (OSError, UnicodeError):  # a name that is looked up for too long among them
        raise DownloadError("result_unreachable", f"{safe_text(host, 100)}: no such host", retryable=True) from None
    if not exempt and not all(map(is_public, addresses)):
        raise _forbidden(f"{safe_text(host, 100)}: it resolves to an address that is not public")
    return addresses


def _accept(response: httpx.Response, url: httpx.URL) -> None:
    status = response.status_code
    if status == 200:  # noqa: PLR2004
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            raise DownloadError("result_wrong_type", "it came compressed, unasked", retryable=False)
        return
    what = f"{safe_url(str(url))}: HTTP {status}"
    if status in _GONE:
        raise DownloadError("result_gone", what, retryable=True, gone=True)
    if status >= 500 or status in _LATER:  # noqa: PLR2004
        raise DownloadError("result_unavailable", what, retryable=True)
    raise DownloadError("result_refused", what, retryable=False)


async def _pour(response: httpx.Response, sink: _Sink, max_bytes: int) -> None:
    declared = response.headers.get("content-length", "")
    expected = int(declared) if declared.isascii() and declared.isdigit() and len(declared) < 20 else None  # noqa: PLR2004
    if expected is not None and expected > max_bytes:
        raise _too_large(max_bytes)
    loop, due = asyncio.get_running_loop(), PART_BYTES
    async with asyncio.timeout(PART_SECONDS) as slow:
        async for part in response.aiter_raw():
            sink.write(part)
            if sink.size >= due:
                due = sink.size + PART_BYTES
                slow.reschedule(loop.time() + PART_SECONDS)
    if expected is not None and sink.size != expected:
        raise DownloadError("result_truncated", f"{sink.size} of {expected} bytes came", retryable=True)


def _inline(url: str, max_bytes: int) -> bytes:
    """The bytes of a data URL (RFC 2397)."""
    meta, comma, data = url.partition(",")
    # Three bytes are at least four characters of base64, and a byte is at most three of percent encoding.
    if len(data) > 4 * max_bytes + 4:
        raise _too_large(max_bytes)
    try:
        raw = unquote_to_bytes(data)
        decoded = base64.b64decode(b"".join(raw.split()), validate=True) if meta.lower().endswith(";base64") else raw
    except (binascii.Error, ValueError):
        comma = ""
        decoded = b""
    if not comma:
        raise DownloadError("result_wrong_type", "a data URL that cannot be decoded", retryable=False)
    return decoded


def _matches(host: str, allowed: str) -> bool:
    return host.endswith(allowed) and len(host) > len(allowed) if allowed.startswith(".") else host == allowed


def _netloc(url: httpx.URL) -> str:
    port = url.port or (443 if url.scheme == "https" else 80)
    return f"{url.raw_host.decode('ascii').lower()}:{port}"


def _forbidden(why: str) -> DownloadError:
    return DownloadError("result_url_forbidden", why, retryable=False)


def _too_large(max_bytes: int) -> DownloadError:
    return DownloadError("result_too_large", f"larger than {max_bytes} bytes", retryable=False)
