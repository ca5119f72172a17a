-- One row a priced call: what it was to cost at most, and what it did cost, in millionths of a dollar. Who, what and
-- for whom are copied, since a repair, a retry and a job's next generation are calls of their own.
create table callkeeper.call_ledger (
  id bigint generated always as identity,
  job_id uuid not null,
  generation integer not null,
  epoch integer not null,
  user_id text,
  app text,
  run_id uuid,
  provider_kind text not null,
  account text not null,
  profile text,
  provider_model text not null,
  price jsonb not null,
  reserved bigint not null,
  status text default 'open' not null,
  cost bigint,
  input_tokens bigint,
  output_tokens bigint,
  estimated boolean default false not null,
  error text,
  started_at timestamptz not null,
  until timestamptz not null,
  finished_at timestamptz,
  primary key (id),
  constraint call_ledger_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade,
  constraint call_ledger_status_known check (status in ('open', 'ok', 'failed', 'aborted', 'unknown')),
  constraint call_ledger_open_has_no_end check ((status = 'open') = (finished_at is null)),
  constraint call_ledger_open_has_no_cost check ((status = 'open') = (cost is null)),
  constraint call_ledger_unknown_is_estimated check (status <> 'unknown' or estimated),
  constraint call_ledger_amounts_fit check (
    reserved >= 0 and coalesce(cost, 0) >= 0 and coalesce(input_tokens, 0) >= 0 and coalesce(output_tokens, 0) >= 0
  ),
  constraint call_ledger_price_is_two_integers check (
    coalesce((price ->> 'input') ~ '^\d{1,18}$' and (price ->> 'output') ~ '^\d{1,18}$', false)
  ),
  constraint call_ledger_error_is_short check (octet_length(error) <= 500),
  constraint call_ledger_may_run_a_while check (until >= started_at)
);
create unique index call_ledger_one_a_generation on callkeeper.call_ledger (job_id, generation);
create index call_ledger_open on callkeeper.call_ledger (until) where status = 'open';

-- What was spent by the hour of its booking, in a few parts so that bookings do not wait for one another. A limit adds up
-- these instead of a day of calls.
create table callkeeper.spending_hours (
  hour timestamptz not null,
  part integer not null,
  cost bigint not null,
  calls bigint not null,
  primary key (hour, part)
);

-- At most one row: all priced calls together may cost `amount` in any window of `per`.
create table callkeeper.emergency_stop (
  id boolean default true not null,
  amount bigint not null,
  per interval not null,
  warn_at integer default 80 not null,
  warned_at timestamptz,
  latched_at timestamptz,
  changed_at timestamptz default clock_timestamp() not null,
  changed_by text not null,
  primary key (id),
  constraint emergency_stop_is_one check (id),
  constraint emergency_stop_amount_fits check (amount between 1 and 4611686018427387904),
  constraint emergency_stop_window_fits check (per between interval '1 hour' and interval '31 days'),
  constraint emergency_stop_warns_in_percent check (warn_at between 1 and 100)
);

create table callkeeper.emergency_stop_history (
  id bigint generated always as identity,
  at timestamptz default clock_timestamp() not null,
  what text not null,
  amount bigint not null,
  per interval not null,
  used bigint,
  by text not null,
  why text default '' not null,
  primary key (id),
  constraint emergency_stop_history_what_known check (what in ('set', 'removed', 'warned', 'stopped', 'released'))
);

-- A call that may still be running at the provider takes a slot, also when its job has let go of it.
do $$
begin
  execute 'create or replace view callkeeper.slots as '
    || rtrim(pg_get_viewdef('callkeeper.slots'::regclass), ' ;')
    || ' union all select l.job_id, l.user_id, l.app, l.provider_kind, l.account, l.started_at'
    || ' from callkeeper.call_ledger l join callkeeper.jobs j on j.id = l.job_id'
    || ' where l.status = ''open'' and l.until > clock_timestamp() and not ('
    || '   j.status = ''running'' and j.call_generation = l.generation and j.provider_call_started_at is not null'
    || ' )';
end
$$;

create view callkeeper_audit.paid_calls as
select date_trunc('day', started_at at time zone 'utc') as day, user_id, app, provider_kind, provider_model,
  count(*) as calls,
  count(*) filter (where status = 'open') as open,
  count(*) filter (where status in ('failed', 'aborted', 'unknown')) as without_result,
  coalesce(sum(cost), 0) as cost,
  coalesce(sum(reserved) filter (where status = 'open'), 0) as reserved,
  coalesce(sum(cost) filter (where estimated), 0) as estimated,
  round(coalesce(sum(cost) filter (where estimated), 0)::numeric / nullif(sum(cost), 0), 4) as estimated_share,
  coalesce(sum(input_tokens), 0) as input_tokens, coalesce(sum(output_tokens), 0) as output_tokens
from callkeeper.call_ledger
group by 1, user_id, app, provider_kind, provider_model;

create view callkeeper_audit.ledger_violations as
select 4 as invariant, job_id, format('call %s can no longer run and its cost is not booked', generation) as what
from callkeeper.call_ledger
where status = 'open' and until < now() - interval '5 minutes'
union all
select 13, null, format('the hour from %s is counted as %s and its calls cost %s', hour, counted, booked)
from (
  select hour, sum(counted) as counted, sum(booked) as booked
  from (
    select hour, cost as counted, 0 as booked from callkeeper.spending_hours
    union all
    select date_bin('1 hour', finished_at, timestamptz '2000-01-03 00:00:00+00'), 0, cost
    from callkeeper.call_ledger where status <> 'open'
  ) every
  where hour > now() - interval '32 days'
  group by hour
) hours
where counted <> booked
union all
select 13, null, format('calls for %s were let in since the emergency stop was set to %s', sum(let_in), s.amount)
from callkeeper.emergency_stop s join lateral (
  select least(coalesce(l.cost, l.reserved), l.reserved) as let_in
  from callkeeper.call_ledger l
  where l.started_at > s.changed_at + interval '1 second'
    and (l.finished_at is null or l.finished_at > clock_timestamp() - s.per)
) l on true
group by s.amount
having sum(let_in) > s.amount;

do $$
begin
  execute 'create or replace view callkeeper_audit.violations as '
    || rtrim(pg_get_viewdef('callkeeper_audit.violations'::regclass), ' ;')
    || ' union all select invariant, job_id, what from callkeeper_audit.ledger_violations';
end
$$;
