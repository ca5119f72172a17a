"""A follower's mailbox: filled by the hub, emptied by its reader, bounded whatever the reader does.

A milestone is never dropped: the hub puts in only as many as there is room for and reads the rest from the log later.
What is never stored may be dropped: when there is no room, or when the log has moved past it.
"""

import builtins
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from store.errors import JobNotFound
from store.follow import Cursor, Page
from store.states import TERMINAL

MILESTONES = 32  # kept for a reader at most
EPHEMERAL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Frame:
    """One thing that happened. `bytes` is JSON in UTF-8 without line breaks, the same live and replayed.

    `seq` is its number in the job's log, None for what is not stored; `after` is where to resume, having seen it: its
    own number, or that of the last milestone before it.
    """

    seq: int | None
    kind: str
    bytes: builtins.bytes
    after: int

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """All of it: `seq`, `kind`, `attempt`, `epoch`, `data`, and `at` (ISO 8601, UTC) of a milestone."""
        content: Mapping[str, Any] = json.loads(self.bytes)
        return content

    @property
    def data(self) -> Mapping[str, Any]:
        data: Mapping[str, Any] = self.content["data"]
        return data

    @property
    def is_last(self) -> bool:
        """Whether the job ended with this: nothing follows."""
        return self.seq is not None and self.kind in TERMINAL


class Mailbox:
    """`ring` is called, from any thread, when there is something to take. Thread-safe."""

    def __init__(
        self, job_id: UUID, after: int, *, user_id: str | None, ephemeral: bool, ring: Callable[[], None]
    ) -> None:
        self.job_id = job_id
        self.ephemeral = ephemeral
        self.over = False  # nothing will be put in any more
        self.error: Exception | None = None
        self._user_id = user_id
        self._after = after  # the last milestone put in
        self._known = False  # whether the log was seen at all
        self._more = False  # whether the log holds more than there was room for
        self._frames: deque[Frame] = deque()
        self._early: deque[Frame] = deque()  # said after a milestone that is not here yet
        self._milestones = self._spoken = 0
        self._ring = ring
        self._lock = threading.Lock()

    def cursor(self) -> Cursor | None:
        """Where to read on, None when there is no room."""
        with self._lock:
            room = MILESTONES - self._milestones
            if room <= 0:
                self._more = True  # it was to be read, so there may be more
                return None
            return None if self.over else Cursor(self.job_id, self._after, room)

    def put(self, page: Page | None, asked: Cursor) -> None:
        """What was read after the cursor `asked`; None: there is no such job."""
        with self._lock:
            if page is None or (self._user_id is not None and page.user_id != self._user_id):
                self._end(JobNotFound(self.job_id))
            else:
                self._put(page, asked)
            news = bool(self._frames) or self.over
        if news:
            self._wake()

    def _put(self, page: Page, asked: Cursor) -> None:
        if not self._known:
            self._known = True
            # No event has a number beyond the end: whoever names one has seen all there is.
            self._after = min(self._after, page.event_seq)
        for seq, kind, text in page.frames:
            self._frames.append(Frame(seq, kind, text.encode(), seq))
            self._milestones += 1
            self._after = seq
        self._more = len(page.frames) == asked.room
        self._let_in_early()
        if page.status in TERMINAL and self._after >= page.event_seq:
            self._end(None)

    def say(self, frame: Frame) -> bool:
        """Something that is not stored. Whether the log has to be read first."""
        with self._lock:
            if self.over or not self._known or frame.after < self._after:
                return False
            if self._spoken + len(frame.bytes) > EPHEMERAL_BYTES:
                return False
            self._spoken += len(frame.bytes)
            if frame.after > self._after:
                self._early.append(frame)
                return True
            self._frames.append(frame)
        self._wake()
        return False

    def take(self) -> tuple[Frame | None, bool]:
        """The next frame, if there is one; and whether the hub should read on, now that there is room."""
        with self._lock:
            if not self._frames:
                return None, False
            frame = self._frames.popleft()
            if frame.seq is None:
                self._spoken -= len(frame.bytes)
                return frame, False
            self._milestones -= 1
            return frame, self._more and self._milestones <= MILESTONES // 2

    def close(self) -> None:
        with self._lock:
            self._end(None)
        self._wake()

    def _let_in_early(self) -> None:
        while self._early and self._early[0].after <= self._after:
            frame = self._early.popleft()
            if frame.after == self._after:
                self._frames.append(frame)
            else:
                self._spoken -= len(frame.bytes)

    def _end(self, error: Exception | None) -> None:
        self.over = True
        self.error = error

    def _wake(self) -> None:
        # The reader's event loop may be closed already; then nobody waits.
        with suppress(RuntimeError):
            self._ring()
