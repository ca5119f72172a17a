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
    DUE_BY,
    HELD,
    LAPSED,
    NO_CALL,
    NO_TASK,
    POLL_HELD,
    TASK_KNOWN,
    to_state,
)
from store.jobs import NO_LEASE, larger_if
from store.models import CallState, Lease, PollLease
from store.states import State
from store.tables import call_receipts, jobs

_ASYNC = jobs.c.mode == sa.literal_column("'async'")


# The pass looks when the call has gone stale: until then its worker, its polls and its callback have the word.
_WHEN_STALE = sa.func.least(DUE_BY, jobs.c.provider_call_started_at + jobs.c.stale_after)


def _interval(name: str) -> sa.BindParameter[timedelta]:
    return sa.bindparam(name, type_=pg.INTERVAL)


FIRST_CALL = (HELD, NO_CALL)


def starting(
    *guard: sa.ColumnElement[bool], also: Sequence[sa.ColumnElement[Any]] = ()
) -> tuple[sa.CTE, sa.Select[Any]]:
    """The intent of a call, a new generation of its job, where `guard` lets it begin; `also` returns more columns."""
    return with_event(
        sa.update(jobs)
        .where(*guard)
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
        *also,
        data=data_bind(),
    )


MARK_CALL_STARTED = starting(*FIRST_CALL)[1]


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
    return started(row)


def started(row: Any) -> CallState:
    """The call that a statement made by `starting` has begun."""
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
    .values(
        next_poll_at=CLOCK,
        next_check_at=_WHEN_STALE,
        # Only an import can have been too large: a create that was under way is resolved by anybody.
        queue=larger_if(sa.and_(sa.bindparam("larger", type_=sa.Boolean), jobs.c.result_known_at.is_not(None))),
        **_TO_WAITING,
    ),
    "recovered",
    jobs.c.provider_task_id,
)[1]


def resume_lost(connection: sa.Connection, job_id: UUID, *, epoch: int, larger: bool = False) -> bool:
    """A lapsed lease over a started asynchronous call: to waiting, poll (or find) now; nothing is created."""
    binds = {"held_id": job_id, "held_epoch": epoch, "larger": larger}
    return connection.execute(RESUME_LOST, binds).one_or_none() is not None


# Its next check stays: a result that cannot be imported is tried again often, and none of those tries is a pass's look.
_RESULT_LATER: dict[str, Any] = {"next_poll_at": CLOCK + _interval("look_in"), "result_known_at": None, **_TO_WAITING}

RETURN_RESULT = with_event(
    sa.update(jobs)
    .where(HELD, TASK_KNOWN)
    .values(poll_misses=jobs.c.poll_misses + sa.bindparam("missed", type_=sa.Integer), **_RESULT_LATER),
    "result_returned",
    data=data_bind(),
)[1]

RETURN_RESULT_COUNTED = with_event(
    sa.update(jobs)
    .where(HELD, TASK_KNOWN, jobs.c.import_failures + 1 < sa.bindparam("at_most", type_=sa.Integer))
    .values(import_failures=jobs.c.import_failures + 1, **_RESULT_LATER),
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


def return_result_counted(
    connection: sa.Connection, lease: Lease, *, at_most: int, look_in: timedelta, why: str
) -> bool:
    """The same for a file that came and cannot be used, which is counted.

    False when this would be failure number `at_most` (the job is still held, and to be failed), or no longer held.
    """
    binds = {**lease.binds, "at_most": at_most, "look_in": look_in, "event_data": {"why": why}}
    return connection.execute(RETURN_RESULT_COUNTED, binds).one_or_none() is not None


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
