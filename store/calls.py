"""The call to the provider as the row knows it: intent, checkpoint, ambiguity, adoption, result.

The intent is committed before the request leaves; the task id is on the row before anybody polls; an unknown outcome
is resolved, never repeated.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.exc import IntegrityError

from store.errors import LeaseLost, TaskTaken
from store.events import data_bind, with_event
from store.guards import (
    CALL_STARTED,
    CLOCK,
    HELD,
    LAPSED,
    NO_CALL,
    NO_TASK,
    POLL_HELD,
    TASK_KNOWN,
    statement,
    to_state,
)
from store.jobs import NO_LEASE
from store.models import CallState, Lease, PollLease
from store.states import State
from store.tables import call_receipts, jobs

_ASYNC = jobs.c.mode == sa.literal_column("'async'")


# The pass looks when the call has gone stale: until then its worker, its polls and its callback have the word.
_WHEN_STALE = sa.func.least(jobs.c.deadline_at, jobs.c.provider_call_started_at + jobs.c.stale_after)


def _interval(name: str) -> sa.BindParameter[timedelta]:
    return sa.bindparam(name, type_=pg.INTERVAL)


MARK_CALL_STARTED = with_event(
    sa.update(jobs)
    .where(HELD, NO_CALL)
    .values(
        provider_kind=sa.bindparam("kind"),
        provider_call_started_at=CLOCK,
        call_key=sa.func.gen_random_uuid(),
        call_generation=jobs.c.call_generation + 1,
        call_handle=sa.bindparam("handle", type_=pg.JSONB),
        resolve_by=CLOCK + _interval("quiet"),
    ),
    "call_started",
    jobs.c.provider_kind,
    jobs.c.call_key,
    jobs.c.call_generation,
    jobs.c.call_handle,
    jobs.c.provider_call_started_at,
    jobs.c.resolve_by,
    data=data_bind(),
)[1]


def mark_call_started(
    connection: sa.Connection, lease: Lease, *, kind: str, handle: Mapping[str, Any], quiet: timedelta
) -> CallState:
    """Commit the intent: from here on nobody may create again without proof. `quiet` bounds a later ambiguity.

    Raises LeaseLost, also when this job already has a call.
    """
    binds = {**lease.binds, "kind": kind, "handle": handle, "quiet": quiet, "event_data": {"kind": kind}}
    row = connection.execute(MARK_CALL_STARTED, binds).one_or_none()
    if row is None:
        raise LeaseLost(lease.job_id, "mark_call_started", epoch=lease.epoch, owner=lease.owner)
    return CallState(
        kind=row.provider_kind,
        task_id=None,
        key=row.call_key,
        generation=row.call_generation,
        handle=row.call_handle,
        started_at=row.provider_call_started_at,
        resolve_by=row.resolve_by,
    )


def _with_receipt(change: sa.Update, kind: str, source: str) -> sa.Select[Any]:
    """A change that puts a task id on the row keeps it in the append-only receipts in the same statement."""
    moved, statement = with_event(
        change,
        kind,
        jobs.c.provider_kind,
        jobs.c.provider_task_id,
        jobs.c.call_generation,
        jobs.c.call_key,
        data=sa.func.jsonb_build_object(sa.literal_column("'task_id'"), sa.cast(sa.bindparam("task_id"), sa.Text)),
    )
    receipt = (
        pg.insert(call_receipts)
        .from_select(
            ["job_id", "provider_kind", "provider_task_id", "call_generation", "call_key", "source", "epoch"],
            sa.select(
                moved.c.id,
                moved.c.provider_kind,
                moved.c.provider_task_id,
                moved.c.call_generation,
                moved.c.call_key,
                sa.literal_column(f"'{source}'"),
                moved.c.epoch,
            ),
        )
        .on_conflict_do_nothing()
        .cte("receipt")
    )
    return statement.add_cte(receipt)


CHECKPOINT_CALL = _with_receipt(
    sa.update(jobs)
    .where(HELD, CALL_STARTED, NO_TASK)
    .values(
        status=to_state(State.WAITING),
        provider_task_id=sa.cast(sa.bindparam("task_id"), sa.Text),
        next_poll_at=CLOCK + _interval("first_poll"),
        next_check_at=_WHEN_STALE,
        **NO_LEASE,
    ),
    "call_accepted",
    "create",
)


def checkpoint_call(connection: sa.Connection, lease: Lease, task_id: str, *, first_poll: timedelta) -> None:
    """The task id is on the row and the worker lets go. Raises LeaseLost, or TaskTaken when another job owns it."""
    try:
        row = connection.execute(
            CHECKPOINT_CALL, {**lease.binds, "task_id": task_id, "first_poll": first_poll}
        ).one_or_none()
    except IntegrityError as error:
        raise _taken(error, task_id) from error
    if row is None:
        raise LeaseLost(lease.job_id, "checkpoint_call", epoch=lease.epoch, owner=lease.owner)


def _taken(error: IntegrityError, task_id: str) -> Exception:
    name = getattr(getattr(error.orig, "diag", None), "constraint_name", None)
    return TaskTaken("provider", task_id) if name == "jobs_one_per_task" else error


KEEP_RECEIPT = (
    pg.insert(call_receipts)
    .from_select(
        ["job_id", "provider_kind", "provider_task_id", "call_generation", "call_key", "source", "epoch"],
        sa.select(
            jobs.c.id,
            sa.cast(sa.bindparam("kind"), sa.Text),
            sa.cast(sa.bindparam("task_id"), sa.Text),
            sa.cast(sa.bindparam("generation"), sa.Integer),
            sa.cast(sa.bindparam("call_key"), pg.UUID),
            sa.cast(sa.bindparam("source"), sa.Text),
            jobs.c.epoch,
        ).where(jobs.c.id == sa.bindparam("job_id")),
    )
    .on_conflict_do_nothing()
)


# The job has ended without this id: its task is watched like any other that outlives its job.
WATCH_LATE = statement(
    """
    insert into callkeeper.upstream_watches
      (job_id, provider_kind, provider_task_id, call_generation, call_handle, call_started_at, check_at)
    select id, :kind, :task_id, :generation, call_handle, provider_call_started_at, clock_timestamp()
    from callkeeper.jobs
    where id = :job_id and status in ('failed', 'timed_out', 'cancelled') and mode = 'async'
      and call_generation = :generation and provider_task_id is null and call_handle is not null
    on conflict do nothing
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID), sa.bindparam("generation", type_=sa.Integer))


