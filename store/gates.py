"""Provider accounts closed for a while: by a rate limit, an outage, or an operator's problem (key, credit).

The gate is one row, so it holds for the fleet and survives every process. Deadlines of the jobs that had to wait for
an outage or an operator are moved by what they lost.
"""

from dataclasses import dataclass
from datetime import timedelta

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import CLOCK, NOW, statement
from store.tables import provider_gates

CLOSED_FOR = sa.select(
    provider_gates.c.reason, sa.extract("epoch", provider_gates.c.closed_until - CLOCK).label("seconds")
).where(
    provider_gates.c.provider_kind == sa.bindparam("kind"),
    provider_gates.c.account == sa.bindparam("account"),
    provider_gates.c.closed_until > NOW,
)


@dataclass(frozen=True, slots=True)
class Closed:
    """`seconds` until a call may be tried again."""

    reason: str
    seconds: float


def closed(connection: sa.Connection, kind: str, account: str) -> Closed | None:
    """Why this account cannot be called now; None when it can."""
    row = connection.execute(CLOSED_FOR, {"kind": kind, "account": account}).one_or_none()
    return None if row is None else Closed(row.reason, float(row.seconds))


# Closing again only ever lengthens. `closed_at` is kept while it stays closed: the clocks have stood since then.
CLOSE = statement(
    """
    insert into callkeeper.provider_gates as g
      (provider_kind, account, reason, closed_at, closed_until, failures, stops_clocks)
    values (:kind, :account, :reason, clock_timestamp(), clock_timestamp() + :span, 0, :stops_clocks)
    on conflict (provider_kind, account) do update
    set reason = case when g.closed_until > now() and g.stops_clocks then g.reason else excluded.reason end,
      closed_at = case when g.closed_until > now() or g.stops_clocks then g.closed_at else excluded.closed_at end,
      closed_until = greatest(g.closed_until, excluded.closed_until),
      stops_clocks = g.stops_clocks or excluded.stops_clocks
    """
).bindparams(sa.bindparam("span", type_=pg.INTERVAL), sa.bindparam("stops_clocks", type_=sa.Boolean))


def close(
    connection: sa.Connection, kind: str, account: str, *, reason: str, span: timedelta, stops_clocks: bool
) -> None:
    """No call starts for `span`. `stops_clocks`: its jobs lose no time by it (outage, operator; not a rate limit)."""
    connection.execute(
        CLOSE, {"kind": kind, "account": account, "reason": reason, "span": span, "stops_clocks": stops_clocks}
    )


COUNT_FAILURE = statement(
    """
    insert into callkeeper.provider_gates as g
      (provider_kind, account, reason, closed_at, closed_until, failures)
    values (:kind, :account, 'healthy', clock_timestamp(), clock_timestamp(), 1)
    on conflict (provider_kind, account) do update set failures = g.failures + 1
    returning failures
    """
)


def count_failure(connection: sa.Connection, kind: str, account: str) -> int:
    """One more request in a row that got no sense out of this account; how many that makes."""
    return int(connection.execute(COUNT_FAILURE, {"kind": kind, "account": account}).scalar_one())


# The account answered: open at once, and give its jobs back the time they stood still. The guard makes it a no-op,
# without a write, in the ordinary case.
REOPEN = statement(
    """
    with opened as (
      update callkeeper.provider_gates g
      set failures = 0, closed_until = least(closed_until, clock_timestamp()), stops_clocks = false, reason = 'healthy'
      from (
        select provider_kind, account, closed_at, stops_clocks from callkeeper.provider_gates
        where provider_kind = :kind and account = :account and (failures > 0 or stops_clocks)
        for update
      ) was
      where g.provider_kind = was.provider_kind and g.account = was.account and (g.failures > 0 or g.stops_clocks)
      returning was.closed_at, was.stops_clocks
    ), late as materialized (
      select j.id, clock_timestamp() - greatest(o.closed_at, j.created_at) as lost
      from opened o, callkeeper.jobs j
      where o.stops_clocks and j.status in ('queued', 'running', 'waiting') and j.provider_kind = :kind
      order by j.id
      for update of j
    ), moved as (
      update callkeeper.jobs j
      set deadline_at = j.deadline_at + late.lost, queue_deadline_at = j.queue_deadline_at + late.lost,
        attempt_deadline_at = j.attempt_deadline_at + late.lost
      from late
      where j.id = late.id and j.status || '' in ('queued', 'running', 'waiting')
      returning j.id, j.run_id, late.lost
    ), running as materialized (
      select r.id, m.lost
      from callkeeper.runs r
      join (select run_id, max(lost) as lost from moved where run_id is not null group by run_id) m on m.run_id = r.id
      where r.status = 'running'
      order by r.id
      for no key update of r
    ), given_back as (
      update callkeeper.runs r
      set deadline_at = r.deadline_at + running.lost
      from running
      where r.id = running.id and r.status = 'running'
    )
    select (select count(*) from opened where stops_clocks) as reopened, (select count(*) from moved) as moved
    """
)


def reopen(connection: sa.Connection, kind: str, account: str) -> int | None:
    """The account answers: how many jobs got their time back; None when it had not been closed for them."""
    row = connection.execute(REOPEN, {"kind": kind, "account": account}).one()
    return int(row.moved) if row.reopened else None


TROUBLED = sa.select(provider_gates.c.provider_kind, provider_gates.c.account).where(
    sa.or_(provider_gates.c.failures > 0, provider_gates.c.stops_clocks)
)


def troubled(connection: sa.Connection) -> set[tuple[str, str]]:
    """Accounts whose next good answer is news."""
    return {(row.provider_kind, row.account) for row in connection.execute(TROUBLED)}
