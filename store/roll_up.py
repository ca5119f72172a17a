"""What a run is, as it follows from its jobs; what may start next; who must stop. All of it under the run's row lock.

Nothing is counted up: each roll-up looks at all jobs of the run, so it may be done again at any time, by anybody, in
any order. Whoever holds a run's lock never waits for one of its jobs: a job's settlement holds the job and wants the
run. A job that is passed over for that reason is its holder's, who rolls up in turn, or the next pass finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.hygiene import clean_json
from store.models import StepWarning
from store.tables import run_warnings, runs

LOCK_RUN = sa.select(runs.c.id).where(runs.c.id == sa.bindparam("run_id")).with_for_update(key_share=True)

# A submit holds its account when it asks what its queue allows, so whoever submits several steps does, too.
LOCK_PAYER = statement(
    """
    select a.id from callkeeper.accounts a
    where a.id = (select r.account_id from callkeeper.runs r where r.id = :run_id)
    for no key update
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))

# A step may have had several jobs: the newest round's is what it is now.
ROLL_UP = statement(
    """
    with step as materialized (
      select distinct on (step) id, step, stage, status, optional, progress, error_code, finished_at, provider_kind,
        status in ('queued', 'running', 'waiting') as open
      from callkeeper.jobs where run_id = :run_id
      order by step, round desc
    ), seen as materialized (
      select count(*) filter (where open) as open,
        count(*) filter (where status <> 'completed' and not open and not optional) as lacking,
        count(*) filter (where optional and not open and status <> 'completed') as left_out,
        coalesce(array_agg(step order by finished_at, step) filter (
          where status in ('failed', 'timed_out') and not optional
        ), '{}') as failed,
        (array_agg(error_code order by finished_at, step) filter (
          where status in ('failed', 'timed_out') and not optional
        ))[1] as code,
        (avg(case when status = 'completed' or (optional and not open) then 1 else coalesce(progress, 0) end))::real
          as share,
        bool_or(open and exists (
          select from callkeeper.provider_gates g where g.provider_kind = step.provider_kind and g.stops_clocks
        )) as clock_stands
      from step
    ), lost as (
      insert into callkeeper.run_warnings
        (job_id, position, run_id, code, stage, severity, customer_visible, quality, details)
      select id, -1, :run_id, 'step_failed', stage, 'warning', true, 'degraded',
        jsonb_build_object('step', step, 'code', error_code)
      from step where optional and status in ('failed', 'timed_out')
      on conflict (job_id, position) do nothing
    ), worst as (
      select max(array_position(array['standard', 'repaired', 'degraded'], w.quality)) as at
      from callkeeper.run_warnings w join step on step.id = w.job_id
      where w.run_id = :run_id
    ), decided as materialized (
      select r.id, seen.open, seen.failed, seen.share, r.ending is null as was_open_ended,
        (array['standard', 'repaired', 'degraded'])[
          greatest(coalesce(worst.at, 1), case when seen.left_out > 0 then 3 else 1 end)
        ] as quality,
        case
          when seen.open = 0 and seen.lacking = 0 then null
          when r.ending is not null then r.ending
          when cardinality(seen.failed) > 0 then 'failed'
          when seen.lacking > 0 then 'cancelled'
          when r.deadline_at <= now() and not seen.clock_stands then 'timed_out'
        end as ending,
        case
          when seen.open = 0 and seen.lacking = 0 then null
          when r.ending is not null then r.failure_code
          when cardinality(seen.failed) > 0 then seen.code
          when seen.lacking > 0 then 'cancelled'
          when r.deadline_at <= now() and not seen.clock_stands then 'run_deadline_exceeded'
        end as code
      from callkeeper.runs r, seen, worst
      where r.id = :run_id and r.status = 'running'
    ), moved as (
      update callkeeper.runs r
      set status = case when d.open > 0 then 'running' else coalesce(d.ending, 'completed') end,
        ending = d.ending, failure_code = d.code, failed_nodes = d.failed, quality = d.quality,
        progress = case when d.open = 0 and d.ending is null then 1 else greatest(r.progress, d.share) end,
        finished_at = case when d.open = 0 then clock_timestamp() end,
        next_check_at = case when d.open > 0 then clock_timestamp() + interval '1 minute' end,
        event_seq = r.event_seq + (d.open = 0 or (d.ending is not null and d.was_open_ended))::int
      from decided d
      where r.id = d.id and r.status = 'running'
      returning r.*, d.open, d.was_open_ended
    ), event as (
      insert into callkeeper.run_events (run_id, seq, kind, data)
      select id, event_seq, case when open = 0 then status else 'ending' end, jsonb_strip_nulls(jsonb_build_object(
        'quality', case when status = 'completed' then quality end, 'ending', ending, 'code', failure_code,
        'failed_nodes', case when cardinality(failed_nodes) > 0 then to_jsonb(failed_nodes) end))
      from moved where open = 0 or (ending is not null and was_open_ended)
    ), notice as (
      insert into callkeeper.notices (key, run_id, user_id, channel, body)
      select 'render-failed-email:' || m.id, m.id, m.user_id, 'email', jsonb_build_object(
        'run_id', m.id, 'run_type', m.run_type, 'status', m.status, 'failure_code', m.failure_code, 'to', m.email,
        'stages', (select coalesce(jsonb_agg(distinct s.stage), '[]') from step s where s.step = any(m.failed_nodes)))
      from moved m where m.status in ('failed', 'timed_out')
      on conflict (key) do nothing
    )
    select status, ending, open from moved
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))

# A dependency has ended when it completed, or when the run can do without it and it will not come.
RELEASE = statement(
    """
    with step as materialized (
      select distinct on (step) id, step, stage, status, optional, progress, error_code, finished_at, provider_kind,
        status in ('queued', 'running', 'waiting') as open
      from callkeeper.jobs where run_id = :run_id
      order by step, round desc
    ), ready as materialized (
      select j.id, least(clock_timestamp() + j.run_limit, r.deadline_at) as until
      from callkeeper.runs r join callkeeper.jobs j on j.run_id = r.id
      where r.id = :run_id and r.status = 'running' and r.ending is null and j.status = 'queued' and j.blocked
        and not exists (
          select from unnest(j.depends_on) as needed (step) left join step s on s.step = needed.step
          where s.step is null or s.open or (s.status <> 'completed' and not s.optional)
        )
      for no key update of j skip locked
    ), moved as (
      update callkeeper.jobs j
      set blocked = false, available_at = clock_timestamp(), queue_deadline_at = ready.until,
        turn = callkeeper.next_turn(j.queue, j.user_id) - 10 * j.priority,
        deadline_at = ready.until, next_check_at = clock_timestamp() + interval '1 minute', event_seq = j.event_seq + 1
      from ready
      where j.id = ready.id and j.status || '' = 'queued' and j.blocked
      returning j.id, j.event_seq, j.attempt, j.epoch, j.queue, j.actor, j.available_at
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch)
      select id, event_seq, 'released', attempt, epoch from moved
    ), addressed as materialized (
      select gen_random_uuid() as message_id, id, queue, actor, available_at from moved
    ), sent as (
      insert into dramatiq.queue (message_id, queue_name, state, message, available_at)
      select message_id, queue, 'queued', jsonb_build_object(
        'queue_name', queue, 'actor_name', actor, 'args', jsonb_build_array(id), 'kwargs', '{}'::jsonb,
        'options', '{}'::jsonb, 'message_id', message_id,
        'message_timestamp', floor(extract(epoch from clock_timestamp()) * 1000)::bigint
      ), available_at from addressed
    )
    select id, pg_notify('dramatiq.' || queue || '.enqueue', '') from moved
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))

