"""Responses that misbehave: none at all, half of one, or a canned one. Each is an ASGI app, as a route may
return.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from providers.sandbox.script import Actions, Reply, Span

TRANSPORT = "sandbox.transport"
Answer: TypeAlias = ASGIApp


class OpenProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with the connection within reach of the app: only so can a fake close it without
    a word.
    """

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["state"][TRANSPORT] = self.transport


class Silence:
    """No response: `drop` closes the connection at once, `hang` waits until the caller does."""

    def __init__(self, how: str) -> None:
        self._drop = how == "drop"

    async def __call__(self, scope: Scope, receive: Receive, _send: Send) -> None:
        if self._drop:
            scope["state"][TRANSPORT].close()
        await _gone(receive)


class Partial:
    """Declares the whole length, sends the first `count` bytes, and closes the connection."""

    def __init__(self, whole: Response, count: int) -> None:
        self._whole, self._count = whole, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self._whole.status_code,
                "headers": self._whole.raw_headers,
            }
        )
        body = bytes(self._whole.body)[: self._count]
        await send({"type": "http.response.body", "body": body, "more_body": True})
        scope["state"][TRANSPORT].close()
        await _gone(receive)


class Streamed:
    """A stream of events, each a name (or none) and its data. Where the script cuts it, its body has no end."""

    def __init__(
        self, events: Sequence[tuple[str | None, str]], actions: Actions, seconds: Callable[[Span], float]
    ) -> None:
        self._events, self._actions, self._seconds = events, actions, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        cut = self._actions.cut_stream
        last = (4 if self._actions.events is None else self._actions.events) if cut else len(self._events)
        for name, data in self._events[:last]:
            await asyncio.sleep(self._seconds(self._actions.stream_pause))
            frame = f"event: {name}\ndata: {data}\n\n" if name else f"data: {data}\n\n"
            await send({"type": "http.response.body", "body": frame.encode(), "more_body": True})
        if not cut:
            await send({"type": "http.response.body", "body": b""})
            return
        scope["state"][TRANSPORT].close()
        await _gone(receive)


def canned(reply: Reply) -> Response:
    """The scripted response."""
    body: Any = reply.body
    if body is None:
        return Response(status_code=reply.status, headers=reply.headers)
    if isinstance(body, str):
        kind = HTMLResponse if body.lstrip().startswith("<") else PlainTextResponse
        return kind(body, status_code=reply.status, headers=reply.headers)
    return JSONResponse(body, status_code=reply.status, headers=reply.headers)


def after_accept(fault: str | Reply, true_answer: Response) -> Answer:
    """What the caller gets for a request that was accepted, in place of the true answer."""
    if isinstance(fault, Reply):
        return canned(fault)
    if fault == "cut":
        return Partial(true_answer, len(true_answer.body) // 2)
    return Silence(fault)


def handed_out(whole: Response, actions: Actions) -> Answer:
    """A file as the script wants it to come: whole, cut, of another type, without its length, or not at all."""
    count = int(len(whole.body) * actions.fraction)
    match actions.download:
        case "gone":
            return Response("not found", status_code=404)
        case "wrong_type":
            return Response("<html><body>Just a moment</body></html>", media_type=whole.media_type)
        case "truncated":
            return Partial(whole, count)
        case "short":
            return Response(bytes(whole.body)[:count], media_type=whole.media_type)
        case "unsized":
            return StreamingResponse(iter([bytes(whole.body)]), media_type=whole.media_type)
    return whole


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


__all__ = ["Answer", "OpenProtocol", "Partial", "Silence", "Streamed", "after_accept", "canned", "handed_out"]
