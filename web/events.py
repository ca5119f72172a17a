"""A job's events as Server-Sent Events: replayed from where the reader left off, then live, until the job has ended."""

import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from actors.mailbox import Frame
from store.errors import JobNotFound
from web.auth import user_of
from web.bodies import read_query
from web.desk import Desk
from web.jobs import find
from web.models import EventQuery
from web.streams import Place, Streams

_SEND_WITHIN = 60.0  # seconds; a reader that takes nothing for so long may come again
_NUMBER = re.compile(r"[0-9]{1,10}")


async def follow(desk: Desk, request: Request) -> Response:
    """The stream. Another user's job is 404 before it opens."""
    user = await user_of(desk, request)
    query = read_query(request, EventQuery)
    job = await find(desk, request, user)
    after = read_last_event_id(request.headers.get("last-event-id"), newest=job["event_seq"])
    frames = desk.followers.follow_async(job["id"], after=after, user_id=user.user_id, tokens=query.tokens)
    place = desk.streams.take(user.user_id, user.token_hash)
    return _Stream(_as_events(frames), desk.streams, place, heartbeat=desk.options.web_heartbeat)


def read_last_event_id(given: str | None, *, newest: int) -> int:
    """The number to go on after. What is no number of this log, or beyond its end, means everything from the start."""
    if given is None or not _NUMBER.fullmatch(given.strip()):
        return 0
    after = int(given)
    return after if after <= newest else 0


async def _as_events(frames: AsyncIterator[Frame]) -> AsyncIterator[bytes]:
    async with aclosing(frames):  # type: ignore[type-var]  # an async generator, which its type does not say
        try:
            async for frame in frames:
                yield as_event(frame)
        except JobNotFound:
            return  # removed while it was followed: there is nothing more to come


def as_event(frame: Frame) -> bytes:
    """The frame's own bytes as one event. Its id is where to resume, whether or not the frame itself is stored."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (frame.after, frame.kind.encode(), frame.bytes)


def _still_here() -> ServerSentEvent:
    return ServerSentEvent(comment="still here", sep="\n")


class _Stream(EventSourceResponse):
    """Ends in order whatever ends it: the job, the reader, a revoked token, this process's own end."""

    def __init__(self, events: AsyncIterator[bytes], streams: Streams, place: Place, *, heartbeat: float) -> None:
        super().__init__(events, ping=heartbeat, ping_message_factory=_still_here, send_timeout=_SEND_WITHIN)
        self._streams = streams
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = ended = False

        async def noted(message: Message) -> None:
            nonlocal started, ended
            started = started or message["type"] == "http.response.start"
            ended = ended or (message["type"] == "http.response.body" and not message.get("more_body", False))
            await send(message)

        try:
            with self._place.scope:
                await super().__call__(scope, receive, noted)
        except SendTimeoutError:
            ended = True  # nobody reads: there is no use in another word
        finally:
            self._streams.leave(self._place)
        if started and not ended:
            await send(_LAST)


_LAST: dict[str, Any] = {"type": "http.response.body", "body": b": come again\n\n", "more_body": False}
