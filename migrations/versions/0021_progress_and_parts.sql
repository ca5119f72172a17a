-- Progress is no milestone and never stored as one: it is told to whoever follows right now.
create function callkeeper.tell_progress(job_id uuid, seq integer, attempt integer, epoch integer, share real) returns void
language sql
begin atomic
  select pg_notify(
    'callkeeper_ephemeral',
    $1 || ' {"seq":' || seq || ',"attempt":' || attempt || ',"epoch":' || epoch
      || ',"kind":"progress","data":{"share":' || share || '}}'
  )
  from callkeeper.followed f
  where f.job_id = $1 and f.ephemeral_until > now() and share is not null;
end;

-- A stream that broke off has been paid for, so what came of it is kept, beside the failed job and marked as what it is.
alter table callkeeper.assets add column partial boolean default false not null;

create or replace view callkeeper_audit.violations as
with terminal_events as (
  select job_id, count(*) as times, max(seq) as seq, max(kind) as kind
  from callkeeper.job_events
  where kind in ('completed', 'failed', 'timed_out', 'cancelled')
  group by job_id
)
select 1 as invariant, id as job_id,
  format('still %s %s after its deadline', status, now() - deadline_at) as what
from callkeeper.jobs
where status in ('queued', 'running', 'waiting') and deadline_at < now() - interval '5 minutes'
  and not exists (
    select from callkeeper.provider_gates g where g.provider_kind = jobs.provider_kind and g.stops_clocks
  )

union all
select 2, j.id, format('is %s with %s terminal events', j.status, coalesce(t.times, 0))
from callkeeper.jobs j left join terminal_events t on t.job_id = j.id
where coalesce(t.times, 0) <> (j.status in ('completed', 'failed', 'timed_out', 'cancelled'))::int
union all
select 2, j.id, format('is %s but its terminal event says %s at %s of %s', j.status, t.kind, t.seq, j.event_seq)
from callkeeper.jobs j join terminal_events t on t.job_id = j.id
where j.status in ('completed', 'failed', 'timed_out', 'cancelled') and (t.kind <> j.status or t.seq <> j.event_seq)

union all
select 3, job_id, format('call generation %s has %s upstream tasks', call_generation, count(*))
from callkeeper.call_receipts
group by job_id, call_generation
having count(*) > 1

union all
select 4, j.id, format('task %s has no receipt', j.provider_task_id)
from callkeeper.jobs j
where j.provider_task_id is not null
  and not exists (
    select from callkeeper.call_receipts r
    where r.provider_kind = j.provider_kind and r.provider_task_id = j.provider_task_id and r.job_id = j.id
  )

union all
select 5, null, format('account %s: reserved %s, but its open reservations are %s; committed %s, but its charges are %s',
  a.id, a.reserved_subscription + a.reserved_topup, coalesce(u.reserved, 0),
  a.committed_subscription + a.committed_topup, coalesce(u.committed, 0))
from callkeeper.accounts a
left join (
  select account_id,
    sum(reserved_subscription) filter (where status = 'reserved') as reserved_subscription,
    sum(reserved_topup) filter (where status = 'reserved') as reserved_topup,
    sum(reserved_subscription + reserved_topup) filter (where status = 'reserved') as reserved,
    sum(committed_subscription) as committed_subscription,
    sum(committed_topup) as committed_topup,
    sum(committed_subscription + committed_topup) as committed
  from callkeeper.usage_logs
  group by account_id
) u on u.account_id = a.id
where a.reserved_subscription <> coalesce(u.reserved_subscription, 0)
  or a.reserved_topup <> coalesce(u.reserved_topup, 0)
  or a.committed_subscription <> coalesce(u.committed_subscription, 0)
  or a.committed_topup <> coalesce(u.committed_topup, 0)
  or a.granted_subscription <> a.balance_subscription + a.reserved_subscription + a.committed_subscription
  or a.granted_topup <> a.balance_topup + a.reserved_topup + a.committed_topup

union all
select 6, j.id, format('is %s, its credits are %s', j.status, coalesce(u.status, 'not reserved'))
from callkeeper.jobs j left join callkeeper.usage_logs u on u.job_id = j.id
where j.account_id is not null
  and coalesce(u.status, '') <> case
    when j.status in ('queued', 'running', 'waiting') then 'reserved'
    when j.status = 'completed' then 'committed'
    else 'refunded'
  end

union all
select 7, j.id, format('is %s and owes %s notices instead of %s', j.status, count(n.key),
  (j.status in ('completed', 'failed', 'timed_out', 'cancelled'))::int)
from callkeeper.jobs j left join callkeeper.notices n on n.job_id = j.id
group by j.id
having count(n.key) <> (j.status in ('completed', 'failed', 'timed_out', 'cancelled'))::int

union all
select 8, j.id, format('event counter %s, but %s events up to seq %s', j.event_seq, count(e.seq), coalesce(max(e.seq), 0))
from callkeeper.jobs j left join callkeeper.job_events e on e.job_id = j.id
group by j.id
having count(e.seq) <> j.event_seq or coalesce(max(e.seq), 0) <> j.event_seq

union all
select 9, job_id, format('event %s was written under epoch %s, after epoch %s', seq, epoch, before)
from (
  select job_id, seq, epoch, max(epoch) over (
    partition by job_id order by seq rows between unbounded preceding and 1 preceding
  ) as before
  from callkeeper.job_events
) e
where epoch < before

union all
select 10, id, format('lease of %s lapsed %s ago', lease_owner, now() - lease_until)
from callkeeper.jobs
where status = 'running' and lease_until < now() - interval '90 seconds'

union all
select 11, j.id, format('result names %s files, %s are kept', coalesce(jsonb_array_length(j.result -> 'media'), 0), count(a.id))
from callkeeper.jobs j left join callkeeper.assets a on a.job_id = j.id and not a.partial
group by j.id
having count(a.id) <> case when j.status = 'completed' then coalesce(jsonb_array_length(j.result -> 'media'), 0) else 0 end
union all
select 11, j.id, format('is %s and keeps a part of a result', j.status)
from callkeeper.jobs j join callkeeper.assets a on a.job_id = j.id and a.partial
where j.status <> 'failed'

union all
select 12, job_id, place || ' holds what looks like a secret or a signed URL'
from (
  select job_id, 'event ' || seq as place, data::text as body from callkeeper.job_events
  union all select id, 'job', concat_ws(' ', result::text, error_message, call_handle::text) from callkeeper.jobs
  union all select job_id, 'notice ' || key, concat_ws(' ', body::text, last_error) from callkeeper.notices
  union all select job_id, 'consequence ' || key, concat_ws(' ', body::text, last_error) from callkeeper.consequences
  union all select null, 'alert ' || subject, details::text from callkeeper.alerts
  union all select null, 'a queue message', message::text from dramatiq.queue
) written
where body ~* '[?&](x-amz-signature|x-goog-signature|signature|sig|token|key)='
  or body ~ '(^|[^A-Za-z0-9_])(sk-[A-Za-z0-9_-]{16,}|r8_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{30,})'

union all
select 13, j.id, format('attempt %s of %s, %s upstream tasks', j.attempt, j.max_attempts, count(r.id))
from callkeeper.jobs j join callkeeper.call_receipts r on r.job_id = j.id
group by j.id
having count(r.id) > j.max_attempts

union all
select 14, s.job_id, format('%s signal left on a %s job', s.kind, j.status)
from callkeeper.job_signals s join callkeeper.jobs j on j.id = s.job_id
where s.consumed_at is null and j.status in ('completed', 'failed', 'timed_out', 'cancelled');
