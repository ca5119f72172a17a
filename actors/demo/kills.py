"""Killing workers at the worst moments, each chosen and then proven by what the database says."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from actors.demo.stage import Child, Stage

Tell = Callable[[str], None]

# A create is under way: its intent is committed, its answer is not there, and that process holds it.
_CREATING = sa.text(
    """
    select split_part(j.lease_owner, ':', 2)::int as pid, o.number
    from callkeeper.jobs j join shop.orders o on o.job_id = j.id
    where j.status = 'running' and j.mode = 'async' and j.provider_call_started_at is not null
      and j.provider_task_id is null and j.lease_until > clock_timestamp()
    """
)
_HELD = sa.text(
    """
    select count(*) filter (where mode = 'async') as creates, count(*) filter (where mode = 'sync') as calls
    from callkeeper.jobs
    where status = 'running' and provider_call_started_at is not null and provider_task_id is null
      and split_part(lease_owner, ':', 2)::int = :pid
    """
)
_POLLING = sa.text(
    """
    select count(*) from callkeeper.jobs
    where status = 'waiting' and poll_token is not null and next_poll_at > clock_timestamp()
    """
)
_WAITING_ENOUGH = 3


@dataclass
class Kills:
    """First one worker in the middle of creates, then the only other one in the middle of polls, then two new ones."""

    stage: Stage
    tell: Tell
    workers: list[Child] = field(default_factory=list)
    creates: int = 0
    sync_calls: int = 0
    polls: int = 0

    @property
    def done(self) -> bool:
        return self.creates > 0 and self.polls > 0

    def begin(self) -> None:
        self.workers = [self.stage.start_worker(), self.stage.start_worker()]
        self.tell("worker 1 and worker 2 started")

    def step(self) -> None:
        """Look once, and kill if this is the moment."""
        if not self.creates:
            self._mid_create()
        elif not self.polls:
            self._mid_poll()

    def check(self) -> None:
        """Raise RuntimeError if a worker ended that nobody killed."""
        for worker in self.workers:
            if not worker.alive:
                raise RuntimeError(f"{worker.name} ended by itself")

    def _mid_create(self) -> None:
        pid = self._process_with_an_accepted_create()
        victim = None if pid is None else self._worker_of(pid)
        if victim is None:
            return
        self._kill(victim)
        # Only now, with the process gone, is it certain what it held; had it just finished, try with another one.
        with self.stage.engine.connect() as connection:
            held = connection.execute(_HELD, {"pid": pid}).one()
        self.creates, self.sync_calls = held.creates, self.sync_calls + held.calls
        self.tell(
            f"SIGKILL {victim.name} (process {pid}) with {held.creates} creates"
            f" and {held.calls} synchronous calls sent and not answered"
        )
        if not self.creates:
            self._replace()

    def _process_with_an_accepted_create(self) -> int | None:
        """The worst moment: the provider has taken the call, and nobody here knows its id yet."""
        with self.stage.engine.connect() as connection:
            creating = connection.execute(_CREATING).all()
        if not creating:
            return None
        billed = {entry["input"].get("order") for entry in self.stage.sandbox.bill()}
        return next((row.pid for row in creating if row.number in billed), None)

    def _mid_poll(self) -> None:
        """Only one worker is left, so every poll that is under way is its own."""
        if self._polls_under_way() < _WAITING_ENOUGH:
            return
        (victim,) = self.workers
        self._kill(victim)
        self.polls = self._polls_under_way()
        self.tell(f"SIGKILL {victim.name} with {self.polls} polls under way; nobody is left")
        self._replace()
        if self.polls:
            self._replace()

    def _polls_under_way(self) -> int:
        with self.stage.engine.connect() as connection:
            return int(connection.execute(_POLLING).scalar_one())

    def _worker_of(self, pid: int) -> Child | None:
        try:
            group = os.getpgid(pid)
        except ProcessLookupError:
            return None
        return next((worker for worker in self.workers if worker.group == group), None)

    def _kill(self, victim: Child) -> None:
        victim.kill()
        self.workers.remove(victim)

    def _replace(self) -> None:
        worker = self.stage.start_worker()
        self.workers.append(worker)
        self.tell(f"{worker.name} started")
