"""The line of a queue: whose turn it is. A message is the right to start the next job in line, not its own.

A job's `turn` is written once, when it is submitted: one step of 1/weight behind its user's last, and never before the
head of the line. So users take turns, whoever submitted how much and when; no claim counts or remembers anything. A
priority is worth ten turns a step: what came later with a higher one passes a job until the line has moved so far.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.claimed import as_claimed
from store.guards import CLOCK, CLOCK_STANDS, NOW, is_state, statement
from store.jobs import STARTED, claiming
from store.models import ClaimedJob
from store.queue import wake
from store.states import State
from store.tables import budgets, jobs

MOST_PRIORITY = 100

_FRONT = """(
  select line.id from callkeeper.jobs line
  where line.queue = (select own.queue from callkeeper.jobs own where own.id = :job_id)
    and line.parked_on is null and line.status = 'queued' and line.turn is not null and line.available_at <= now()
    and not line.blocked
    and line.actor = any(:actors)
    and (
      line.queue_deadline_at > now() or exists (
        select from callkeeper.provider_gates g where g.provider_kind = line.provider_kind and g.stops_clocks
      )
    )
  order by line.parked_on, line.turn
  limit 1{lock}
)"""
# The next in line that can start, locked; nobody waits for a row that somebody else is about to start.
NEXT = _FRONT.format(lock=" for update of line skip locked")
ACTORS = sa.bindparam("actors", type_=pg.ARRAY(sa.Text))

_chosen = statement(NEXT).bindparams(ACTORS).columns(sa.column("id", pg.UUID)).cte("chosen")

# No budget that a start has to ask: one statement is the whole claim, and this is all that budgets cost it.
_UNLIMITED = ~sa.exists().where(
    budgets.c.measure.in_([sa.literal_column(f"'{word}'") for word in ("concurrency", "rate", "spend")])
)

CLAIM_NEXT = claiming(
    sa.update(jobs)
    .where(
        jobs.c.id == sa.func.coalesce(sa.select(_chosen.c.id).scalar_subquery(), sa.bindparam("job_id", type_=pg.UUID)),
        is_state(State.QUEUED),
        jobs.c.available_at <= NOW,
        sa.or_(jobs.c.queue_deadline_at > NOW, CLOCK_STANDS),
        jobs.c.parked_on.is_(None),
        ~jobs.c.blocked,
        _UNLIMITED,
    )
    .values(STARTED),
    "started",
)


def claim_next(
    connection: sa.Connection, job_id: UUID, *, actors: Sequence[str], owner: str, term: timedelta
) -> ClaimedJob | None:
    """The next in the line where `job_id` stands, ours for `term`; that job itself if nobody stands there.

    `actors`: what this process can run. None when there is nothing to start, or a budget must be asked first.
    """
    binds = {"job_id": job_id, "actors": list(actors), "owner": owner, "term": term}
    row = connection.execute(CLAIM_NEXT, binds).one_or_none()
    return None if row is None else as_claimed(row, owner)


# What was delayed or is to be tried again stands in no line. It starts by its own message, if nobody is in its way;
# otherwise it gets in line here, with a message, since its own may have started somebody else.
_placed = (
    statement(
        """
        with due as materialized (
          select id, queue, user_id, priority, available_at from callkeeper.jobs
          where status = 'queued' and turn is null and parked_on is null and not blocked
            and available_at <= now() - interval '1 second'
          order by available_at
          limit :at_most
          for update skip locked
        ), ripe as (
          select *, row_number() over (partition by queue, coalesce(user_id, '') order by available_at) - 1 as behind
          from due
        ), placed as materialized (
          select ripe.id, ripe.priority, ripe.behind + callkeeper.next_turn(ripe.queue, ripe.user_id) as base from ripe
        )
        update callkeeper.jobs j
        set turn = placed.base - 10 * placed.priority
        from placed
        where j.id = placed.id and j.status = 'queued' and j.turn is null and j.available_at <= now()
        returning j.id, j.queue, j.actor
        """
    )
    .columns(sa.column("id", pg.UUID), sa.column("queue", sa.Text), sa.column("actor", sa.Text))
    .cte("moved")
)
_sent, _notify = wake(_placed, queue=_placed.c.queue, actor=_placed.c.actor, available_at=CLOCK)
RIPEN = sa.select(_placed.c.id, _notify).add_cte(_sent)


def ripen(connection: sa.Connection, *, at_most: int = 200) -> int:
    """Delayed and retried jobs that have been due for a second get in line; how many did."""
    return len(connection.execute(RIPEN, {"at_most": at_most}).all())


# A claim takes no row that another claimer holds, and sees none that came after it began: it may find nobody while its
# own job was started by the message of one that still stands there. This looks again, later and without locks.
_standing = (
    statement(f"select j.id, j.queue, j.actor from callkeeper.jobs j where j.id = {_FRONT.format(lock='')}")
    .bindparams(sa.bindparam("job_id", type_=pg.UUID), ACTORS)
    .columns(sa.column("id", pg.UUID), sa.column("queue", sa.Text), sa.column("actor", sa.Text))
    .cte("standing")
)
_SOON: sa.ColumnClause[Any] = sa.literal_column("clock_timestamp() + interval '1 second'")
_sent, _notify = wake(_standing, queue=_standing.c.queue, actor=_standing.c.actor, available_at=_SOON)
PASS_ON = sa.select(_standing.c.id, _notify).add_cte(_sent)


def pass_on(connection: sa.Connection, job_id: UUID, *, actors: Sequence[str]) -> bool:
    """After a claim that found nobody: if somebody stands in line all the same, a message for them in a second."""
    return connection.execute(PASS_ON, {"job_id": job_id, "actors": list(actors)}).one_or_none() is not None
