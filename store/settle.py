"""The settlement: status, outcome, credits, event, signals, notice and consequences commit together or not at all.

Two statements in one transaction. The first is the guarded transition, and takes the job's row lock. The second runs
on a newer snapshot, so that it sees a signal that was committed while the first one waited for that lock. A step of a
run takes the run's lock between them, and then rolls the run up: two last steps that end at once make one run's end.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.exc import StatementError

from store import roll_up, submit
from store.aftermath import AFTERMATH
from store.engine import is_transient
from store.errors import LeaseLost
from store.guards import CLOCK, CLOCK_STANDS, DUE_BY, HELD, IS_OPEN, LAPSED, NOW, POLL_HELD, is_state
from store.hygiene import clean_json, clean_text
from store.jobs import NO_LEASE, NO_POLL
from store.leftovers import LEFT_BEHIND, OWE_EFFECTS, PERHAPS_PAID, outcome_of
from store.models import Lease, PollLease, Settlement
from store.states import State
from store.tables import jobs


def _end(*guard: sa.ColumnElement[bool]) -> Any:
    return (
        sa.update(jobs)
        .where(*guard)
        .values(
            status=sa.bindparam("status"),
            finished_at=CLOCK,
            next_check_at=None,
            parked_on=None,
            event_seq=jobs.c.event_seq + 1,
            result=sa.bindparam("result", type_=pg.JSONB(none_as_null=True)),
            error_code=sa.bindparam("error_code"),
            error_message=sa.bindparam("error_message"),
            progress=sa.case(
                (sa.bindparam("status", type_=sa.Text) == sa.literal_column("'completed'"), 1.0),
                else_=jobs.c.progress,
            ),
            **NO_LEASE,
            **NO_POLL,
        )
        .returning(jobs.c.id, jobs.c.effects, jobs.c.run_id, jobs.c.step, jobs.c.stage)
    )


# What the driver, the server or Python itself may say of words that cannot be written down.
_UNWRITABLE = (StatementError, ValueError, TypeError, RecursionError)

_AS_SEEN = (jobs.c.id == sa.bindparam("held_id"), jobs.c.epoch == sa.bindparam("held_epoch"))
_QUEUED = is_state(State.QUEUED)
_AT_REST = sa.or_(_QUEUED, sa.and_(is_state(State.WAITING), jobs.c.provider_task_id.is_not(None)))
_PAST_DEADLINE = sa.or_(sa.and_(_QUEUED, jobs.c.queue_deadline_at <= NOW), DUE_BY <= NOW)

END_HELD = _end(HELD)
END_POLLED = _end(POLL_HELD)
END_LAPSED = _end(LAPSED)
END_QUEUED = _end(jobs.c.id == sa.bindparam("held_id"), _QUEUED)
END_AT_REST = _end(jobs.c.id == sa.bindparam("held_id"), _AT_REST)
END_OVERDUE = _end(*_AS_SEEN, IS_OPEN, _PAST_DEADLINE, ~CLOCK_STANDS)
END_EXHAUSTED = _end(
    *_AS_SEEN, is_state(State.WAITING), jobs.c.reconcile_attempts >= sa.bindparam("cap"), ~CLOCK_STANDS
)
# What nobody can run or ask about: queued, or waiting and not being asked about, and past its threshold.
END_STRANDED = _end(
    *_AS_SEEN,
    is_state(State.QUEUED, State.WAITING),
    sa.func.coalesce(jobs.c.provider_call_started_at, sa.func.greatest(jobs.c.created_at, jobs.c.available_at))
    + jobs.c.stale_after
    <= NOW,
    ~CLOCK_STANDS,
)


def _settle(
    connection: sa.Connection,
    end: Any,
    binds: Mapping[str, Any],
    outcome: Settlement,
    *,
    upstream_ended: bool,
) -> bool:
    row = _end_row(connection, end, binds, outcome)
    if row is None:
        return False
    if row.run_id is not None:
        roll_up.lock_run(connection, row.run_id)
        _add_to_run(connection, row, outcome)
    _follow_up(connection, row, outcome, upstream_ended=upstream_ended)
    if row.run_id is not None:
        settle_run(connection, row.run_id)
    return True


def _end_row(connection: sa.Connection, end: Any, binds: Mapping[str, Any], outcome: Settlement) -> Any:
    completed = outcome.status is State.COMPLETED
    return connection.execute(
        end,
        {
            **binds,
            "status": str(outcome.status),
            "result": clean_json(outcome.result) if completed else None,
            "error_code": None if completed else _code(outcome),
            "error_message": None if completed else clean_text(outcome.error_message),
        },
    ).one_or_none()


def _follow_up(connection: sa.Connection, row: Any, outcome: Settlement, *, upstream_ended: bool) -> None:
    completed = outcome.status is State.COMPLETED
    event_data = dict(outcome.details)
    if not completed:
        event_data["error_code"] = _code(outcome)
    connection.execute(
        AFTERMATH,
        {
            "job_id": row.id,
            "completed": completed,
            "abandons_call": not upstream_ended,
            "cost": outcome.cost,
            "event_data": clean_json(event_data),
            "assets": [{"position": position, **asdict(asset)} for position, asset in enumerate(outcome.assets)],
            "provider_id": outcome.provider_id,
        },
    )
    _leave_behind(connection, row, outcome, upstream_ended=upstream_ended)


def _add_to_run(connection: sa.Connection, row: Any, outcome: Settlement) -> None:
    """What a completed step says of itself, and the steps it adds. Raises SubmitRefused when they cannot be paid."""
    if outcome.warnings:
        roll_up.keep_warnings(connection, row, outcome.warnings)
    if outcome.steps:
        roll_up.lock_payer(connection, row.run_id)
    for step in outcome.steps:
        submit.submit(connection, step)
    if outcome.steps_first:
        added = [step.place.step for step in outcome.steps if step.place is not None]
        roll_up.wait_for_more(connection, row.run_id, row.step, added)


STOPPED = Settlement(status=State.CANCELLED, error_code="run_ended", error_message="the run ended without this step")


def settle_run(connection: sa.Connection, run_id: UUID) -> str | None:
    """Under the run's lock: roll it up; if it can only end, end what rests, tell the rest. Its status, None: no change.

    Whoever settles the last open job settles the run.
    """
    rolled = roll_up.roll_up(connection, run_id)
    if rolled is None or rolled.ending is None or not rolled.open:
        return None if rolled is None else rolled.status
    ended = 0
    for job_id in roll_up.at_rest(connection, run_id):
        row = _end_row(connection, END_AT_REST, {"held_id": job_id}, STOPPED)
        if row is not None:
            _follow_up(connection, row, STOPPED, upstream_ended=False)
            ended += 1
    roll_up.signal_rest(connection, run_id)
    if ended:
        rolled = roll_up.roll_up(connection, run_id) or rolled
    return rolled.status


def _leave_behind(connection: sa.Connection, row: Any, outcome: Settlement, *, upstream_ended: bool) -> None:
    """What only some endings owe, each by a statement of its own."""
    perhaps_paid = outcome.may_be_paid or not upstream_ended or outcome.error_code in PERHAPS_PAID
    if outcome.status is not State.COMPLETED and perhaps_paid:
        connection.execute(LEFT_BEHIND, {"job_id": row.id})
    owed = outcome_of(outcome.status)
    if row.effects.get(owed):
        connection.execute(OWE_EFFECTS, {"job_id": row.id, "outcome": owed})


def _code(outcome: Settlement) -> str:
    """A code is a word of ours, in ASCII; whatever else comes is made to look like one."""
    return (outcome.error_code or "unknown").encode("ascii", "replace").decode().replace("\x00", "?")[:64]


def _settle_surely(
    connection: sa.Connection,
    end: Any,
    binds: Mapping[str, Any],
    outcome: Settlement,
    *,
    upstream_ended: bool,
) -> bool:
    """A failure can always be written: if its words cannot, its code alone is."""
    try:
        with connection.begin_nested():
            return _settle(connection, end, binds, outcome, upstream_ended=upstream_ended)
    except _UNWRITABLE as error:
        if outcome.status is State.COMPLETED or is_transient(error):
            raise
        bare = Settlement(status=outcome.status, error_code=outcome.error_code)
        return _settle(connection, end, binds, bare, upstream_ended=upstream_ended)


def complete(connection: sa.Connection, lease: Lease, outcome: Settlement) -> None:
    """Running → completed, by its holder. Raises LeaseLost."""
    if not _settle(connection, END_HELD, lease.binds, outcome, upstream_ended=True):
        raise LeaseLost(lease.job_id, "complete", epoch=lease.epoch, owner=lease.owner)


def end_held(connection: sa.Connection, lease: Lease, outcome: Settlement, *, upstream_ended: bool = True) -> None:
    """Running → failed, timed_out or cancelled, by its holder. Raises LeaseLost."""
    if not _settle_surely(connection, END_HELD, lease.binds, outcome, upstream_ended=upstream_ended):
        raise LeaseLost(lease.job_id, str(outcome.status), epoch=lease.epoch, owner=lease.owner)


def end_polled(connection: sa.Connection, lease: PollLease, outcome: Settlement, *, upstream_ended: bool) -> None:
    """Waiting → failed, timed_out or cancelled, by the holder of its poll. Raises LeaseLost."""
    if not _settle_surely(connection, END_POLLED, lease.binds, outcome, upstream_ended=upstream_ended):
        raise LeaseLost(lease.job_id, str(outcome.status), epoch=lease.epoch, owner=lease.owner)


def end_lapsed(connection: sa.Connection, job_id: UUID, *, epoch: int, outcome: Settlement) -> bool:
    """Running under a lapsed lease → failed. False when the lease lives again or somebody else decided."""
    binds = {"held_id": job_id, "held_epoch": epoch}
    return _settle_surely(connection, END_LAPSED, binds, outcome, upstream_ended=False)


def end_overdue(connection: sa.Connection, job_id: UUID, *, epoch: int, outcome: Settlement) -> bool:
    """Open and past its deadline → timed_out, whoever holds it. False when it is not (any more)."""
    binds = {"held_id": job_id, "held_epoch": epoch}
    return _settle_surely(connection, END_OVERDUE, binds, outcome, upstream_ended=False)


def end_exhausted(connection: sa.Connection, job_id: UUID, *, epoch: int, cap: int, outcome: Settlement) -> bool:
    """Waiting after `cap` failed looks → failed. False when it moved, has looks left, or its clock stands still."""
    binds = {"held_id": job_id, "held_epoch": epoch, "cap": cap}
    return _settle_surely(connection, END_EXHAUSTED, binds, outcome, upstream_ended=False)


def end_stranded(connection: sa.Connection, job_id: UUID, *, epoch: int, outcome: Settlement) -> bool:
    """At rest, past its threshold, and of a kind nobody knows → failed. False when it is not (any more)."""
    binds = {"held_id": job_id, "held_epoch": epoch}
    return _settle_surely(connection, END_STRANDED, binds, outcome, upstream_ended=False)


def end_queued(connection: sa.Connection, job_id: UUID, outcome: Settlement) -> bool:
    """Queued → failed, because it can never start. False when it is not queued (any more)."""
    return _settle_surely(connection, END_QUEUED, {"held_id": job_id}, outcome, upstream_ended=True)


def cancel_at_rest(connection: sa.Connection, job_id: UUID, outcome: Settlement) -> bool:
    """queued, or waiting with a known task → cancelled at once; upstream's cancel is owed. False otherwise."""
    return _settle_surely(connection, END_AT_REST, {"held_id": job_id}, outcome, upstream_ended=False)
