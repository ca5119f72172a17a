"""What is said while a job runs and never stored: gathered here, sent to those who follow ten times a second.

Nothing waits for it and nothing fails with it. Text that nobody follows costs one look at the database now and then.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import SQLAlchemyError

from store import follow
from store.engine import Database
from store.hygiene import masked
from store.models import Lease

log = logging.getLogger("callkeeper.announce")

EVERY = 0.1  # seconds
UNHEARD_PAUSE = 0.5  # seconds until it is looked again whether somebody follows
MAX_PENDING = 64 * 1024  # characters kept while the database is slow
MAX_HEARD = 8 * 1024**2  # characters kept of the whole text


class Words:
    """A text in the making. `add` may be called from any thread; `text` is all of it so far."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._heard: list[str] = []
        self._length = self._sent = 0
        self._pending = ""
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._quiet_until = 0.0

    @property
    def text(self) -> str:
        with self._lock:
            return "".join(self._heard)

    def add(self, piece: str) -> None:
        with self._lock:
            if self._length < MAX_HEARD:
                self._heard.append(piece)
            self._length += len(piece)
            self._pending = (self._pending + piece)[-MAX_PENDING:]

    def send(self, database: Database) -> None:
        """Tell those who follow what is new. What nobody hears is forgotten."""
        with self._sending:
            if not self._pending or time.monotonic() < self._quiet_until:
                return
            with self._lock:
                pending, self._pending = self._pending, ""
                start = self._length - len(pending)
            for rest in frames(masked(pending), start):
                if not database.once(follow.say, self.lease, rest):
                    self._quiet_until = time.monotonic() + UNHEARD_PAUSE
                    return


def frames(text: str, start: int) -> Iterator[str]:
    """The ends of the frames that carry `text`, whose first character is number `start` of the whole."""
    while text:
        size = len(text)
        while len((rest := _token(text[:size], start)).encode()) > follow.MAX_REST:
            size = size * follow.MAX_REST // (len(rest.encode()) + 1)
        yield rest
        text, start = text[size:], start + size


def _token(text: str, start: int) -> str:
    data = json.dumps({"from": start, "text": text}, ensure_ascii=False, separators=(",", ":"))
    return f',"kind":"token","data":{data}}}'


class Announcer:
    """One a process, with a thread from its first text on."""

    def __init__(self, database: Database) -> None:
        self._database = Database(database.engine, patience=0)
        self._open: set[Words] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @contextmanager
    def words(self, lease: Lease) -> Iterator[Words]:
        """A text to add to inside the block. What is left of it is sent at the end, before what comes after."""
        words = Words(lease)
        with self._lock:
            self._open.add(words)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="callkeeper-announcer", daemon=True)
                self._thread.start()
        try:
            yield words
        finally:
            with self._lock:
                self._open.discard(words)
            self.flush(words)

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            with self._lock:
                words = list(self._open)
            for one in words:
                self.flush(one)

    def flush(self, words: Words) -> None:
        """Send what is there now."""
        try:
            words.send(self._database)
        except SQLAlchemyError as error:
            log.info("announce.failed job_id=%s error=%s", words.lease.job_id, type(error).__name__)
