"""Killing workers at random, again and again, while they render a tour.

A worker is frozen first and looked at. One that is in the middle of a call that its provider has no way to find again
(a create at OpenRouter, whose only way home would be a callback; speech or words that come in one piece) is let go on:
such a call would be lost honestly and the tour with it, which is another story than this one.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import sqlalchemy as sa

from actors.demo.stage import Child, Stage

Tell = Callable[[str], None]
Rows = list[sa.Row[tuple[str, str, str, bool, int]]]

WORKERS = 2
_KILLS = 4  # at random; and one more in the middle of each media step
_PAUSE = (0.6, 1.6)  # seconds between two kills
_QUIET_LOOKS, _LOOK_AGAIN = 3, 0.03  # a statement may be on its way before anybody sees it work
_IN_THE_MIDDLE = 0.6  # seconds after a media step began

_HELD = sa.text(
    """
    select step, mode, provider_kind, provider_call_started_at is not null and provider_task_id is null as unanswered,
      split_part(lease_owner, ':', 2)::int as pid
    from callkeeper.jobs
    where status = 'running' and lease_until > clock_timestamp()
    """
)
# The first part of a connection's name says whose it is: host, process, and a word of its own.
_ACTIVE = sa.text(
    """
    select split_part(application_name, ':', 2)::int from pg_stat_activity
    where application_name ~ '^callkeeper [^:]+:[0-9]+:' and state = 'active'
    """
)
_MEDIA = frozenset({"joined-scenes", "final-video"})


@dataclass
class Kills:
    """`held` names what each killed worker had in its hands."""

    stage: Stage
    tell: Tell
    chance: random.Random
    workers: list[Child] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)  # local steps that lost their worker once
    _next: float = 0.0
    _seen: dict[str, float] = field(default_factory=dict)

    @property
    def done(self) -> bool:
        """Several workers are dead, some of them in the middle of media work."""
        return len(self.held) > self._media_cuts > 0

    @property
    def _media_cuts(self) -> int:
        return len(self.cut & _MEDIA)

    def begin(self) -> None:
        for _ in range(WORKERS):
            self._replace()
        self._later()

    def step(self) -> None:
        """Look once, and kill if it is time, or if a worker is in the middle of media work for the first time."""
        for worker in self.workers:
            if not worker.alive:
                raise RuntimeError(f"{worker.name} ended by itself")
        rows = self._rows()
        busy = self._in_the_middle(rows)
        if busy is not None:
            self._try(busy)
        elif len(self.held) - self._media_cuts < _KILLS and time.monotonic() >= self._next:
            holders = [holder for row in rows if (holder := self._worker_of(row.pid)) is not None]
            if holders:
                self._try(self.chance.choice(holders))

    def _in_the_middle(self, rows: Rows) -> Child | None:
        for row in rows:
            if row.step not in _MEDIA or row.step in self.cut:
                continue
            began = self._seen.setdefault(row.step, time.monotonic())
            if time.monotonic() - began > _IN_THE_MIDDLE:
                return self._worker_of(row.pid)
        return None

    def _try(self, worker: Child) -> None:
        self._signal(worker, signal.SIGSTOP)
        rows = self._held_by(worker)
        local = {str(row.step) for row in rows if row.mode == "local"}
        # A local step that was cut once goes on: each loss counts an attempt, and a second one that it fits no machine.
        if not rows or local & self.cut or any(_cannot_be_found(row) for row in rows):
            self._signal(worker, signal.SIGCONT)
            self._later(0.1)
            return
        worker.kill()
        self.workers.remove(worker)
        self.cut |= local
        self.held.append(", ".join(sorted(str(row.step) for row in rows)))
        self.tell(f"SIGKILL {worker.name}, which held {self.held[-1]}")
        self._replace()
        self._later()

    def _held_by(self, worker: Child) -> Rows:
        """What a frozen worker holds, once Postgres has done all that it was asked by it."""
        quiet = 0
        while quiet < _QUIET_LOOKS:
            with self.stage.engine.connect() as connection:
                active = [pid for (pid,) in connection.execute(_ACTIVE) if self._worker_of(pid) is worker]
            quiet = 0 if active else quiet + 1
            time.sleep(_LOOK_AGAIN)
        return [row for row in self._rows() if self._worker_of(row.pid) is worker]

    def _rows(self) -> Rows:
        with self.stage.engine.connect() as connection:
            return list(connection.execute(_HELD))

    def _worker_of(self, pid: int) -> Child | None:
        with suppress(ProcessLookupError):
            group = os.getpgid(pid)
            return next((worker for worker in self.workers if worker.group == group), None)
        return None

    def _signal(self, worker: Child, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.group, number)

    def _later(self, seconds: float | None = None) -> None:
        self._next = time.monotonic() + (self.chance.uniform(*_PAUSE) if seconds is None else seconds)

    def _replace(self) -> None:
        self.workers.append(self.stage.start_worker())


def _cannot_be_found(row: sa.Row[tuple[str, str, str, bool, int]]) -> bool:
    return bool(row.unanswered) and (row.mode == "sync" or row.provider_kind == "openrouter-video")