# A job that somebody has locked is being ended: it needs no more dependencies.
WAIT_FOR_MORE = statement(
    """
    with waiting as materialized (
      select id from callkeeper.jobs
      where run_id = :run_id and status = 'queued' and blocked and :step = any(depends_on)
        and step <> all(cast(:added as text[]))
      order by id
      for no key update skip locked
    )
    update callkeeper.jobs j set depends_on = j.depends_on || cast(:added as text[])
    from waiting w
    where j.id = w.id and j.status = 'queued' and j.blocked and not j.depends_on && cast(:added as text[])
    """
).bindparams(
    sa.bindparam("run_id", type_=pg.UUID),
    sa.bindparam("step", type_=sa.Text),
    sa.bindparam("added", type_=pg.ARRAY(sa.Text)),
)

AT_REST = statement(
    """
    select id from callkeeper.jobs
    where run_id = :run_id
      and (status = 'queued' or (status = 'waiting' and provider_task_id is not null))
    order by id
    for no key update skip locked
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))

# The rest hears of it. A job that cannot even be shared is being stopped or settled by somebody at this very moment.
SIGNAL_REST = statement(
    """
    with job as materialized (
      select id from callkeeper.jobs
      where run_id = :run_id and status in ('queued', 'running', 'waiting')
      for key share skip locked
    ), signal as (
      insert into callkeeper.job_signals (job_id, kind) select id, 'stop' from job
      on conflict (job_id, kind) where consumed_at is null do nothing
    )
    select pg_notify('callkeeper_signal', id::text) from job
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))

