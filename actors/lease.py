"""Keeping leases: one heartbeat a process for all it holds, and the trust that ends before a lease does.

Trust is measured from *before* a claim or renewal was sent, on this process's monotonic clock. Whoever cannot renew
stops on its own before anybody else may start.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from store import jobs
from store.engine import Database
from store.errors import LeaseLost
from store.models import Lease

T = TypeVar("T")

log = logging.getLogger("callkeeper.lease")


class Held:
    """One lease as its holder sees it. Thread-safe; `check` before every act that the outside world can see."""

    def __init__(self, lease: Lease, trusted_until: float) -> None:
        self.lease = lease
        self.trusted_until = trusted_until
        self.stopping = threading.Event()
        self.lost = threading.Event()
        self._wake: list[Callable[[], object]] = []

    def seconds_left(self) -> float:
        return -1.0 if self.lost.is_set() else self.trusted_until - time.monotonic()

    def check(self, verb: str = "act") -> None:
        """Raises LeaseLost when the lease is gone or can no longer be trusted."""
        if self.seconds_left() <= 0:
            raise LeaseLost(self.lease.job_id, verb, epoch=self.lease.epoch, owner=self.lease.owner)

    def tell(self, event: threading.Event) -> None:
        event.set()
        for wake in list(self._wake):
            wake()

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` (from any thread) whenever something about this lease changed."""
        self._wake.append(wake)
        try:
            yield
        finally:
            self._wake.remove(wake)


class Keeper:
    """Renews every lease of this process with one statement a beat, on a connection of its own."""

    def __init__(self, database: Database, *, term: float, beat: float, margin: float) -> None:
        self._database = database
        self._term = term
        self._beat = beat
        self._margin = margin
        self._held: dict[UUID, Held] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callkeeper-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=self._beat)

    @contextmanager
    def holding(self, lease: Lease, *, claimed_at: float) -> Iterator[Held]:
        """Keep `lease` alive inside the block. `claimed_at`: time.monotonic() from before the claim was sent."""
        held = Held(lease, claimed_at + self._term - self._margin)
        with self._lock:
            self._held[lease.job_id] = held
        try:
            yield held
        finally:
            with self._lock:
                if self._held.get(lease.job_id) is held:
                    del self._held[lease.job_id]

    def all(self) -> list[Held]:
        with self._lock:
            return list(self._held.values())

    def stop_wanted(self, job_id: UUID) -> None:
        """A stop was signalled; tell its holder if that is us."""
        with self._lock:
            held = self._held.get(job_id)
        if held is not None:
            held.tell(held.stopping)

    def beat(self) -> None:
        """Renew everything held. A failed beat proves nothing; only time, or a refusal, takes a lease away."""
        held = [one for one in self.all() if not one.lost.is_set()]
        if not held:
            return
        sent_at = time.monotonic()
        term = timedelta(seconds=self._term)
        renewed = self._database.once(jobs.renew, [one.lease for one in held], term=term)
        for one in held:
            if one.lease.job_id not in renewed:
                if self._still_held(one):
                    log.warning("lease.refused job_id=%s epoch=%s", one.lease.job_id, one.lease.epoch)
                one.tell(one.lost)
                continue
            one.trusted_until = max(one.trusted_until, sent_at + self._term - self._margin)
            stopping, overdue = renewed[one.lease.job_id]
            if overdue:
                one.tell(one.lost)
            elif stopping:
                one.tell(one.stopping)

    def _still_held(self, one: Held) -> bool:
        with self._lock:
            return self._held.get(one.lease.job_id) is one

    def _run(self) -> None:
        pause = self._beat
        while not self._ended.wait(pause):
            try:
                self.beat()
                pause = self._beat
            except Exception as error:  # noqa: BLE001  # a beat must never end the heartbeat
                log.warning("lease.beat_failed error=%s", type(error).__name__)
                pause = min(self._beat / 5, 1.0)


async def guarded(work: "asyncio.Task[T]", held: Held, *, stops: bool) -> T:
    """Await `work`, cancelling it when the lease can no longer be trusted, or on a stop if `stops`.

    Raises LeaseLost or StopWanted then.
    """
    loop = asyncio.get_running_loop()
    changed = asyncio.Event()
    with held.waking(lambda: loop.call_soon_threadsafe(changed.set)):
        while not work.done():
            if held.seconds_left() <= 0 or (stops and held.stopping.is_set()):
                work.cancel()
                await asyncio.wait({work})
                break
            changed.clear()
            bell = asyncio.ensure_future(changed.wait())
            await asyncio.wait({work, bell}, timeout=held.seconds_left(), return_when=asyncio.FIRST_COMPLETED)
            bell.cancel()
    if work.cancelled():
        held.check("wait")
        raise StopWanted(held.lease.job_id)
    return work.result()


class StopWanted(Exception):
    """Somebody asked this job to end."""
