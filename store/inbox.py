"""Callbacks: stored once with the message that applies them, before anybody says thank you."""

from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import CLOCK, statement
from store.queue import wake
from store.tables import webhook_deliveries

_received = (
    pg.insert(webhook_deliveries)
    .values(
        provider_kind=sa.bindparam("kind"),
        delivery_id=sa.bindparam("delivery_id"),
        job_id=sa.bindparam("job_id", type_=pg.UUID),
        call_generation=sa.bindparam("generation", type_=sa.Integer),
        provider_task_id=sa.bindparam("task_id"),
    )
    .on_conflict_do_nothing(index_elements=["provider_kind", "delivery_id"])
    .returning(webhook_deliveries.c.id)
    .cte("received")
)
_sent, _notify = wake(
    _received,
    queue=sa.literal_column("'results'"),
    actor=sa.literal_column("'apply_callback'"),
    available_at=CLOCK,
)
RECEIVE = sa.select(_received.c.id, _notify).add_cte(_sent)


def receive(
    connection: sa.Connection,
    kind: str,
    delivery_id: str,
    task_id: str,
    *,
    job_id: UUID | None = None,
    generation: int | None = None,
) -> bool:
    """Keep a verified callback and wake who applies it, in one statement. False when it had come before."""
    binds = {
        "kind": kind,
        "delivery_id": delivery_id,
        "task_id": task_id,
        "job_id": job_id,
        "generation": generation,
    }
    return connection.execute(RECEIVE, binds).one_or_none() is not None


@dataclass(frozen=True, slots=True)
class Delivery:
    """A callback that is to be applied. `job_id` and `generation` are what our own signed token in its URL said."""

    id: int
    kind: str
    task_id: str
    job_id: UUID | None
    generation: int | None


UNAPPLIED = sa.select(
    webhook_deliveries.c.id,
    webhook_deliveries.c.provider_kind,
    webhook_deliveries.c.provider_task_id,
    webhook_deliveries.c.job_id,
    webhook_deliveries.c.call_generation,
).where(webhook_deliveries.c.id == sa.bindparam("delivery"), webhook_deliveries.c.applied_at.is_(None))


def unapplied(connection: sa.Connection, delivery: int) -> Delivery | None:
    row = connection.execute(UNAPPLIED, {"delivery": delivery}).one_or_none()
    return None if row is None else Delivery(*row)


# A receipt for the call the token names, if that call is real and its task id is not known yet; then poll now, by
# whichever way the row knows the task. All of it in one statement, so that a crash leaves the delivery unapplied.
APPLY = statement(
    """
    with delivery as materialized (
      select id, provider_kind, provider_task_id, job_id, call_generation from callkeeper.webhook_deliveries
      where id = :delivery and applied_at is null
      for update
    ), named as materialized (
      select j.id, j.provider_kind, d.provider_task_id, j.call_generation, j.call_key, j.epoch, j.call_handle,
        j.provider_task_id is null and j.status in ('failed', 'timed_out', 'cancelled') as orphan
      from delivery d join callkeeper.jobs j on j.id = d.job_id
      where j.provider_kind = d.provider_kind and j.call_generation = d.call_generation and j.call_key is not null
        and (j.provider_task_id is null or j.provider_task_id = d.provider_task_id)
      for no key update of j
    ), receipt as (
      insert into callkeeper.call_receipts
        (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)
      select id, provider_kind, provider_task_id, call_generation, call_key, 'callback', epoch from named
      where not exists (
        select from callkeeper.call_receipts r
        where r.provider_kind = named.provider_kind and r.provider_task_id = named.provider_task_id
      )
      on conflict do nothing
      returning job_id
    ), watch as (
      insert into callkeeper.upstream_watches
        (job_id, provider_kind, provider_task_id, call_generation, call_handle, call_started_at, check_at)
      select j.id, n.provider_kind, n.provider_task_id, n.call_generation, j.call_handle, j.provider_call_started_at,
        clock_timestamp()
      from named n join callkeeper.jobs j on j.id = n.id
      where j.status in ('failed', 'timed_out', 'cancelled') and j.provider_task_id is null
      on conflict do nothing
    ), cancellation as (
      insert into callkeeper.consequences (key, job_id, effect, body)
      select 'cancel-upstream:' || named.id || ':' || provider_task_id, named.id, 'cancel_upstream',
        jsonb_build_object('kind', provider_kind, 'task_id', provider_task_id, 'handle', call_handle)
      from named join receipt on receipt.job_id = named.id
      where named.orphan and coalesce((named.call_handle ->> 'cancels')::boolean, true)
      on conflict (key) do nothing
    ), known as materialized (
      select j.id from delivery d
      join callkeeper.jobs j on j.provider_kind = d.provider_kind and j.provider_task_id = d.provider_task_id
      union select id from named
    ), hinted as (
      update callkeeper.jobs j
      set next_poll_at = clock_timestamp()
      from known
      where j.id = known.id and j.status || '' = 'waiting' and j.next_poll_at > now()
      returning j.id
    )
    update callkeeper.webhook_deliveries w
    set applied_at = clock_timestamp(), outcome = case
      when exists (select from hinted) then 'polled' when exists (select from known) then 'known' else 'unknown_task'
    end
    from delivery d
    where w.id = d.id and w.applied_at is null
    returning w.outcome
    """
).bindparams(sa.bindparam("delivery", type_=sa.BigInteger))


def apply(connection: sa.Connection, delivery: int) -> str | None:
    """Turn a callback into a poll: `polled`, `known` (nothing left to poll) or `unknown_task`; None if done before."""
    return connection.execute(APPLY, {"delivery": delivery}).scalar_one_or_none()
