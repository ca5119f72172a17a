"""What repairs share: a lock that is a row and ends by itself, and the repairs of the store's own drift."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store import reads
from store.guards import statement

LOCK = statement(
    """
    insert into callkeeper.passes (name, last_started_at, locked_until, lock_token)
    values (:name, clock_timestamp(), clock_timestamp() + :span, gen_random_uuid())
    on conflict (name) do update
    set last_started_at = clock_timestamp(), locked_until = clock_timestamp() + :span, lock_token = gen_random_uuid()
    where callkeeper.passes.locked_until is null or callkeeper.passes.locked_until <= now()
    returning lock_token
    """
).bindparams(sa.bindparam("span", type_=pg.INTERVAL))

UNLOCK = statement(
    "update callkeeper.passes set locked_until = null, lock_token = null where name = :name and lock_token = :token"
).bindparams(sa.bindparam("token", type_=pg.UUID))


def lock(connection: sa.Connection, name: str, *, span: timedelta) -> UUID | None:
    """The right to run this one pass for `span`; None while somebody else has it."""
    return connection.execute(LOCK, {"name": name, "span": span}).scalar_one_or_none()


def unlock(connection: sa.Connection, name: str, token: UUID) -> None:
    """Give the right back; it is somebody else's already if the span is over."""
    connection.execute(UNLOCK, {"name": name, "token": token})


# A reservation whose job has ended: charged if it completed, else given back, once, and told. No settlement leaves one;
# a hand in the database, or a release with a fault, may.
SETTLE_HOLDS = statement(
    """
    with orphan as materialized (
      select u.job_id, u.account_id, u.reserved_subscription, u.reserved_topup, j.status = 'completed' as earned
      from callkeeper.usage_logs u join callkeeper.jobs j on j.id = u.job_id
      where u.status = 'reserved' and j.status in ('completed', 'failed', 'timed_out', 'cancelled')
      order by u.job_id
      limit 100
      for update of u skip locked
    ), settled as (
      update callkeeper.usage_logs u
      set status = case when o.earned then 'committed' else 'refunded' end,
        committed_subscription = case when o.earned then o.reserved_subscription else 0 end,
        committed_topup = case when o.earned then o.reserved_topup else 0 end, settled_at = clock_timestamp()
      from orphan o
      where u.job_id = o.job_id and u.status = 'reserved'
      returning u.job_id, u.account_id, o.earned, u.reserved_subscription, u.reserved_topup
    ), sums as (
      select account_id, sum(reserved_subscription) as subscription, sum(reserved_topup) as topup,
        coalesce(sum(reserved_subscription) filter (where earned), 0) as earned_subscription,
        coalesce(sum(reserved_topup) filter (where earned), 0) as earned_topup
      from settled group by account_id
    ), paid as (
      update callkeeper.accounts a
      set reserved_subscription = a.reserved_subscription - s.subscription, reserved_topup = a.reserved_topup - s.topup,
        balance_subscription = a.balance_subscription + s.subscription - s.earned_subscription,
        balance_topup = a.balance_topup + s.topup - s.earned_topup,
        committed_subscription = a.committed_subscription + s.earned_subscription,
        committed_topup = a.committed_topup + s.earned_topup
      from sums s
      where a.id = s.account_id
    ), told as (
      insert into callkeeper.alerts (subject, details)
      select 'hold_without_open_job', jsonb_build_object('jobs', jsonb_agg(job_id), 'count', count(*))
      from settled having count(*) > 0
      on conflict (subject) do update
      set times = callkeeper.alerts.times + 1, last_at = clock_timestamp(), details = excluded.details,
        resolved_at = null
    )
    select count(*) from settled
    """
)


def settle_holds(connection: sa.Connection) -> int:
    """Settle up to 100 reservations whose job has ended; how many."""
    return int(connection.execute(SETTLE_HOLDS).scalar_one())


# An open job that should have a reservation and has none. Nothing is to be settled; somebody should know.
WITHOUT_HOLD = statement(
    """
    select j.id as job_id, j.price, j.job_type from callkeeper.jobs j
    where j.status in ('queued', 'running', 'waiting') and j.account_id is not null
      and not exists (select from callkeeper.usage_logs u where u.job_id = j.id and u.status = 'reserved')
    limit 100
    """
)


def without_hold(connection: sa.Connection) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(WITHOUT_HOLD).mappings()]


# Messages that wake somebody for a job that is no more, or has ended. One finds nothing to do; many fill the queue.
TIDY_MESSAGES = statement(
    """
    delete from dramatiq.queue where message_id in (
      select m.message_id from dramatiq.queue m
      where m.state = 'queued' and m.available_at < now() - interval '10 minutes'
        and m.message ->> 'actor_name' in ('start_call', 'run_sync_call', 'run_handler', 'import_result')
        and m.message -> 'args' ->> 0 ~ '^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$'
        and not exists (
          select from callkeeper.jobs j
          where j.id = case when m.message -> 'args' ->> 0 ~ '^[0-9a-f-]{36}$'
              then cast(m.message -> 'args' ->> 0 as uuid) end
            and j.status in ('queued', 'running', 'waiting')
        )
      limit 1000
      for update skip locked
    ) and state = 'queued'
    """
)


def tidy_messages(connection: sa.Connection) -> int:
    """Take away up to 1,000 stale messages of jobs that are not open; how many."""
    return connection.execute(TIDY_MESSAGES).rowcount


PATIENCE = sa.text("select set_config('statement_timeout', :milliseconds, true)")


def violations(connection: sa.Connection, *, seconds: float) -> list[Mapping[str, Any]]:
    """Everything the audit view finds, with more time than an ordinary statement has. For a transaction of its own."""
    connection.execute(PATIENCE, {"milliseconds": str(int(seconds * 1000))})
    return reads.violations(connection)
