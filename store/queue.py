"""The queue's rows: written by us with the caller's connection, claimed and acknowledged in batches.

A message wakes a worker; it carries a job id and nothing else. Delays are rows: `available_at` holds a message back.
The names of table, columns and channels are dramatiq-postgres' own.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

SCHEMA = "dramatiq"
messages = sa.Table(
    "queue",
    sa.MetaData(schema=SCHEMA),
    sa.Column("message_id", pg.UUID, primary_key=True),
    sa.Column("queue_name", sa.Text, nullable=False),
    sa.Column("state", pg.ENUM("queued", "consumed", "rejected", name="state", schema=SCHEMA, create_type=False)),
    sa.Column("mtime", sa.DateTime(timezone=True)),
    sa.Column("message", pg.JSONB),
    sa.Column("position", sa.BigInteger),
    sa.Column("available_at", sa.DateTime(timezone=True), nullable=False),
    sa.Column("worker_id", pg.UUID),
    sa.Column("consumed_at", sa.DateTime(timezone=True)),
)


def _body(addressed: sa.CTE) -> sa.ColumnElement[Any]:
    """The message in Dramatiq's own words."""
    return sa.func.jsonb_build_object(
        sa.literal_column("'queue_name'"),
        addressed.c.queue_name,
        sa.literal_column("'actor_name'"),
        addressed.c.actor_name,
        sa.literal_column("'args'"),
        sa.func.jsonb_build_array(addressed.c.job_id),
        sa.literal_column("'kwargs'"),
        sa.literal_column("'{}'::jsonb"),
        sa.literal_column("'options'"),
        sa.literal_column("'{}'::jsonb"),
        sa.literal_column("'message_id'"),
        addressed.c.message_id,
        sa.literal_column("'message_timestamp'"),
        sa.literal_column("floor(extract(epoch from clock_timestamp()) * 1000)::bigint"),
    )


def wake(
    rows: sa.CTE | sa.Subquery,
    *,
    queue: sa.ColumnElement[str],
    actor: sa.ColumnElement[str],
    available_at: sa.ColumnElement[Any],
) -> tuple[sa.CTE, sa.ColumnElement[Any]]:
    """A CTE that writes one message for each row (its `id` is the job's), and the NOTIFY to select beside it.

    The payload is empty and the channel names the queue only, so any number of messages in a transaction notify once.
    """
    addressed = (
        sa.select(
            sa.func.gen_random_uuid().label("message_id"),
            rows.c.id.label("job_id"),
            queue.label("queue_name"),
            actor.label("actor_name"),
            available_at.label("available_at"),
        )
        .select_from(rows)
        .cte("addressed")
    )
    sent = (
        sa.insert(messages)
        .from_select(
            ["message_id", "queue_name", "state", "message", "available_at"],
            sa.select(
                addressed.c.message_id,
                addressed.c.queue_name,
                sa.literal_column("'queued'::dramatiq.state"),
                _body(addressed),
                addressed.c.available_at,
            ),
        )
        .cte("sent")
    )
    notify = sa.func.pg_notify(
        sa.literal_column("'dramatiq.'").concat(queue).concat(sa.literal_column("'.enqueue'")),
        sa.literal_column("''"),
    )
    return sent, notify


# What the broker's consumers run, through psycopg on their own connection.
CLAIM = """
with due as materialized (
  select message_id from dramatiq.queue
  where queue_name = %(queue)s and state = 'queued' and available_at <= now()
  order by available_at, position
  limit %(limit)s
  for update skip locked
)
update dramatiq.queue q
set state = 'consumed', worker_id = %(worker)s, consumed_at = clock_timestamp(), mtime = clock_timestamp()
from due
where q.message_id = due.message_id and q.state = 'queued'
returning q.message_id, q.message::text, q.available_at, q.position
"""

ACK = """
delete from dramatiq.queue
where message_id = any(%(messages)s::uuid[]) and state = 'consumed' and worker_id = %(worker)s
"""

HAND_BACK = """
update dramatiq.queue
set state = 'queued', worker_id = null, consumed_at = null, mtime = clock_timestamp(),
    available_at = greatest(available_at, clock_timestamp() + %(delay)s)
where message_id = any(%(messages)s::uuid[]) and state = 'consumed' and worker_id = %(worker)s
"""

HAND_BACK_ALL = """
update dramatiq.queue
set state = 'queued', worker_id = null, consumed_at = null, mtime = clock_timestamp()
where queue_name = %(queue)s and state = 'consumed' and worker_id = %(worker)s
"""

REJECT = """
update dramatiq.queue
set state = 'rejected', worker_id = null, mtime = clock_timestamp()
where message_id = any(%(messages)s::uuid[]) and state = 'consumed' and worker_id = %(worker)s
"""

# One statement decides whether this tick fires at all: two schedulers, one message. The minute is the database's,
# rounded, so that a scheduler a few seconds early and one a few seconds late mean the same tick.
SEND_TICK = """
with tick as (
  insert into callkeeper.ticks (schedule, due_at)
  values (%(schedule)s, date_trunc('minute', clock_timestamp() + interval '30 seconds'))
  on conflict do nothing
  returning due_at
), sent as (
  insert into dramatiq.queue (message_id, queue_name, state, message)
  select %(message_id)s, %(queue)s, 'queued', %(message)s from tick
)
select pg_notify('dramatiq.' || %(queue)s || '.enqueue', '') from tick
"""

SEND = """
with sent as (
  insert into dramatiq.queue (message_id, queue_name, state, message, available_at)
  values (%(message_id)s, %(queue)s, 'queued', %(message)s, clock_timestamp() + %(delay)s)
  on conflict (message_id) do nothing
  returning queue_name
)
select pg_notify('dramatiq.' || queue_name || '.enqueue', '') from sent
"""
