"""One HTTP request to a provider, and the one place where its failures get their meaning.

`fate` in the errors raised here rests on evidence: httpcore reports when the first byte of the request is
about to be written, so a deadline that passes while still connecting is known to be NOT_SENT. Where there
is no such evidence, the answer is AMBIGUOUS.
"""

import asyncio
import json as jsonlib
import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport
from httpx_sse import EventSource, ServerSentEvent

from providers.bounded import Bounded
from providers.errors import Fate, ProviderError, Remedy
from providers.text import safe_url, tidy

ACCEPT = "application/json, text/event-stream"  # of a request whose answer may be a stream
MAX_BYTES = 8 * 1024**2
MAX_REFUSAL = 1024**2  # bytes of an answer that is no success: nobody has that much to say about a refusal
# Of JSON: what is longer is not read, and what is longer than the other is read on a thread, so that a loop goes on.
MAX_JSON, JSON_ASIDE = 32 * 1024**2, 128 * 1024
# Shorter than the idle timeout of any common front end (nginx 75 s, ALB 60 s, node 5 s): a connection that the
# server is about to close is rarely picked for a create, whose outcome would then be ambiguous.
KEEPALIVE_SECONDS = 4.0
CONNECT_SECONDS = 10.0
# Of a short deadline: httpcore closes what its own timeout ends, but leaves a cancelled TLS handshake to the collector.
CONNECT_SHARE = 0.9
MAX_CONNECTIONS = 256
# The pool looks at every kept connection on every request, so keeping many costs more than opening a few.
KEPT_CONNECTIONS = 16
# A sync call may be silent for minutes; without probes a NAT on the way forgets it, and the paid answer with it.
_KEEP_IDLE_CONNECTIONS = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 6))
        if hasattr(socket, name)
    ),
]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a multipart form: a file when it has a file name, else a plain field."""

    name: str
    content: bytes = field(repr=False)
    filename: str | None = None
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response, read whole. `headers` are case-insensitive; `body` may be signed or secret, so it is not
    in the repr.
    """

    status: int
    headers: httpx.Headers = field(repr=False)
    body: bytes = field(repr=False)
    _read: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)

    def json(self) -> Any:
        """The body as JSON that Postgres can hold, or None when it is not (or is the word null). Read once; not to be
        changed.

        NaN, nesting beyond 64 levels and more than 32 MiB count as "is not"; NUL and lone surrogates in strings become
        U+FFFD.
        """
        if not self._read:
            self._read.append(_parsed(self.body))
        return self._read[0]


def make_client(*, transport: httpx.AsyncBaseTransport | None = None) -> httpx.AsyncClient:
    """A client for API calls: no redirects, no proxies from the environment, no retries, HTTP/1.1.

    Room for about 200 polls at once. The caller closes it. Give `transport` to put another one beneath (the
    download transport, or a test's).
    """
    _quiet()
    if transport is None:
        transport = httpx.AsyncHTTPTransport(
            trust_env=False, limits=_limits(), retries=0, socket_options=_KEEP_IDLE_CONNECTIONS
        )
    return httpx.AsyncClient(
        transport=transport,
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(CONNECT_SECONDS),
        # Cookies would carry one account's session into another's request.
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
    )


class LookingClient(httpx.AsyncClient):
    """For GETs only: many at once at a fraction of the cost, without the evidence that a paid request needs.

    Its transport reports a connection lost at any time as one never made, so `request` refuses everything else.
    """


def make_looking_client() -> LookingClient:
    """A client for polls and finds, over aiohttp's connections. To be made on the event loop that uses it."""
    _quiet()

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=MAX_CONNECTIONS, keepalive_timeout=KEEPALIVE_SECONDS, ssl=verified)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False)

    verified = httpx.create_ssl_context(trust_env=False)
    return LookingClient(
        transport=AiohttpTransport(client=session, trust_env=False),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx.Timeout(CONNECT_SECONDS),
        cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
    )


async def request(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    deadline: timedelta,
    headers: Mapping[str, str],
    json: Any = None,
    form: Sequence[Part] | None = None,
    params: Mapping[str, str] | None = None,
    max_bytes: int = MAX_BYTES,
    hear: Callable[[ServerSentEvent], None] | None = None,
) -> Reply:
    """Send one request and read its whole response, whatever its status.

    Its body is `json`, or `form` as multipart/form-data (RFC 7578), or nothing; all of it is in memory, so its length
    is declared and the evidence is the same. With `hear`, the events of an event stream are given to it as they come,
    and the Reply has no body.

    `deadline` spans from waiting for a connection to the last byte. Raises ProviderError: NOT_SENT with
    `connect_failed`, `connect_timeout`, `pool_exhausted` or `request_unsendable`; AMBIGUOUS with
    `read_timeout`, `connection_lost` or `response_too_large`. Cancellation passes through untouched.
    """
    if method != "GET" and isinstance(client, LookingClient):
        raise TypeError(f"a {method} needs a client whose failures say what was sent: make_client()")
    wire = _Wire()
    prepared = _prepare(client, method, url, headers=headers, json=json, form=form, params=params, deadline=deadline)
    if method != "GET":
        # Only what may be paid for needs the evidence; a GET may be sent again whatever became of it.
        prepared.extensions["trace"] = wire.note
    try:
        async with asyncio.timeout(deadline.total_seconds()):
            reply = await _exchange(client, prepared, max_bytes, hear)
    except ProviderError:
        raise
    except Exception as error:  # noqa: BLE001 - what nobody foresaw must get its fate here, too: the call may be paid
        raise _meaning(error, wire, f"{method} {safe_url(url)}") from None
    if len(reply.body) > JSON_ASIDE and reply.body.lstrip()[:1] in (b"{", b"["):
        await asyncio.to_thread(reply.json)
    return reply


