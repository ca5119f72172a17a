"""Claiming a job, keeping it, giving it back: the lease and the attempt counter."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.claimed import as_claimed
from store.errors import LeaseLost
from store.events import data_bind, with_event
from store.guards import (
    ATTEMPT_LEFT,
    CLOCK,
    CLOCK_STANDS,
    HELD,
    IS_OPEN,
    LAPSED,
    NO_CALL,
    NOW,
    is_state,
    statement,
    to_state,
)
from store.models import ClaimedJob, Lease
from store.queue import wake
from store.states import State
from store.tables import job_requests, job_signals, jobs

# A queued job whose message is gone is looked at this long after it became due.
CHECK_QUEUED_AFTER: sa.ColumnClause[Any] = sa.literal_column("interval '1 minute'")
# An open job that moves is looked at this often, whoever holds it.
LOOK_EVERY: sa.ColumnClause[Any] = sa.literal_column("interval '5 minutes'")

NO_LEASE: dict[str, Any] = {"lease_owner": sa.null(), "lease_token": sa.null(), "lease_until": sa.null()}
NO_POLL: dict[str, Any] = {"next_poll_at": sa.null(), "poll_token": sa.null()}
FRESH_CALL: dict[str, Any] = {
    "provider_task_id": sa.null(),
    "provider_call_started_at": sa.null(),
    "call_key": sa.null(),
    "call_handle": sa.null(),
    "resolve_by": sa.null(),
    "result_known_at": sa.null(),
    "poll_misses": sa.literal_column("0"),
    "import_failures": sa.literal_column("0"),
    "progress": sa.null(),
}

_CLAIMED = (
    jobs.c.lease_token,
    jobs.c.user_id,
    jobs.c.job_type,
    jobs.c.actor,
    jobs.c.mode,
    jobs.c.queue,
    jobs.c.max_attempts,
    jobs.c.retry_safe,
    jobs.c.price,
    jobs.c.deadline_at,
    jobs.c.provider_kind,
    jobs.c.provider_task_id,
    jobs.c.call_key,
    jobs.c.call_generation,
    jobs.c.call_handle,
    jobs.c.provider_call_started_at,
    jobs.c.resolve_by,
    *(jobs.c[name] for name in ("run_id", "step", "stage", "operation_key", "depends_on", "optional", "round")),
    jobs.c.watermark,
    jobs.c.poll_misses,
    jobs.c.import_failures,
)


def _interval(name: str) -> sa.BindParameter[timedelta]:
    return sa.bindparam(name, type_=pg.INTERVAL)


NEW_LEASE: dict[str, Any] = {
    "epoch": jobs.c.epoch + 1,
    "lease_owner": sa.bindparam("owner"),
    "lease_token": sa.func.gen_random_uuid(),
    "lease_until": CLOCK + _interval("term"),
}


def claiming(change: sa.Update, kind: str) -> sa.Select[Any]:
    """A change that gives out a lease, returning the job with its request."""
    moved, statement = with_event(change, kind, *_CLAIMED)
    stopping = sa.exists().where(job_signals.c.job_id == moved.c.id, job_signals.c.consumed_at.is_(None))
    return statement.add_columns(job_requests.c.request, stopping.label("stopping")).join(
        job_requests, job_requests.c.job_id == moved.c.id
    )


_FIRST_START = sa.func.coalesce(jobs.c.started_at, CLOCK)
# A step's deadline counts from when it could run, any other job's from its first start.
_COUNTS_FROM_START = sa.and_(jobs.c.started_at.is_(None), jobs.c.run_id.is_(None))
_DEADLINE = sa.case((_COUNTS_FROM_START, CLOCK + jobs.c.run_limit), else_=jobs.c.deadline_at)
_ATTEMPT_DEADLINE = CLOCK + jobs.c.attempt_limit

STARTED: dict[str, Any] = {
    "status": to_state(State.RUNNING),
    "started_at": _FIRST_START,
    "deadline_at": _DEADLINE,
    "attempt_deadline_at": _ATTEMPT_DEADLINE,
    "next_check_at": sa.func.least(_DEADLINE, _ATTEMPT_DEADLINE, CLOCK + LOOK_EVERY),
    **NEW_LEASE,
}

CLAIM_QUEUED = claiming(
    sa.update(jobs)
    .where(
        jobs.c.id == sa.bindparam("job_id"),
        is_state(State.QUEUED),
        jobs.c.available_at <= NOW,
        sa.or_(jobs.c.queue_deadline_at > NOW, CLOCK_STANDS),
        ~jobs.c.blocked,
        jobs.c.parked_on.is_(None),
    )
    .values(STARTED),
    "started",
)


def claim_queued(connection: sa.Connection, job_id: UUID, *, owner: str, term: timedelta) -> ClaimedJob | None:
    """The job, now ours for `term`; None when it is not there, not due, or somebody else's."""
    row = connection.execute(CLAIM_QUEUED, {"job_id": job_id, "owner": owner, "term": term}).one_or_none()
    return None if row is None else as_claimed(row, owner)