KEEP_WARNINGS = (
    pg.insert(run_warnings)
    .values(
        {
            name: sa.bindparam(name, type_=run_warnings.c[name].type)
            for name in (
                "job_id", "position", "run_id", "code", "stage", "severity", "customer_visible", "quality", "details"
            )
        }
    )
    .on_conflict_do_nothing()
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolledUp:
    """What the run is now. `ending` is how it will end once nothing is open; `open` counts what still is."""

    status: str
    ending: str | None
    open: int


def lock_run(connection: sa.Connection, run_id: UUID) -> None:
    """Everything about a run is decided one after the other."""
    connection.execute(LOCK_RUN, {"run_id": run_id})


def lock_payer(connection: sa.Connection, run_id: UUID) -> None:
    """Before steps are added to a run: account first, then the limits that speak of queued jobs."""
    connection.execute(LOCK_PAYER, {"run_id": run_id})


def wait_for_more(connection: sa.Connection, run_id: UUID, step: str, added: Sequence[str]) -> None:
    """Under the run's lock: whatever waits for this step waits for the added ones, too."""
    connection.execute(WAIT_FOR_MORE, {"run_id": run_id, "step": step, "added": list(added)})


def roll_up(connection: sa.Connection, run_id: UUID) -> RolledUp | None:
    """Under the run's lock: make the run what its jobs say, and release what may start. None: it has settled before."""
    row = connection.execute(ROLL_UP, {"run_id": run_id}).one_or_none()
    if row is None:
        return None
    if row.ending is None and row.open:
        connection.execute(RELEASE, {"run_id": run_id})
    return RolledUp(status=row.status, ending=row.ending, open=row.open)


def keep_warnings(connection: sa.Connection, step: Any, warnings: Sequence[StepWarning]) -> None:
    """`step` is the row of the job that just completed: id, run_id, stage."""
    rows = [
        {
            "job_id": step.id,
            "position": position,
            "run_id": step.run_id,
            "code": warning.code[:64],
            "stage": step.stage,
            "severity": warning.severity,
            "customer_visible": warning.customer_visible,
            "quality": warning.quality,
            "details": clean_json(dict(warning.details)),
        }
        for position, warning in enumerate(warnings)
    ]
    connection.execute(KEEP_WARNINGS, rows)


def at_rest(connection: sa.Connection, run_id: UUID) -> list[UUID]:
    """Under the run's lock: its jobs that nobody works on, locked; those locked by somebody else are passed over."""
    return list(connection.execute(AT_REST, {"run_id": run_id}).scalars())


def signal_rest(connection: sa.Connection, run_id: UUID) -> None:
    """Under the run's lock: ask every job that is still open to end."""
    connection.execute(SIGNAL_REST, {"run_id": run_id})