def keep_receipt(
    connection: sa.Connection, job_id: UUID, call: CallState, task_id: str, *, source: str = "late_create"
) -> None:
    """Keep a task id whoever holds the lease now: the money is spent. Doing it twice changes nothing."""
    binds = {
        "job_id": job_id,
        "kind": call.kind,
        "task_id": task_id,
        "generation": call.generation,
        "call_key": call.key,
        "source": source,
    }
    connection.execute(KEEP_RECEIPT, binds)
    connection.execute(WATCH_LATE, {name: binds[name] for name in ("job_id", "kind", "task_id", "generation")})


_TO_WAITING: dict[str, Any] = {"status": to_state(State.WAITING), **NO_LEASE}

MARK_AMBIGUOUS = with_event(
    sa.update(jobs)
    .where(HELD, CALL_STARTED, NO_TASK, _ASYNC)
    .values(next_poll_at=CLOCK + _interval("look_in"), next_check_at=_WHEN_STALE, **_TO_WAITING),
    "call_ambiguous",
    data=data_bind(),
)[1]


def mark_ambiguous(connection: sa.Connection, lease: Lease, *, look_in: timedelta, why: str) -> None:
    """The request left and no answer came: wait, look for it at the provider, never create again. Raises LeaseLost."""
    binds = {**lease.binds, "look_in": look_in, "event_data": {"why": why}}
    if connection.execute(MARK_AMBIGUOUS, binds).one_or_none() is None:
        raise LeaseLost(lease.job_id, "mark_ambiguous", epoch=lease.epoch, owner=lease.owner)