# Rows are locked in the order of their ids, as by whatever else moves many at once.
RENEW = statement(
    """
    with held as materialized (
      select h.* from unnest(:ids, :epochs, :tokens) as h (id, epoch, token)
      join callkeeper.jobs j on j.id = h.id
      where j.epoch = h.epoch and j.lease_token = h.token and j.status || '' = 'running'
      order by j.id
      for no key update of j
    )
    update callkeeper.jobs j
    set lease_until = clock_timestamp() + :term
    from held
    where j.id = held.id and j.epoch = held.epoch and j.lease_token = held.token
      and j.status || '' = 'running' and j.lease_until > now()
    returning j.id,
      exists (select from callkeeper.job_signals s where s.job_id = j.id and s.consumed_at is null) as stopping,
      least(j.deadline_at, j.attempt_deadline_at) <= now() as overdue
    """
).bindparams(
    sa.bindparam("term", type_=pg.INTERVAL),
    sa.bindparam("ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("epochs", type_=pg.ARRAY(sa.Integer)),
    sa.bindparam("tokens", type_=pg.ARRAY(pg.UUID)),
)


def renew(connection: sa.Connection, leases: Sequence[Lease], *, term: timedelta) -> dict[UUID, tuple[bool, bool]]:
    """One statement for all leases of a process. The jobs still held, each with (stop wanted, past its deadline)."""
    rows = connection.execute(
        RENEW,
        {
            "term": term,
            "ids": [lease.job_id for lease in leases],
            "epochs": [lease.epoch for lease in leases],
            "tokens": [lease.token for lease in leases],
        },
    )
    return {row.id: (row.stopping, row.overdue) for row in rows}


ABANDON = sa.update(jobs).where(HELD).values(lease_until=CLOCK).returning(jobs.c.id)


def abandon(connection: sa.Connection, lease: Lease) -> bool:
    """End the lease now, so that recovery need not wait for its term. The row itself says what to do."""
    return connection.execute(ABANDON, lease.binds).one_or_none() is not None


AT_ONCE = timedelta(0)


def larger_if(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[str]:
    """The queue of larger machines, or the one it has."""
    return sa.case((condition, sa.literal_column("'large'")), else_=jobs.c.queue)


_LATER = CLOCK + _interval("delay")
_QUEUED_AGAIN: dict[str, Any] = {
    "status": to_state(State.QUEUED),
    "available_at": _LATER,
    "queue_deadline_at": sa.func.least(_LATER + jobs.c.queue_limit, jobs.c.deadline_at),
    "next_check_at": sa.func.least(_LATER + CHECK_QUEUED_AFTER, jobs.c.deadline_at),
    "turn": sa.null(),
    "attempt_deadline_at": sa.null(),
    **NO_LEASE,
    **FRESH_CALL,
}
_WAKE = (jobs.c.queue, jobs.c.actor, jobs.c.available_at)


def queued_again(guard: sa.ColumnElement[bool], kind: str, **values: Any) -> sa.Select[Any]:
    """Back to the queue with a fresh message; whatever call there was is known to have ended or never left."""
    change = sa.update(jobs).where(guard).values(**_QUEUED_AGAIN, **values)
    moved, statement = with_event(change, kind, *_WAKE, data=data_bind())
    sent, notify = wake(moved, queue=moved.c.queue, actor=moved.c.actor, available_at=moved.c.available_at)
    return statement.add_cte(sent).add_columns(notify)


REQUEUE = queued_again(HELD, "requeued")
REQUEUE_COUNTED = queued_again(sa.and_(HELD, ATTEMPT_LEFT), "requeued", attempt=jobs.c.attempt + 1)
# A paid call whose outcome stays unknown is made once more at most, whatever attempts are left. A handler of the app's
# own says itself how often it may run.
ONCE_MORE = sa.and_(jobs.c.retry_safe, jobs.c.mode == sa.literal_column("'local'"))
REQUEUE_UNKNOWN = queued_again(
    sa.and_(HELD, ATTEMPT_LEFT, jobs.c.retry_safe), "requeued", attempt=jobs.c.attempt + 1, retry_safe=ONCE_MORE
)
REQUEUE_LOST = queued_again(sa.and_(LAPSED, ATTEMPT_LEFT, NO_CALL), "recovered", attempt=jobs.c.attempt + 1)
REQUEUE_LOST_SAFE = queued_again(
    sa.and_(LAPSED, ATTEMPT_LEFT, jobs.c.retry_safe, jobs.c.mode != sa.literal_column("'async'")),
    "recovered",
    attempt=jobs.c.attempt + 1,
    retry_safe=ONCE_MORE,
    queue=larger_if(sa.bindparam("larger", type_=sa.Boolean)),
)


def requeue(connection: sa.Connection, lease: Lease, *, delay: timedelta, why: str) -> None:
    """Give the job back without spending an attempt (shutdown, throttled). Raises LeaseLost."""
    binds = {**lease.binds, "delay": delay, "event_data": {"why": why}}
    if connection.execute(REQUEUE, binds).one_or_none() is None:
        raise LeaseLost(lease.job_id, "requeue", epoch=lease.epoch, owner=lease.owner)


def requeue_counted(
    connection: sa.Connection,
    lease: Lease,
    *,
    expected_attempt: int,
    delay: timedelta,
    why: str,
    unknown: bool = False,
) -> bool:
    """Give the job back and count an attempt (`increment_attempt_if`). False when none is left, or no longer held.

    `unknown`: nobody knows what became of its call. Then only if the job is retry-safe, and once.
    """
    binds = {
        **lease.binds,
        "expected_attempt": expected_attempt,
        "delay": delay,
        "event_data": {"why": why},
    }
    return connection.execute(REQUEUE_UNKNOWN if unknown else REQUEUE_COUNTED, binds).one_or_none() is not None


def requeue_lost(
    connection: sa.Connection,
    job_id: UUID,
    *,
    epoch: int,
    expected_attempt: int,
    call_started: bool,
    larger: bool = False,
) -> bool:
    """A lapsed lease whose work may run again: back to the queue, one attempt counted. False when it may not.

    Without a started call always; with one only for a retry-safe job of a kind that leaves nothing running upstream,
    a paid one once, and then perhaps on a `larger` machine.
    """
    binds = {
        "held_id": job_id,
        "held_epoch": epoch,
        "expected_attempt": expected_attempt,
        "delay": AT_ONCE,
        "event_data": {"why": "worker_lost"},
    }
    if call_started:
        binds["larger"] = larger
    statement = REQUEUE_LOST_SAFE if call_started else REQUEUE_LOST
    return connection.execute(statement, binds).one_or_none() is not None


INCREMENT_ATTEMPT_IF = (
    sa.update(jobs)
    .where(jobs.c.id == sa.bindparam("job_id"), IS_OPEN, ATTEMPT_LEFT)
    .values(attempt=jobs.c.attempt + 1)
    .returning(jobs.c.attempt)
)


def increment_attempt_if(connection: sa.Connection, job_id: UUID, *, expected_attempt: int) -> int | None:
    """Count one more attempt if it is still `expected_attempt` and one is left; the new number, or None."""
    binds = {"job_id": job_id, "expected_attempt": expected_attempt}
    return connection.execute(INCREMENT_ATTEMPT_IF, binds).scalar_one_or_none()


_SHARE = sa.bindparam("share", type_=sa.REAL)
_IS_SHARE = _SHARE.between(sa.literal_column("0"), sa.literal_column("1"))
_progressed = (
    sa.update(jobs)
    .where(HELD)
    .values(progress=sa.case((_IS_SHARE, sa.func.greatest(jobs.c.progress, _SHARE)), else_=jobs.c.progress))
    .returning(jobs.c.id, jobs.c.event_seq, jobs.c.attempt, jobs.c.epoch, jobs.c.progress)
    .cte("moved")
)
REPORT_PROGRESS = sa.select(_progressed.c.id, sa.func.callkeeper.tell_progress(*_progressed.c))


def report_progress(connection: sa.Connection, lease: Lease, share: float) -> None:
    """How far the work is, 0 to 1; it never goes back, and anything else is not believed. Raises LeaseLost."""
    if connection.execute(REPORT_PROGRESS, {**lease.binds, "share": share}).one_or_none() is None:
        raise LeaseLost(lease.job_id, "report_progress", epoch=lease.epoch, owner=lease.owner)
