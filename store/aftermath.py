"""What follows from an ending, as one statement: credits, event, signals, assets, receipt, notice, effects, alerts."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement

AFTERMATH = statement(
    """
    with job as materialized (
      select *, coalesce((call_handle ->> 'cancels')::boolean, true) as cancels,
        :abandons_call and provider_task_id is not null and result_known_at is null and mode = 'async' as leaves
      from callkeeper.jobs where id = :job_id
    ), charge as materialized (
      select u.job_id, u.account_id, u.reserved_subscription, u.reserved_topup,
        least(c.charged, u.reserved_subscription) as committed_subscription,
        greatest(c.charged - u.reserved_subscription, 0) as committed_topup
      from callkeeper.usage_logs u
      cross join lateral (
        select case when :completed
          then least(
            coalesce(:cost, u.reserved_subscription + u.reserved_topup), u.reserved_subscription + u.reserved_topup
          )
          else 0 end as charged
      ) c
      where u.job_id = :job_id
    ), settled as (
      update callkeeper.usage_logs u
      set status = case when :completed then 'committed' else 'refunded' end, cost = :cost,
        committed_subscription = charge.committed_subscription, committed_topup = charge.committed_topup,
        settled_at = clock_timestamp()
      from charge
      where u.job_id = :job_id and charge.job_id = u.job_id and u.status = 'reserved'
      returning u.job_id
    ), paid as (
      update callkeeper.accounts a
      set balance_subscription = a.balance_subscription + charge.reserved_subscription - charge.committed_subscription,
        reserved_subscription = a.reserved_subscription - charge.reserved_subscription,
        committed_subscription = a.committed_subscription + charge.committed_subscription,
        balance_topup = a.balance_topup + charge.reserved_topup - charge.committed_topup,
        reserved_topup = a.reserved_topup - charge.reserved_topup,
        committed_topup = a.committed_topup + charge.committed_topup
      from charge join settled on settled.job_id = charge.job_id
      where a.id = charge.account_id and charge.reserved_subscription + charge.reserved_topup > 0
      returning a.id
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
      select id, event_seq, status, attempt, epoch, :event_data || case when leaves
        then jsonb_build_object('upstream', case when cancels then 'cancel_owed' else 'left_running' end)
        else '{}'::jsonb end
      from job
    ), consumed as (
      update callkeeper.job_signals set consumed_at = clock_timestamp()
      where job_id = :job_id and consumed_at is null
    ), kept as (
      insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes, sha256, partial)
      select :job_id, a.*
      from jsonb_to_recordset(:assets) as a (
        position int, object_key text, content_type text, size_bytes bigint, sha256 text, partial boolean
      )
    ), receipt as (
      insert into callkeeper.call_receipts
        (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)
      select id, provider_kind, :provider_id, call_generation, call_key, 'response', epoch
      from job where :provider_id is not null and call_key is not null
      on conflict do nothing
    ), notice as (
      insert into callkeeper.notices (key, job_id, user_id, body)
      select 'job-ended:' || id, id, user_id, jsonb_build_object(
        'job_id', id, 'job_type', job_type, 'status', status, 'error_code', error_code, 'finished_at', finished_at
      ) from job
      on conflict (key) do nothing
    ), running_on as materialized (
      select r.* from job join callkeeper.call_receipts r on r.job_id = job.id and r.call_key = job.call_key
      where mode = 'async' and (leaves or r.provider_task_id is distinct from job.provider_task_id)
    ), cancellation as (
      insert into callkeeper.consequences (key, job_id, effect, body)
      select 'cancel-upstream:' || o.job_id || ':' || o.provider_task_id, o.job_id, 'cancel_upstream',
        jsonb_build_object('kind', o.provider_kind, 'task_id', o.provider_task_id, 'handle', call_handle)
      from job join running_on o on o.job_id = job.id
      where cancels
      on conflict (key) do nothing
    ), watch as (
      insert into callkeeper.upstream_watches
        (job_id, provider_kind, provider_task_id, call_generation, call_handle, call_started_at)
      select o.job_id, o.provider_kind, o.provider_task_id, o.call_generation, call_handle, provider_call_started_at
      from job join running_on o on o.job_id = job.id
      on conflict do nothing
    ), overrun as (
      insert into callkeeper.alerts (subject, details)
      select 'cost-above-reservation:' || job_type,
        jsonb_build_object('job_id', id, 'price', price, 'cost', :cost)
      from job where :completed and :cost > price
      on conflict (subject) do update
      set times = callkeeper.alerts.times + 1, last_at = clock_timestamp(), details = excluded.details,
        resolved_at = null
    )
    select count(*) from paid
    """
).bindparams(
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("completed", type_=sa.Boolean),
    sa.bindparam("abandons_call", type_=sa.Boolean),
    sa.bindparam("cost", type_=sa.BigInteger),
    sa.bindparam("event_data", type_=pg.JSONB),
    sa.bindparam("assets", type_=pg.JSONB),
    sa.bindparam("provider_id", type_=sa.Text),
)
