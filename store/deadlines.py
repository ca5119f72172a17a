"""Deadlines are columns, so that any process can end what is late, whoever holds it and however it hangs.

`deadline_at` bounds the job from its first start, `attempt_deadline_at` the attempt from its claim. Neither passes
while a provider account stands closed.
"""

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa

from store.guards import ATTEMPT_LEFT, CLOCK_STANDS, DUE_BY, NO_CALL, NOW, is_state
from store.jobs import AT_ONCE, ONCE_MORE, queued_again
from store.states import State
from store.tables import jobs


@dataclass(frozen=True, slots=True)
class Overdue:
    """A running job that is late. `whole_job`: past its own deadline, not only that of its attempt."""

    job_id: UUID
    epoch: int
    attempt: int
    whole_job: bool


OVERDUE = (
    sa.select(jobs.c.id, jobs.c.epoch, jobs.c.attempt, (jobs.c.deadline_at <= NOW).label("whole_job"))
    .where(is_state(State.RUNNING), DUE_BY <= NOW, ~CLOCK_STANDS)
    .limit(sa.bindparam("at_most"))
)


def overdue(connection: sa.Connection, *, at_most: int = 200) -> list[Overdue]:
    """Running jobs past a deadline. A hint only: every act on one repeats its guard."""
    return [Overdue(*row) for row in connection.execute(OVERDUE, {"at_most": at_most})]


# What never left, or may run twice: the same as after a lost lease.
_MAY_RUN_AGAIN = sa.or_(NO_CALL, sa.and_(jobs.c.retry_safe, jobs.c.mode != sa.literal_column("'async'")))
_ATTEMPT_OVERDUE = sa.and_(
    jobs.c.id == sa.bindparam("held_id"),
    jobs.c.epoch == sa.bindparam("held_epoch"),
    is_state(State.RUNNING),
    jobs.c.attempt_deadline_at <= NOW,
    jobs.c.deadline_at > NOW,
    ~CLOCK_STANDS,
)
REQUEUE_OVERDUE = queued_again(
    sa.and_(_ATTEMPT_OVERDUE, ATTEMPT_LEFT, _MAY_RUN_AGAIN),
    "requeued",
    attempt=jobs.c.attempt + 1,
    retry_safe=sa.or_(ONCE_MORE, sa.and_(jobs.c.retry_safe, NO_CALL)),
)


def requeue_overdue(connection: sa.Connection, one: Overdue) -> bool:
    """An attempt that is late, of a job that may run again: back to the queue, one attempt counted. False if not so."""
    binds = {
        "held_id": one.job_id,
        "held_epoch": one.epoch,
        "expected_attempt": one.attempt,
        "delay": AT_ONCE,
        "event_data": {"why": "attempt_deadline_exceeded"},
    }
    return connection.execute(REQUEUE_OVERDUE, binds).one_or_none() is not None