RESUME_LOST = with_event(
    sa.update(jobs)
    .where(LAPSED, CALL_STARTED, _ASYNC)
    .values(next_poll_at=CLOCK, next_check_at=_WHEN_STALE, **_TO_WAITING),
    "recovered",
    jobs.c.provider_task_id,
)[1]


def resume_lost(connection: sa.Connection, job_id: UUID, *, epoch: int) -> bool:
    """A lapsed lease over a started asynchronous call: to waiting, poll (or find) now; nothing is created."""
    return connection.execute(RESUME_LOST, {"held_id": job_id, "held_epoch": epoch}).one_or_none() is not None


# Its next check stays: a result that cannot be imported is tried again often, and none of those tries is a pass's look.
RETURN_RESULT = with_event(
    sa.update(jobs)
    .where(HELD, TASK_KNOWN)
    .values(
        next_poll_at=CLOCK + _interval("look_in"),
        result_known_at=None,
        poll_misses=jobs.c.poll_misses + sa.bindparam("missed", type_=sa.Integer),
        **_TO_WAITING,
    ),
    "result_returned",
    data=data_bind(),
)[1]


def return_result(
    connection: sa.Connection, lease: Lease, *, look_in: timedelta, why: str, missed: bool = False
) -> None:
    """The result could not be imported yet: back to waiting, a later poll brings a fresh one. Raises LeaseLost.

    `missed`: the look that brought it counts as one that brought nothing.
    """
    binds = {**lease.binds, "look_in": look_in, "missed": int(missed), "event_data": {"why": why}}
    if connection.execute(RETURN_RESULT, binds).one_or_none() is None:
        raise LeaseLost(lease.job_id, "return_result", epoch=lease.epoch, owner=lease.owner)


ADOPT_CALL = _with_receipt(
    sa.update(jobs)
    .where(POLL_HELD, NO_TASK)
    .values(
        provider_task_id=sa.cast(sa.bindparam("task_id"), sa.Text),
        next_poll_at=CLOCK,
        poll_token=None,
        poll_misses=0,
    ),
    "call_adopted",
    "find",
)


def adopt_call(connection: sa.Connection, lease: PollLease, task_id: str) -> None:
    """The lost call is found: its id goes onto the row, the next poll is now. Raises LeaseLost or TaskTaken."""
    try:
        row = connection.execute(ADOPT_CALL, {**lease.binds, "task_id": task_id}).one_or_none()
    except IntegrityError as error:
        raise _taken(error, task_id) from error
    if row is None:
        raise LeaseLost(lease.job_id, "adopt_call", epoch=lease.epoch, owner=lease.owner)


RECEIPTS_OF = (
    sa.select(call_receipts.c.provider_task_id)
    .where(
        call_receipts.c.job_id == sa.bindparam("job_id"),
        call_receipts.c.call_generation == sa.bindparam("generation"),
    )
    .order_by(call_receipts.c.id)
)

KNOWN_TASKS = sa.select(call_receipts.c.provider_task_id).where(
    call_receipts.c.provider_kind == sa.bindparam("kind"),
    call_receipts.c.provider_task_id == sa.any_(sa.bindparam("task_ids", type_=pg.ARRAY(sa.Text))),
)


def receipts_of(connection: sa.Connection, job_id: UUID, *, generation: int) -> list[str]:
    """Task ids this job's call is known to have, whoever learned them."""
    rows = connection.execute(RECEIPTS_OF, {"job_id": job_id, "generation": generation})
    return [row.provider_task_id for row in rows]


def unowned(connection: sa.Connection, kind: str, task_ids: Sequence[str]) -> list[str]:
    """Those of `task_ids` that no job has a receipt for, in the order given."""
    rows = connection.execute(KNOWN_TASKS, {"kind": kind, "task_ids": list(task_ids)})
    owned = {row.provider_task_id for row in rows}
    return [task_id for task_id in task_ids if task_id not in owned]
