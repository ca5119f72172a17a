"""The threads behind all followers of a process: one listens, one reads for everybody who may have something to read.

LISTEN comes first, then the mark that makes writers notify, then the log. After that a follower is read for when its
job is heard of, when its reader has room again, and every POLL seconds in case a notification was lost.
"""

import json
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from actors.listening import Listening
from actors.mailbox import Frame, Mailbox
from store import follow
from store.engine import Database, make_engine

log = logging.getLogger("callkeeper.follow")

POLL = 1.5  # seconds at most between two looks at a job's log
FIRST_POLL = 0.1  # what was being written when a follower came may not have seen its mark
MARK_EVERY, MARKED_FOR = 20.0, timedelta(seconds=60)
LINGER = 10.0  # seconds without a follower until threads and connections go
_READY_WITHIN = 3.0
_AGAIN_AFTER = 0.5
_BATCH = 500


class _Place:
    """A follower's mailbox, and when its job's log is to be read next."""

    def __init__(self, box: Mailbox) -> None:
        self.box = box
        self.marked = False
        self.due_at = 0.0
        self._pause = FIRST_POLL

    def looked_at(self, now: float) -> None:
        self.due_at = now + self._pause
        self._pause = min(self._pause * 2, POLL)


class Hub:
    """Runs from `start` until `end`, or until it had no follower for LINGER seconds; then `join` refuses."""

    def __init__(self, url: str) -> None:
        self._places: dict[Mailbox, _Place] = {}
        self._by_job: dict[UUID, list[_Place]] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._left_at = self._marked_at = time.monotonic()
        self._ready = threading.Event()
        self._db = Database(make_engine(url, name="callkeeper follow", pool_size=1), patience=0)
        self._listening = Listening(
            url, (follow.EVENTS, follow.EPHEMERAL), self._heard, name="callkeeper follow", connected=self._connected
        )
        self._thread = threading.Thread(target=self._run, name="callkeeper-follow-reader", daemon=True)

    def start(self) -> None:
        self._listening.start()
        self._thread.start()

    def end(self) -> None:
        """Every follower ends where it is. The threads follow within about a second."""
        with self._changed:
            self._ended = True
            boxes = list(self._places)
            self._changed.notify()
        for box in boxes:
            box.close()
        self._thread.join(timeout=5)

    def join(self, box: Mailbox) -> bool:
        with self._changed:
            if self._ended:
                return False
            place = self._places[box] = _Place(box)
            self._by_job.setdefault(box.job_id, []).append(place)
            self._changed.notify()
            return True

    def leave(self, box: Mailbox) -> None:
        with self._changed:
            place = self._places.pop(box)
            others = self._by_job[box.job_id]
            others.remove(place)
            if not others:
                del self._by_job[box.job_id]
            self._left_at = time.monotonic()

    def has_room(self, box: Mailbox) -> None:
        """Its reader has caught up a little: there may be more in the log."""
        with self._changed:
            self._due(place for place in [self._places.get(box)] if place is not None)

    def __len__(self) -> int:
        return len(self._places)

    def _due(self, places: Iterable[_Place]) -> None:
        for place in places:
            place.due_at = 0.0
        self._changed.notify()

    def _connected(self) -> None:
        """Listening anew: whatever was said before was not heard."""
        with self._changed:
            self._due(self._places.values())
        self._ready.set()

    def _heard(self, channel: str, payload: str) -> None:
        job_id, _, text = payload.partition(" ")
        with self._changed:
            places = list(self._by_job.get(UUID(job_id), ()))
            if channel == follow.EVENTS:
                self._due(places)
                return
        if places:
            self._pass_on([place for place in places if place.box.ephemeral], text)

    def _pass_on(self, places: Sequence[_Place], text: str) -> None:
        content = json.loads(text)
        frame = Frame(None, content["kind"], text.encode(), content["seq"])
        behind = [place for place in places if place.box.say(frame)]
        if behind:
            with self._changed:
                self._due(behind)

    def _run(self) -> None:
        self._ready.wait(_READY_WITHIN)
        while (due := self._next()) is not None:
            try:
                self._mark(due)
                for start in range(0, len(due), _BATCH):
                    self._read(due[start : start + _BATCH])
            except Exception as error:  # noqa: BLE001  # the database may be away; nobody else reads for them
                log.warning("follow.read_failed error=%s", type(error).__name__)
                with self._changed:
                    self._changed.wait_for(lambda: self._ended, _AGAIN_AFTER)
                    self._due(due)
        self._listening.stop()
        self._db.dispose()

    def _next(self) -> list[_Place] | None:
        """Waits for those to read for; None at the end."""
        with self._changed:
            while not self._ended:
                now = time.monotonic()
                due = [place for place in self._places.values() if place.due_at <= now]
                for place in due:
                    # Before the log is read: what is heard from here on makes it due again.
                    place.looked_at(now)
                if due:
                    return due
                if self._places:
                    wait = min(place.due_at for place in self._places.values()) - now
                else:
                    wait = self._left_at + LINGER - now
                    if wait <= 0:
                        self._ended = True
                        break
                self._changed.wait(wait)
            return None

    def _mark(self, due: Sequence[_Place]) -> None:
        now = time.monotonic()
        everybody = now - self._marked_at > MARK_EVERY
        with self._changed:
            places = list(self._places.values()) if everybody else [place for place in due if not place.marked]
        wanted: dict[UUID, bool] = {}
        for place in places:
            wanted[place.box.job_id] = wanted.get(place.box.job_id, False) or place.box.ephemeral
        if wanted:
            self._db.once(follow.mark, wanted, term=MARKED_FOR)
        for place in places:
            place.marked = True
        if everybody:
            self._marked_at = now

    def _read(self, due: Sequence[_Place]) -> None:
        asked = [(place.box, cursor) for place in due if (cursor := place.box.cursor()) is not None]
        if not asked:
            return
        pages = self._db.once(follow.read, [cursor for _, cursor in asked])
        for (box, cursor), page in zip(asked, pages, strict=True):
            box.put(page, cursor)
