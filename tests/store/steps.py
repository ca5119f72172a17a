"""Short ways to bring a job somewhere with the store's own verbs, and to look at everything that is stored of it."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import sqlalchemy as sa

from store import calls, jobs, ledger, polls, reads, settle, submit
from store.engine import Database
from store.models import ClaimedJob, DuePoll, Lease, NewJob, PollLease, Settlement
from store.states import State

R = TypeVar("R")
KIND = "replicate-prediction"
AT_ONCE = timedelta(0)
TERM = timedelta(hours=1)
LAPSED = timedelta(seconds=-1)
FAR = timedelta(hours=1)
DONE = Settlement(State.COMPLETED, result={"media": []})
FAILED = Settlement(State.FAILED, error_code="provider_failed", error_message="it did not work")


def new_job(**changes: Any) -> NewJob:
    plain: dict[str, Any] = {
        "job_type": "picture",
        "mode": "async",
        "queue": "calls",
        "actor": "start_call",
        "request": {"prompt": "a lighthouse"},
        "fingerprint": "f1",
        "price": 0,
        "max_attempts": 3,
        "retry_safe": False,
        "queue_limit": timedelta(hours=1),
        "run_limit": timedelta(hours=1),
    }
    return NewJob(**{**plain, **changes})


class Steps:
    """A database and the way from one state to the next."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def submit(self, **changes: Any) -> UUID:
        return self.db.transact(submit.submit, new_job(**changes)).job_id

    def account(self, *, subscription: int = 0, topup: int = 0) -> str:
        name = f"account-{uuid.uuid4().hex[:8]}"
        self.db.once(ledger.grant, name, subscription=subscription, topup=topup)
        return name

    def claim(self, job_id: UUID, *, term: timedelta = TERM, owner: str = "worker") -> ClaimedJob:
        claimed = self.db.once(jobs.claim_queued, job_id, owner=owner, term=term)
        assert claimed is not None, "the job was there to claim"
        return claimed

    def start_call(self, lease: Lease, *, quiet: timedelta = FAR, kind: str = KIND) -> Any:
        return self.db.once(calls.mark_call_started, lease, kind=kind, handle={"account": "default"}, quiet=quiet)

    def running(self, **changes: Any) -> Lease:
        return self.claim(self.submit(**changes)).lease

    def calling(self, **changes: Any) -> Lease:
        lease = self.running(**changes)
        self.start_call(lease)
        return lease

    def waiting(self, *, task: str | None = None, first_poll: timedelta = AT_ONCE, **changes: Any) -> UUID:
        lease = self.calling(**changes)
        task = task or f"task-{uuid.uuid4().hex[:10]}"
        self.db.once(calls.checkpoint_call, lease, task, first_poll=first_poll)
        return lease.job_id

    def ambiguous(self, *, look_in: timedelta = AT_ONCE, **changes: Any) -> UUID:
        lease = self.calling(**changes)
        self.db.once(calls.mark_ambiguous, lease, look_in=look_in, why="no answer")
        return lease.job_id

    def due(self, *, at_most: int = 100, term: timedelta = TERM, kinds: Sequence[str] = (KIND,)) -> list[DuePoll]:
        return self.db.once(polls.claim_due_polls, owner="poller", kinds=kinds, term=term, at_most=at_most)

    def poll(self, job_id: UUID) -> PollLease:
        """The poll lease of one job, which must be due."""
        return next(due.lease for due in self.due() if due.lease.job_id == job_id)

    def result_known(self, **changes: Any) -> UUID:
        job_id = self.waiting(**changes)
        assert self.db.once(polls.mark_result_known, self.poll(job_id), look_in=FAR)
        return job_id

    def took_result(self, **changes: Any) -> Lease:
        job_id = self.result_known(**changes)
        taken = self.db.once(polls.take_result, job_id, owner="importer", term=TERM)
        assert taken is not None
        return taken.lease

    def ended(self, state: State, **changes: Any) -> UUID:
        lease = self.running(**changes)
        if state is State.COMPLETED:
            self.db.transact(settle.complete, lease, DONE)
        else:
            self.db.transact(settle.end_held, lease, Settlement(state, error_code=f"made_{state}"))
        return lease.job_id

    def at(self, state: State, **changes: Any) -> UUID:
        """A job in that state."""
        if state is State.QUEUED:
            return self.submit(**changes)
        if state is State.RUNNING:
            return self.running(**changes).job_id
        if state is State.WAITING:
            return self.waiting(**changes)
        return self.ended(state, **changes)

    def row(self, job_id: UUID) -> dict[str, Any]:
        return dict(self.one("select * from callkeeper.jobs where id = :id", id=job_id))

    def lease_of(self, job_id: UUID) -> Lease:
        row = self.row(job_id)
        return Lease(job_id, row["epoch"], row["lease_token"] or uuid.uuid4(), row["lease_owner"] or "nobody")

    def one(self, statement: str, **binds: Any) -> Mapping[str, Any]:
        with self.db.engine.connect() as connection:
            return connection.execute(sa.text(statement), binds).mappings().one()

    def all(self, statement: str, **binds: Any) -> list[Mapping[str, Any]]:
        with self.db.engine.connect() as connection:
            return list(connection.execute(sa.text(statement), binds).mappings())

    def count(self, table: str, where: str = "true", **binds: Any) -> int:
        return int(self.one(f"select count(*) as n from {table} where {where}", **binds)["n"])

    def by_hand(self, *statements: str, **binds: Any) -> None:
        with self.db.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement), binds)

    def events(self, job_id: UUID) -> list[str]:
        rows = self.all("select kind from callkeeper.job_events where job_id = :id order by seq", id=job_id)
        return [row["kind"] for row in rows]

    def pools(self, account: str) -> dict[str, tuple[int, int]]:
        """Every part of an account as (subscription, topup)."""
        row = self.one("select * from callkeeper.accounts where id = :id", id=account)
        parts = ("granted", "balance", "reserved", "committed")
        return {part: (row[f"{part}_subscription"], row[f"{part}_topup"]) for part in parts}

    def violations(self) -> list[Mapping[str, Any]]:
        return self.db.once(reads.violations)


def relaxed(url: str) -> str:
    """The same database, without waiting for the disk at each commit."""
    changed = sa.make_url(url).update_query_dict({"options": "-csynchronous_commit=off"})
    return changed.render_as_string(hide_password=False)


def at_once(work: Sequence[Callable[[], R]]) -> list[R]:
    """Run all of them at the same time, each in a thread of its own; the first error is raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        return [future.result() for future in [pool.submit(one) for one in work]]


def wait_until_blocked(observer: sa.Engine, pid: int, *, patience: float = 10.0) -> None:
    """Return once that backend waits for a row's lock."""
    give_up = time.monotonic() + patience
    with observer.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while time.monotonic() < give_up:
            state = connection.execute(
                sa.text("select wait_event_type from pg_stat_activity where pid = :pid"), {"pid": pid}
            ).scalar_one_or_none()
            if state == "Lock":
                return
            time.sleep(0.002)  # the pace of looking, not what is waited for
    raise AssertionError(f"backend {pid} never waited for a lock")


def pid_of(connection: sa.Connection) -> int:
    return int(connection.execute(sa.text("select pg_backend_pid()")).scalar_one())
