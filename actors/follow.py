"""Following a job: its milestones as they happen, then the end; from any process, at any time, with bounded memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine

from actors.hub import Hub
from actors.mailbox import Frame, Mailbox

__all__ = ["Followers", "Frame", "followers"]

_HIGHEST = 2**31 - 1  # of a seq


class Followers:
    """All followers of one database in this process, over one LISTEN connection and one for reading.

    `url` is the database's. Threads and connections come with the first follower, and go ten seconds after the last, or
    with `close`.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._hub: Hub | None = None

    def follow(
        self, job_id: UUID, *, after: int = 0, user_id: str | None = None, tokens: bool = False
    ) -> Iterator[Frame]:
        """The job's milestones with seq > `after`; with `tokens` also what is never stored: tokens and progress.

        Ends by itself after the terminal one, whether begun before, during or after the work. To resume, give the
        `after` of the last frame seen: no milestone is missed or repeated. With `user_id`, only that user's jobs are
        found. Raises JobNotFound at the first step.
        """
        bell = threading.Event()
        with self._mailbox(job_id, after, user_id, tokens=tokens, ring=bell.set) as (hub, box):
            over = False
            while not over:
                bell.clear()
                over = box.over
                yield from _taken(hub, box)
                if not over:
                    bell.wait()
        if box.error is not None:
            raise box.error

    async def follow_async(
        self, job_id: UUID, *, after: int = 0, user_id: str | None = None, tokens: bool = False
    ) -> AsyncIterator[Frame]:
        """`follow` for an event loop, which nothing blocks: the reading is done on the hub's thread."""
        loop, bell = asyncio.get_running_loop(), asyncio.Event()

        def ring() -> None:
            loop.call_soon_threadsafe(bell.set)

        with self._mailbox(job_id, after, user_id, tokens=tokens, ring=ring) as (hub, box):
            over = False
            while not over:
                bell.clear()
                over = box.over
                for frame in _taken(hub, box):
                    yield frame
                if not over:
                    await bell.wait()
        if box.error is not None:
            raise box.error

    def close(self) -> None:
        """Every follower ends where it is; threads and connections go within about a second."""
        with self._lock:
            hub, self._hub = self._hub, None
        if hub is not None:
            hub.end()

    def __len__(self) -> int:
        """How many follow now."""
        hub = self._hub
        return 0 if hub is None else len(hub)

    @contextmanager
    def _mailbox(
        self, job_id: UUID, after: int, user_id: str | None, *, tokens: bool, ring: Callable[[], None]
    ) -> Iterator[tuple[Hub, Mailbox]]:
        box = Mailbox(job_id, max(0, min(after, _HIGHEST)), user_id=user_id, ephemeral=tokens, ring=ring)
        hub = self._join(box)
        try:
            yield hub, box
        finally:
            hub.leave(box)

    def _join(self, box: Mailbox) -> Hub:
        with self._lock:
            if self._hub is None or not self._hub.join(box):
                self._hub = Hub(self._url)
                self._hub.join(box)
                self._hub.start()
            return self._hub


def _taken(hub: Hub, box: Mailbox) -> Iterator[Frame]:
    """What is in the mailbox, until it is empty."""
    while True:
        frame, read_on = box.take()
        if read_on:
            hub.has_room(box)
        if frame is None:
            return
        yield frame


_all: dict[str, Followers] = {}
_making = threading.Lock()


def followers(engine: sa.Engine | AsyncEngine | str) -> Followers:
    """This process's followers of the engine's database, or of that with this URL."""
    url = (
        engine
        if isinstance(engine, str)
        else engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    )
    with _making:
        return _all.setdefault(url, Followers(url))
