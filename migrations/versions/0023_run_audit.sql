-- What must hold for runs, as a query: empty in a healthy system. Invariant 15 of docs/invariants.md.
create view callkeeper_audit.run_violations as
with step as (
  select distinct on (run_id, step) id, run_id, step, status, optional, blocked, depends_on,
    status in ('queued', 'running', 'waiting') as open, finished_at
  from callkeeper.jobs where run_id is not null
  order by run_id, step, round desc
), open_job as (
  select run_id, count(*) as times from callkeeper.jobs
  where run_id is not null and status in ('queued', 'running', 'waiting')
  group by run_id
), event as (
  select run_id, count(*) as times, max(seq) as newest,
    count(*) filter (where kind in ('completed', 'failed', 'timed_out', 'cancelled')) as ends,
    count(*) filter (where kind = 'resumed') as resumes
  from callkeeper.run_events group by run_id
), letter as (
  select run_id, count(*) as times from callkeeper.notices where run_id is not null group by run_id
)
select r.id as run_id, format('is %s with %s open jobs', r.status, o.times) as what
from callkeeper.runs r join open_job o on o.run_id = r.id
where r.status <> 'running'

union all
select r.id, 'is running with nothing open'
from callkeeper.runs r
where r.status = 'running' and not exists (select from open_job o where o.run_id = r.id)

union all
select r.id, format('is %s with %s ends after %s resumes', r.status, coalesce(e.ends, 0), coalesce(e.resumes, 0))
from callkeeper.runs r left join event e on e.run_id = r.id
where coalesce(e.ends, 0) <> coalesce(e.resumes, 0) + (r.status <> 'running')::int or coalesce(e.resumes, 0) <> r.round

union all
select r.id, format('event counter %s, but %s events up to seq %s', r.event_seq, coalesce(e.times, 0), coalesce(e.newest, 0))
from callkeeper.runs r left join event e on e.run_id = r.id
where coalesce(e.times, 0) <> r.event_seq or coalesce(e.newest, 0) <> r.event_seq

union all
select r.id, format('is %s and owes %s letters', r.status, coalesce(l.times, 0))
from callkeeper.runs r left join letter l on l.run_id = r.id
where coalesce(l.times, 0) not between (r.status in ('failed', 'timed_out'))::int
  and (r.status in ('failed', 'timed_out') or r.round > 0)::int

union all
select r.id, format('is completed without its required step %s', s.step)
from callkeeper.runs r join step s on s.run_id = r.id
where r.status = 'completed' and not s.optional and s.status <> 'completed'

union all
select r.id, format('is completed as %s although step %s was left out', r.quality, s.step)
from callkeeper.runs r join step s on s.run_id = r.id
where r.status = 'completed' and s.optional and s.status <> 'completed' and r.quality <> 'degraded'

union all
select r.id, format('failed, and names no failed step although step %s did', s.step)
from callkeeper.runs r join step s on s.run_id = r.id
where r.status = 'failed' and not s.optional and s.status in ('failed', 'timed_out') and not s.step = any(r.failed_nodes)

union all
select r.id, format('step %s is held back although all it needs has ended %s ago', s.step, now() - max(n.finished_at))
from callkeeper.runs r
join step s on s.run_id = r.id and s.blocked and s.status = 'queued'
join step n on n.run_id = r.id and n.step = any(s.depends_on)
where r.status = 'running' and r.ending is null
group by r.id, s.step
having not bool_or(n.open) and max(n.finished_at) < now() - interval '3 minutes'

union all
select r.id, format('still running %s after its deadline', now() - r.deadline_at)
from callkeeper.runs r
where r.status = 'running' and r.deadline_at < now() - interval '10 minutes' and not exists (
  select from callkeeper.jobs j join callkeeper.provider_gates g on g.provider_kind = j.provider_kind
  where j.run_id = r.id and j.status in ('queued', 'running', 'waiting') and g.stops_clocks
);

-- Whether a flag may be promoted, as a query: what became of the runs it acted on, beside those it did not, over the
-- last 14 days; in shadow, how many failed runs it would have acted on.
create view callkeeper_audit.rollout_gates as
with ended as (
  select r.id, r.status, r.quality,
    (select count(*) from callkeeper.notices n where n.run_id = r.id) as letters,
    exists (
      select from callkeeper.jobs j join callkeeper.call_receipts c on c.job_id = j.id
      where j.run_id = r.id group by j.id, c.call_generation having count(*) > 1
    ) as doubled
  from callkeeper.runs r
  where r.status in ('completed', 'failed', 'timed_out') and r.finished_at > now() - interval '14 days'
), flag (name) as (
  values ('provider_resume'), ('classified_retries'), ('salvage'), ('plan_repair')
), seen as (
  select f.name, e.*,
    exists (select from callkeeper.rollout_decisions d where d.run_id = e.id and d.flag = f.name and d.did) as acted,
    exists (select from callkeeper.rollout_decisions d where d.run_id = e.id and d.flag = f.name and not d.did) as watched
  from flag f cross join ended e
), counted as (
  select name,
    count(*) filter (where acted) as acted_runs,
    count(*) filter (where acted and status = 'completed') as acted_completed,
    count(*) filter (where acted and quality = 'degraded') as acted_degraded,
    count(*) filter (where watched) as watched_runs,
    count(*) filter (where watched and status <> 'completed') as watched_failed,
    count(*) filter (where not acted) as other_runs,
    count(*) filter (where not acted and status = 'completed') as other_completed,
    count(*) filter (where acted and doubled) as doubled_creates,
    count(*) filter (where acted and letters > 1) as doubled_letters
  from seen group by name
)
select f.name as flag, coalesce(r.mode, 'on') as mode, coalesce(r.percent, 100) as percent,
  coalesce(c.acted_runs, 0) as acted_runs, coalesce(c.acted_completed, 0) as acted_completed,
  coalesce(c.acted_degraded, 0) as acted_degraded, coalesce(c.watched_runs, 0) as watched_runs,
  coalesce(c.watched_failed, 0) as watched_failed, coalesce(c.other_runs, 0) as other_runs,
  coalesce(c.other_completed, 0) as other_completed, coalesce(c.doubled_creates, 0) as doubled_creates,
  coalesce(c.doubled_letters, 0) as doubled_letters,
  coalesce(c.doubled_creates + c.doubled_letters, 0) = 0 and coalesce(case r.mode
    when 'shadow' then c.watched_failed > 0
    when 'canary' then c.acted_runs >= 20
      and c.acted_completed * greatest(c.watched_runs, 1) >= (c.watched_runs - c.watched_failed) * c.acted_runs
  end, false) as may_promote
from flag f left join callkeeper.rollout_flags r on r.name = f.name left join counted c on c.name = f.name;
