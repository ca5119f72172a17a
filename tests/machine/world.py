"""A real database beside its model: verbs run on both, and after every step both must say the same."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from store.engine import Database
from store.errors import LeaseLost, TaskTaken
from store.models import Lease, PollLease
from store.states import State
from tests.machine.model import Account, Call, Job, Owed

R = TypeVar("R")

KINDS = ("alpha", "beta")
ACCOUNTS = ("anna", "ben")
FAR = timedelta(hours=1)
NOW = timedelta(0)
PAST = timedelta(seconds=-1)

EMPTY = """
delete from callkeeper.jobs; delete from callkeeper.accounts; delete from callkeeper.alerts; delete from dramatiq.queue
"""

SEEN = sa.text(
    """
    select j.id, j.status, j.attempt, j.epoch, j.lease_token, j.poll_token,
      coalesce(j.lease_until < now(), false) as lapsed,
      coalesce(j.next_poll_at <= now(), false) as due,
      j.status = 'queued' and j.available_at <= now() as available,
      coalesce(j.next_check_at <= now(), false) as check_due,
      j.finished_at is null and j.deadline_at <= now() as late,
      j.provider_call_started_at is not null as called, j.call_key, j.call_generation as generation,
      j.provider_task_id as task, j.result_known_at is not null as known, j.poll_misses as misses, j.import_failures,
      j.progress,
      (select count(*) from callkeeper.job_signals s where s.job_id = j.id and s.consumed_at is null) as stopping,
      u.status as credits, coalesce(u.committed_subscription, 0) as charged_0, coalesce(u.committed_topup, 0) as charged_1,
      (select array_agg(e.kind order by e.seq) from callkeeper.job_events e where e.job_id = j.id) as events,
      (select count(*) from dramatiq.queue q where q.message -> 'args' ->> 0 = j.id::text) as messages,
      (select count(*) from callkeeper.assets a where a.job_id = j.id) as assets,
      (select array_agg(array[r.provider_kind, r.provider_task_id]) from callkeeper.call_receipts r
        where r.job_id = j.id) as receipts
    from callkeeper.jobs j left join callkeeper.usage_logs u on u.job_id = j.id
    """
)
SEEN_ACCOUNTS = sa.text("select * from callkeeper.accounts")
# Time is moved by hand here, so what depends on how much of it passed is not looked at.
VIOLATIONS = sa.text("select * from callkeeper_audit.violations where invariant not in (1, 10)")
SEEN_OWED = sa.text(
    """
    select key, delivered_at is not null as delivered, dead_at is not null as dead, claim_token, attempts,
      available_at <= now() as due
    from callkeeper.{table}
    """
)
OUTBOXES = ("notices", "consequences")


def part(row: Any, name: str) -> list[int]:
    return [row[f"{name}_subscription"], row[f"{name}_topup"]]


class World:
    """One example. The database is emptied, not made anew."""

    def __init__(self, db: Database) -> None:
        self.db = db
        self.jobs: dict[UUID, Job] = {}
        self.accounts: dict[str, Account] = {}
        self.leases: list[Lease] = []  # every one ever given out, to be tried again later
        self.polls: list[PollLease] = []
        self.calls: list[tuple[Job, Call]] = []
        self.owed: dict[str, dict[str, Owed]] = {outbox: {} for outbox in OUTBOXES}
        self.stale = 0
        self.overruns = 0
        self.tasks = 0
        self.by_hand(EMPTY)

    def by_hand(self, statement: str, **binds: Any) -> None:
        self.db.transact(lambda connection: connection.execute(sa.text(statement), binds))

    # Who is who.

    def held(self, lease: Lease) -> Job | None:
        job = self.jobs.get(lease.job_id)
        holds = job is not None and job.status is State.RUNNING and (job.token, job.epoch) == (lease.token, lease.epoch)
        return job if holds else None

    def polled(self, lease: PollLease) -> Job | None:
        job = self.jobs.get(lease.job_id)
        holds = job is not None and job.status is State.WAITING and (job.poll, job.epoch) == (lease.token, lease.epoch)
        return job if holds else None

    def lease(self, n: int, aim: str) -> Lease | None:
        current = [lease for lease in self.leases if self.held(lease)]
        return self._aimed(Lease, current, self.leases, n, aim)

    def poll_lease(self, n: int, aim: str) -> PollLease | None:
        current = [lease for lease in self.polls if self.polled(lease)]
        return self._aimed(PollLease, current, self.polls, n, aim)

    def _aimed(self, make: Any, current: list[Any], ever: list[Any], n: int, aim: str) -> Any:
        """A lease to try: the one that counts, one from the past, or a forged one that is wrong in a single part."""
        if not ever:
            return None
        chosen = (current or ever)[n % len(current or ever)] if aim != "old" else ever[n % len(ever)]
        job_id, epoch, token = chosen.job_id, chosen.epoch, chosen.token
        if aim == "wrong_job":
            others = [job.id for job in self.jobs.values() if job.id != job_id and job.epoch == epoch]
            job_id = others[n % len(others)] if others else uuid.uuid4()
        elif aim == "wrong_epoch":
            epoch += 1 if n % 2 else -1
        elif aim == "wrong_token":
            token = ever[n % len(ever)].token if n % 2 and ever[n % len(ever)].token != token else uuid.uuid4()
        return make(job_id, epoch, token, chosen.owner)

    def job(self, n: int, *states: State) -> Job | None:
        fitting = [job for job in self.jobs.values() if not states or job.status in states]
        return fitting[n % len(fitting)] if fitting else None

    def owner_of(self, kind: str | None, task: str) -> Job | None:
        found = (job for job in self.jobs.values() if job.task == task and job.call and job.call.state.kind == kind)
        return next(found, None)

    # What a verb may answer.

    def tries(self, lease: Lease | PollLease, allowed: bool, verb: Callable[[], R], *, taken: bool = False) -> R | None:
        """Run a verb that raises LeaseLost. It must be refused unless `allowed`."""
        try:
            result = verb()
        except LeaseLost:
            if allowed:
                raise
            self.stale += lease.job_id in self.jobs
            return None
        except TaskTaken:
            if not taken:
                raise
            return None
        assert allowed, f"a write under {lease} was accepted, though it is not held"
        assert not taken, "a task of another job was accepted"
        return result

    def end(self, job: Job, status: State, *, upstream_ended: bool, cost: int | None = None, assets: int = 0) -> None:
        """The settlement, in the model."""
        if not upstream_ended and job.task is not None and job.new.mode == "async" and not job.known:
            self.owed["consequences"][f"cancel-upstream:{job.id}:{job.task}"] = Owed()
        call = job.call
        if call is not None and job.task is None and (job.kind, call.task) in job.receipts:
            self._owe_orphan(job, call.task)
        self.owed["notices"][f"job-ended:{job.id}"] = Owed()
        self.overruns += status is State.COMPLETED and cost is not None and cost > job.new.price
        job.end(status, cost=cost, assets=assets)

    def late(self, job: Job, call: Call) -> None:
        """The answer to a create of a job that may have ended long ago."""
        is_news = (str(call.state.kind), call.task) not in job.receipts
        if is_news and not job.open and job.call is call and job.task != call.task:
            self._owe_orphan(job, call.task)

    def _owe_orphan(self, job: Job, task: str) -> None:
        if job.new.mode == "async":
            self.owed["consequences"].setdefault(f"cancel-upstream:{job.id}:{task}", Owed())

    # Whether both say the same.

    def check(self) -> None:
        with self.db.engine.connect() as connection:
            rows = connection.execute(SEEN).mappings().all()
            accounts = connection.execute(SEEN_ACCOUNTS).mappings().all()
            violations = connection.execute(VIOLATIONS).all()
            stale = connection.execute(sa.text("select count(*) from callkeeper.stale_writes")).scalar_one()
            overruns = connection.execute(sa.text("select coalesce(sum(times), 0) from callkeeper.alerts")).scalar_one()
            owed = {
                outbox: connection.execute(sa.text(SEEN_OWED.text.format(table=outbox))).mappings().all()
                for outbox in OUTBOXES
            }
        assert violations == [], violations
        assert {row["id"] for row in rows} == set(self.jobs)
        for row in rows:
            self._compare(row, self.jobs[row["id"]])
        for row in accounts:
            account = self.accounts[row["id"]]
            parts = ("granted", "balance", "reserved", "committed")
            assert {name: part(row, name) for name in parts} == {name: getattr(account, name) for name in parts}
        for outbox in OUTBOXES:
            self._compare_owed(owed[outbox], self.owed[outbox])
        assert stale == self.stale, "every refused write is counted, and nothing else"
        assert overruns == self.overruns

    def _compare(self, row: Any, job: Job) -> None:
        wanted = job.seen()
        found = {name: row[name] for name in wanted if name not in {"charged", "receipts"}}
        found["charged"] = (row["charged_0"], row["charged_1"])
        found["receipts"] = {(kind, task) for kind, task in row["receipts"] or ()}
        assert found == wanted, {name: (found[name], wanted[name]) for name in wanted if found[name] != wanted[name]}

    def _compare_owed(self, rows: Any, wanted: dict[str, Owed]) -> None:
        found = {
            row["key"]: (
                row["claim_token"],
                "delivered" if row["delivered"] else "dead" if row["dead"] else None,
                row["attempts"],
                row["due"],
            )
            for row in rows
        }
        assert found == {key: (o.token, o.finished, o.attempts, o.due) for key, o in wanted.items()}
