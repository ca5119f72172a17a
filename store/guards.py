"""The conditions that stand in the WHERE of every write, each with a name.

States are literals, never binds: a bound state hides the partial indexes from a generic plan. Where many rows are
written by their ids, having been chosen before, the repeated guard reads `status || ''`: the same word, and no partial
index's. Until statistics know of a burst, a plan by such an index compares each chosen row with all that are open.
"""

import sqlalchemy as sa

from store.states import OPEN, State
from store.tables import jobs, provider_gates

NOW = sa.func.now()
CLOCK = sa.func.clock_timestamp()


def is_state(*states: State) -> sa.ColumnElement[bool]:
    words: list[sa.ColumnClause[str]] = [sa.literal_column(f"'{state}'") for state in states]
    return jobs.c.status == words[0] if len(words) == 1 else jobs.c.status.in_(words)


def to_state(state: State) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{state}'")


IS_OPEN = is_state(*OPEN)

HELD = sa.and_(
    jobs.c.id == sa.bindparam("held_id"),
    jobs.c.epoch == sa.bindparam("held_epoch"),
    jobs.c.lease_token == sa.bindparam("held_token"),
    is_state(State.RUNNING),
)

POLL_HELD = sa.and_(
    jobs.c.id == sa.bindparam("held_id"),
    jobs.c.epoch == sa.bindparam("held_epoch"),
    jobs.c.poll_token == sa.bindparam("held_token"),
    is_state(State.WAITING),
)

LAPSED = sa.and_(
    jobs.c.id == sa.bindparam("held_id"),
    jobs.c.epoch == sa.bindparam("held_epoch"),
    is_state(State.RUNNING),
    jobs.c.lease_until < NOW,
)

NO_CALL = jobs.c.provider_call_started_at.is_(None)
CALL_STARTED = jobs.c.provider_call_started_at.is_not(None)
NO_TASK = jobs.c.provider_task_id.is_(None)
TASK_KNOWN = jobs.c.provider_task_id.is_not(None)
# A running or waiting job is late from here on; least() passes over what is null.
DUE_BY = sa.func.least(jobs.c.deadline_at, jobs.c.attempt_deadline_at)
ATTEMPT_LEFT = sa.and_(jobs.c.attempt == sa.bindparam("expected_attempt"), jobs.c.attempt < jobs.c.max_attempts)

# While a provider account is closed by an outage or for an operator, the clocks of its kind's jobs stand still.
CLOCK_STANDS = sa.exists().where(
    provider_gates.c.provider_kind == jobs.c.provider_kind, provider_gates.c.stops_clocks.is_(True)
)


def statement(sql: str) -> sa.TextClause:
    """SQL as text without its indentation: psycopg keeps what it has parsed only of statements below 4 KiB."""
    return sa.text(" ".join(sql.split()))