@dataclass(slots=True)
class _Wire:
    """What httpcore reported of this one request."""

    connecting: bool = False
    headers_begun: bool = False
    body_begun: bool = False

    async def note(self, event: str, _info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self.connecting = True
        elif event.endswith("send_request_headers.started"):
            self.headers_begun = True
        elif event.endswith("send_request_body.started"):
            self.body_begun = True

    @property
    def surely_unsent(self) -> bool:
        return self.connecting and not self.headers_begun


def _prepare(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    json: Any,
    form: Sequence[Part] | None,
    params: Mapping[str, str] | None,
    deadline: timedelta,
) -> httpx.Request:
    seconds = deadline.total_seconds()
    connecting = min(seconds * CONNECT_SHARE, CONNECT_SECONDS)
    timeout = httpx.Timeout(seconds, connect=connecting, pool=connecting)
    try:
        content = None if json is None else jsonlib.dumps(json, allow_nan=False, separators=(",", ":")).encode()
        sent = {"accept": "application/json", "accept-encoding": "identity", **headers}
        if content is not None:
            sent["content-type"] = "application/json"
        files = None if form is None else [(p.name, (p.filename, p.content, p.content_type)) for p in form]
        return client.build_request(
            method, url, headers=sent, content=content, files=files, params=params, timeout=timeout
        )
    except (TypeError, ValueError, RecursionError, httpx.InvalidURL) as error:
        # Only the class is named: the text of such an error quotes what could not be encoded, which may be the key.
        raise ProviderError(
            "request_unsendable",
            f"the request cannot be written down ({type(error).__name__})",
            fate=Fate.NOT_SENT,
            remedy=Remedy.OPERATOR,
        ) from None


async def _exchange(
    client: httpx.AsyncClient,
    prepared: httpx.Request,
    max_bytes: int,
    hear: Callable[[ServerSentEvent], None] | None,
) -> Reply:
    response = await client.send(prepared, stream=True, follow_redirects=False)
    assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101  # an asynchronous client's always is
    most = max_bytes if response.is_success else min(max_bytes, MAX_REFUSAL)
    response.stream = Bounded(response.stream, most, response.status_code)
    body = b""
    try:
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        if hear is not None and streamed and response.is_success:
            async for event in EventSource(response).aiter_sse():
                hear(event)
        else:
            body = await response.aread()
        return Reply(response.status_code, response.headers, body)
    finally:
        await response.aclose()


def _parsed(body: bytes) -> Any:
    try:
        return tidy(jsonlib.loads(body, parse_constant=_no_constant)) if len(body) <= MAX_JSON else None
    except (ValueError, RecursionError):
        return None


def _meaning(error: Exception, wire: _Wire, what: str) -> ProviderError:
    """The exception map: every way a request can end without a response."""
    code, words = "connection_lost", "the connection broke"
    fate, remedy = Fate.AMBIGUOUS, Remedy.RETRY
    match error:
        case httpx.PoolTimeout():
            code, words, fate = "pool_exhausted", "no connection became free in time", Fate.NOT_SENT
        case httpx.ConnectTimeout():
            code, words, fate = "connect_timeout", "no connection in time", Fate.NOT_SENT
        case httpx.ConnectError() | httpx.ProxyError():
            code, words, fate = "connect_failed", "no connection", Fate.NOT_SENT
        case httpx.UnsupportedProtocol():
            code, words, fate, remedy = (
                "request_unsendable",
                "no http address",
                Fate.NOT_SENT,
                Remedy.OPERATOR,
            )
        case httpx.LocalProtocolError() if not wire.body_begun:
            # h11 checks the request as a whole before it hands out the first byte of it.
            code, words, fate, remedy = "request_unsendable", "not valid HTTP", Fate.NOT_SENT, Remedy.OPERATOR
        case httpx.TimeoutException() | TimeoutError() if wire.surely_unsent:
            code, words, fate = "connect_timeout", "no connection in time", Fate.NOT_SENT
        case httpx.TimeoutException() | TimeoutError():
            code, words = "read_timeout", "no whole response in time"
        case _ if wire.surely_unsent:
            code, words, fate = "connect_failed", "no connection", Fate.NOT_SENT
    return ProviderError(code, f"{what}: {words} ({type(error).__name__})", fate=fate, remedy=remedy)


def _limits() -> httpx.Limits:
    return httpx.Limits(
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=KEPT_CONNECTIONS,
        keepalive_expiry=KEEPALIVE_SECONDS,
    )


def _quiet() -> None:
    # httpx logs every URL at INFO, and the URL of a result may be signed.
    for name in ("httpx", "httpcore"):
        logger = logging.getLogger(name)
        logger.setLevel(max(logger.level, logging.WARNING))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
