"""A process that goes gives back what it holds: one statement for all of it, however much that is."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.models import Lease

_HELD = """
  unnest(:ids, :epochs, :tokens) as held (id, epoch, token)
  where j.id = held.id and j.epoch = held.epoch and j.lease_token = held.token and j.status || '' = 'running'
"""

_TYPES = (
    sa.bindparam("ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("epochs", type_=pg.ARRAY(sa.Integer)),
    sa.bindparam("tokens", type_=pg.ARRAY(pg.UUID)),
)

# No call left, or none that running again could double: queued at once, and no attempt is spent on a deploy.
HAND_OVER = statement(
    f"""
    with moved as (
      update callkeeper.jobs j
      set status = 'queued', available_at = clock_timestamp(), turn = null, attempt_deadline_at = null,
        queue_deadline_at = least(clock_timestamp() + queue_limit, deadline_at),
        next_check_at = least(clock_timestamp() + interval '1 minute', deadline_at),
        lease_owner = null, lease_token = null, lease_until = null, provider_task_id = null,
        provider_call_started_at = null, call_key = null, call_handle = null, resolve_by = null,
        result_known_at = null, poll_misses = 0, import_failures = 0, progress = null, event_seq = event_seq + 1
      from {_HELD} and (j.provider_call_started_at is null or (j.retry_safe and j.mode <> 'async'))
      returning j.id, j.event_seq, j.attempt, j.epoch, j.queue, j.actor
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
      select id, event_seq, 'requeued', attempt, epoch, '{{"why": "shutdown"}}' from moved
    ), addressed as materialized (
      select gen_random_uuid() as message_id, id, queue, actor from moved
    ), sent as (
      insert into dramatiq.queue (message_id, queue_name, state, message, available_at)
      select message_id, queue, 'queued', jsonb_build_object(
        'queue_name', queue, 'actor_name', actor, 'args', jsonb_build_array(id), 'kwargs', '{{}}'::jsonb,
        'options', '{{}}'::jsonb, 'message_id', message_id,
        'message_timestamp', floor(extract(epoch from clock_timestamp()) * 1000)::bigint
      ), clock_timestamp() from addressed
    )
    select id, pg_notify('dramatiq.' || queue || '.enqueue', '') from moved
    """
).bindparams(*_TYPES)


def hand_over(connection: sa.Connection, leases: Sequence[Lease]) -> int:
    """Queue again, at once and without spending an attempt, what of these may run again; how many that were."""
    return len(connection.execute(HAND_OVER, _binds(leases)).all())


def _binds(leases: Sequence[Lease]) -> dict[str, object]:
    return {
        "ids": [lease.job_id for lease in leases],
        "epochs": [lease.epoch for lease in leases],
        "tokens": [lease.token for lease in leases],
    }
