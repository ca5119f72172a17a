"""Second tries: another paid call once the last is known to have ended, the same work on a larger machine.

Each is one guarded statement. A call is created anew only by whoever holds the proof that the last one ended, and at
most twice an operation; a job is sent to a larger machine once.
"""

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from store.events import data_bind, with_event
from store.guards import ATTEMPT_LEFT, CLOCK, HELD, POLL_HELD, TASK_KNOWN, to_state
from store.jobs import NO_LEASE, NO_POLL, queued_again
from store.models import Lease, PollLease
from store.states import State
from store.tables import jobs

RECREATES = 2

_BUDGET = sa.and_(ATTEMPT_LEFT, jobs.c.run_id.is_not(None), jobs.c.recreates < sa.literal_column(str(RECREATES)))
_ONCE_MORE: dict[str, Any] = {"attempt": jobs.c.attempt + 1, "recreates": jobs.c.recreates + 1}
_LARGE: sa.ColumnClause[str] = sa.literal_column("'large'")
_NOT_LARGE = jobs.c.queue != _LARGE

RECREATE_POLLED = queued_again(sa.and_(POLL_HELD, TASK_KNOWN, _BUDGET), "recreated", **NO_POLL, **_ONCE_MORE)
RECREATE_HELD = queued_again(sa.and_(HELD, TASK_KNOWN, _BUDGET), "recreated", **_ONCE_MORE)


def recreate(
    connection: sa.Connection, lease: Lease | PollLease, *, expected_attempt: int, delay: timedelta, why: str
) -> bool:
    """The provider itself says that the last call ended without a result: queue the step for one more.

    False when its budget is spent, no attempt is left, it is no step of a run, or it is no longer held.
    """
    statement = RECREATE_HELD if isinstance(lease, Lease) else RECREATE_POLLED
    binds = {**lease.binds, "expected_attempt": expected_attempt, "delay": delay, "event_data": {"why": why}}
    return connection.execute(statement, binds).one_or_none() is not None


# Only work of our own runs again; a call that may be under way is resolved, never sent to another machine to repeat.
RUN_LARGER = queued_again(
    sa.and_(HELD, ATTEMPT_LEFT, _NOT_LARGE, jobs.c.mode == sa.literal_column("'local'")),
    "escalated",
    attempt=jobs.c.attempt + 1,
    queue=_LARGE,
)


def run_larger(connection: sa.Connection, lease: Lease, *, expected_attempt: int, why: str) -> bool:
    """Out of memory in a local handler: the same again on a larger machine. False when it was there already."""
    binds = {**lease.binds, "expected_attempt": expected_attempt, "delay": timedelta(0), "event_data": {"why": why}}
    return connection.execute(RUN_LARGER, binds).one_or_none() is not None


IMPORT_LARGER = with_event(
    sa.update(jobs)
    .where(HELD, TASK_KNOWN, _NOT_LARGE)
    .values(
        status=to_state(State.WAITING),
        next_poll_at=CLOCK,
        next_check_at=jobs.c.deadline_at,
        result_known_at=None,
        queue=_LARGE,
        **NO_LEASE,
    ),
    "escalated",
    data=data_bind(),
)[1]


def import_larger(connection: sa.Connection, lease: Lease, *, why: str) -> bool:
    """Out of memory while importing: the next import is a larger machine's. False when this one was."""
    return connection.execute(IMPORT_LARGER, {**lease.binds, "event_data": {"why": why}}).one_or_none() is not None
