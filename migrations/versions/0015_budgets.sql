-- Budgets: limits that an operator changes while everything runs. The line: whose turn it is to start.
--
-- Nothing is counted in a column that could drift: a slot is a running or waiting job (or a cancellation still owed to the
-- provider), what was spent is read from the reservations. A killed worker's slot is freed by whatever rescues its job.
create table callkeeper.budgets (
  id bigint generated always as identity,
  measure text not null,
  scope text not null,
  name text default '' not null,
  at_most bigint not null,
  per interval,
  recent timestamptz[] default '{}' not null,
  changed_at timestamptz default clock_timestamp() not null,
  changed_by text default '' not null,
  primary key (id),
  constraint budgets_measure_known check (measure in ('concurrency', 'queued', 'rate', 'spend', 'weight')),
  constraint budgets_scope_known check (
    (measure = 'concurrency' and scope in ('global', 'kind', 'account', 'user', 'app'))
    or (measure = 'queued' and scope in ('global', 'kind', 'user', 'app'))
    or (measure = 'rate' and scope in ('global', 'kind', 'account'))
    or (measure in ('spend', 'weight') and scope = 'user')
  ),
  constraint budgets_name_fits check ((scope = 'global') = (name = '') and octet_length(name) <= 256),
  constraint budgets_limit_fits check (
    at_most >= 0 and (measure <> 'weight' or at_most between 1 and 1000) and (measure <> 'rate' or at_most <= 1000)
  ),
  constraint budgets_window_fits check (
    (measure in ('rate', 'spend')) = (per is not null) and (per is null or per between interval '1 second' and interval '366 days')
  )
);
create unique index budgets_one_each on callkeeper.budgets (measure, scope, name);

-- Who changed which limit when, and from what; `at_most` null says that it was removed.
create table callkeeper.budget_changes (
  id bigint generated always as identity,
  measure text not null,
  scope text not null,
  name text not null,
  was bigint,
  at_most bigint,
  per interval,
  changed_by text not null,
  changed_at timestamptz default clock_timestamp() not null,
  primary key (id)
);

-- A priced job's first start under a spend budget. What it counts is its reservation, later its charge: both are read
-- from usage_logs, so nothing has to be written here again.
create table callkeeper.spending (
  job_id uuid not null,
  user_id text not null,
  started_at timestamptz default clock_timestamp() not null,
  primary key (job_id),
  constraint spending_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index spending_by_user on callkeeper.spending (user_id, started_at);

alter table callkeeper.jobs
  add column app text,
  add column priority integer default 0 not null,
  add column turn double precision,
  add column parked_on text;
alter table callkeeper.jobs add constraint jobs_parked_is_queued check (parked_on is null or status = 'queued') not valid;

-- Where in a queue's line a user's next job stands: one step of 1/weight behind that user's last, and not before the head
-- of the line. A priority is worth ten turns a step; it is left out here, so that it moves its own job only: twenty rows
-- are looked at, since those in front may be there by their priority.
create function callkeeper.next_turn(wanted_queue text, wanted_user text) returns double precision
language plpgsql stable as $$
begin
  return (
    with recursive parked (key) as (
      (
        select parked_on from callkeeper.jobs
        where queue = wanted_queue and status = 'queued' and turn is not null and parked_on is not null
        order by parked_on limit 1
      )
      union all
      select (
        select j.parked_on from callkeeper.jobs j
        where j.queue = wanted_queue and j.status = 'queued' and j.turn is not null and j.parked_on > parked.key
        order by j.parked_on limit 1
      )
      from parked where parked.key is not null
    )
    select greatest(
      coalesce(
        least(
          (
            select min(base) from (
              select turn + 10 * priority as base from callkeeper.jobs
              where queue = wanted_queue and parked_on is null and status = 'queued' and turn is not null
              order by parked_on, turn limit 20
            ) front
          ),
          (
            select min(head.base)
            from (select key from parked where key is not null limit 100) k cross join lateral (
              select turn + 10 * priority as base from callkeeper.jobs
              where queue = wanted_queue and parked_on = k.key and status = 'queued' and turn is not null
              order by turn limit 1
            ) head
          )
        ),
        0
      ),
      (
        select max(base) + 1.0 / coalesce((
          select at_most from callkeeper.budgets where measure = 'weight' and scope = 'user' and name = wanted_user
        ), 1)
        from (
          select turn + 10 * priority as base from callkeeper.jobs
          where queue = wanted_queue and coalesce(user_id, '') = coalesce(wanted_user, '') and status = 'queued'
            and turn is not null
          order by turn desc limit 20
        ) own
      )
    )
  );
end
$$;

-- Who takes a slot right now. Upstream work that was abandoned holds its slot until its cancellation is delivered.
create view callkeeper.slots as
select id as job_id, user_id, app, provider_kind, call_handle ->> 'account' as account, started_at
from callkeeper.jobs where status = 'running'
union all
select id, user_id, app, provider_kind, call_handle ->> 'account', started_at
from callkeeper.jobs where status = 'waiting'
union all
select j.id, j.user_id, j.app, j.provider_kind, j.call_handle ->> 'account', j.started_at
from callkeeper.consequences c join callkeeper.jobs j on j.id = c.job_id
where c.effect = 'cancel_upstream' and c.delivered_at is null and c.dead_at is null;
