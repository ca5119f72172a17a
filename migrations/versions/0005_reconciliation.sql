-- Frozen at submit: after how long a call is stale, who may see the result, whether it is marked, and which effects an
-- end has. A row from before takes its account's plan baseline, which is public.
alter table callkeeper.accounts add column visibility_baseline text default 'public' not null;
alter table callkeeper.accounts add constraint accounts_visibility_known
  check (visibility_baseline in ('public', 'private')) not valid;
alter table callkeeper.jobs
  add column stale_after interval default '30 minutes' not null,
  add column visibility text default 'public' not null,
  add column watermark boolean default false not null,
  add column effects jsonb default '{}' not null,
  add column reconcile_attempts integer default 0 not null,
  add column reconcile_deferrals integer default 0 not null,
  add column reconcile_last_error text;
alter table callkeeper.jobs add constraint jobs_visibility_known check (visibility in ('public', 'private')) not valid;
alter table callkeeper.jobs add constraint jobs_looks_counted
  check (reconcile_attempts >= 0 and reconcile_deferrals >= 0 and octet_length(reconcile_last_error) <= 1024) not valid;

create function callkeeper.refuse_new_terms() returns trigger
language plpgsql as $$
begin
  raise exception 'job %: price, visibility, watermark and effects are those of its submit', old.id
    using errcode = 'check_violation', schema = 'callkeeper', table = 'jobs', constraint = 'jobs_terms_are_frozen';
end
$$;

create trigger jobs_terms_are_frozen
  before update of price, visibility, watermark, effects on callkeeper.jobs
  for each row when (
    old.price <> new.price or old.visibility <> new.visibility or old.watermark <> new.watermark
    or old.effects <> new.effects
  )
  execute function callkeeper.refuse_new_terms();

-- The reconciliation history: every look of a pass that decided something.
create table callkeeper.job_looks (
  id bigint generated always as identity,
  job_id uuid not null,
  looked_at timestamptz default clock_timestamp() not null,
  late_seconds real default 0 not null,
  found text not null,
  did text not null,
  code text,
  misses integer default 0 not null,
  attempts integer default 0 not null,
  primary key (id),
  constraint job_looks_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index job_looks_by_job on callkeeper.job_looks (job_id, id);
create index job_looks_by_time on callkeeper.job_looks (looked_at);

-- Calls that ended without a result although they may have been paid: the user was refunded, the provider perhaps not.
create table callkeeper.unexplained_spend (
  job_id uuid not null,
  call_generation integer not null,
  provider_kind text not null,
  provider_task_id text,
  call_key uuid,
  call_started_at timestamptz not null,
  error_code text not null,
  price bigint not null,
  created_at timestamptz default clock_timestamp() not null,
  resolved_at timestamptz,
  resolution text,
  primary key (job_id, call_generation),
  constraint unexplained_spend_resolved_with_words check ((resolved_at is null) = (resolution is null)),
  constraint unexplained_spend_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index unexplained_spend_open on callkeeper.unexplained_spend (created_at) where resolved_at is null;

-- Tasks whose job has ended before them: looked at for a day, so that none runs on behind a closed account.
create table callkeeper.upstream_watches (
  job_id uuid not null,
  provider_kind text not null,
  provider_task_id text not null,
  call_generation integer not null,
  call_handle jsonb not null,
  call_started_at timestamptz not null,
  check_at timestamptz default clock_timestamp() + interval '2 minutes' not null,
  watch_until timestamptz default clock_timestamp() + interval '24 hours' not null,
  claim_token uuid,
  looks integer default 0 not null,
  alerted_at timestamptz,
  ended_at timestamptz,
  outcome text,
  primary key (job_id, provider_task_id),
  constraint upstream_watches_end_with_outcome check ((ended_at is null) = (outcome is null)),
  constraint upstream_watches_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index upstream_watches_due on callkeeper.upstream_watches (check_at, job_id) where ended_at is null;

-- Files that came after their job had ended: the user's, never charged, apart from the job's own.
create table callkeeper.standalone_assets (
  id bigint generated always as identity,
  job_id uuid not null,
  user_id text,
  provider_kind text not null,
  provider_task_id text not null,
  position integer not null,
  object_key text not null,
  content_type text not null,
  size_bytes bigint not null,
  sha256 text not null,
  visibility text not null,
  watermark boolean not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint standalone_assets_are_whole check (size_bytes > 0 and sha256 ~ '^[0-9a-f]{64}$'),
  constraint standalone_assets_visibility_known check (visibility in ('public', 'private')),
  constraint standalone_assets_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create unique index standalone_assets_one_per_position
  on callkeeper.standalone_assets (provider_kind, provider_task_id, position);
create index standalone_assets_by_job on callkeeper.standalone_assets (job_id);

-- The key of the effect that this one waits for; null: none.
alter table callkeeper.consequences add column after text;

-- What the last run did, by name; and who runs a pass that must not overlap with itself, until when at most.
alter table callkeeper.passes
  add column counts jsonb default '{}' not null, add column locked_until timestamptz, add column lock_token uuid;

create view callkeeper_audit.unexplained_spend as
select s.job_id, j.user_id, j.job_type, s.provider_kind, s.provider_task_id, s.call_generation as generation,
  s.call_started_at, s.error_code, s.price, s.created_at, s.resolved_at, s.resolution
from callkeeper.unexplained_spend s join callkeeper.jobs j on j.id = s.job_id;

create view callkeeper_audit.looks as
select l.job_id, l.looked_at, l.late_seconds, l.found, l.did, l.code, l.misses, l.attempts, j.job_type, j.status,
  j.reconcile_attempts, j.reconcile_deferrals, j.reconcile_last_error
from callkeeper.job_looks l join callkeeper.jobs j on j.id = l.job_id;
