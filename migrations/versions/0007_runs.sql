-- Runs: many jobs with one outcome. A step of a run is a job from the start, held back (`blocked`) until the steps it
-- depends on have ended; what the run is follows from its jobs, under the run's row lock, in the settlement of each.
create table callkeeper.runs (
  id uuid default gen_random_uuid() not null,
  run_type text not null,
  user_id text,
  account_id text,
  idempotency_key text,
  request_fingerprint text not null,
  status text default 'running' not null,
  ending text,
  failure_code text,
  failed_nodes text[] default '{}' not null,
  quality text default 'standard' not null,
  progress real default 0 not null,
  result_step text not null,
  reuse boolean default false not null,
  email text,
  node_limit interval not null,
  run_limit interval not null,
  deadline_at timestamptz not null,
  next_check_at timestamptz,
  round integer default 0 not null,
  event_seq integer default 0 not null,
  created_at timestamptz default clock_timestamp() not null,
  finished_at timestamptz,
  primary key (id),
  constraint runs_status_known check (status in ('running', 'completed', 'failed', 'timed_out', 'cancelled')),
  constraint runs_ending_known check (ending in ('failed', 'timed_out', 'cancelled')),
  constraint runs_quality_known check (quality in ('standard', 'repaired', 'degraded')),
  constraint runs_terminal_is_finished check ((status <> 'running') = (finished_at is not null)),
  constraint runs_open_is_watched check ((status = 'running') = (next_check_at is not null)),
  constraint runs_ending_is_explained check ((ending is not null) = (failure_code is not null)),
  constraint runs_unsuccess_was_decided check (status in ('running', 'completed') or ending is not distinct from status),
  constraint runs_completed_is_whole check (status <> 'completed' or (ending is null and progress = 1)),
  constraint runs_progress_is_share check (progress between 0 and 1),
  constraint runs_node_within_run check (node_limit > interval '0' and node_limit <= run_limit),
  constraint runs_names_are_short check (octet_length(run_type) <= 128 and octet_length(user_id) <= 256 and octet_length(idempotency_key) between 1 and 256 and octet_length(email) <= 320 and octet_length(failure_code) <= 64),
  constraint runs_account foreign key(account_id) references callkeeper.accounts (id)
);
create unique index runs_one_per_key on callkeeper.runs (coalesce(user_id, ''), idempotency_key)
  where idempotency_key is not null and status in ('running', 'completed');
create index runs_check_due on callkeeper.runs (next_check_at, id)
  where status = 'running';
create index runs_newest on callkeeper.runs (created_at, id);

-- The last word on "a settled run changes only by being resumed".
create function callkeeper.refuse_run_change() returns trigger
language plpgsql as $$
begin
  raise exception 'run % is %: a settled run changes only by being resumed', old.id, old.status
    using errcode = 'check_violation', schema = 'callkeeper', table = 'runs', constraint = 'runs_terminal_is_final';
end
$$;
create trigger runs_terminal_is_final
  before update on callkeeper.runs
  for each row when (
    old.status in ('completed', 'timed_out', 'cancelled')
    or (old.status = 'failed' and not (new.status = 'running' and new.round = old.round + 1))
  )
  execute function callkeeper.refuse_run_change();

create table callkeeper.run_events (
  run_id uuid not null,
  seq integer not null,
  kind text not null,
  data jsonb default '{}' not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (run_id, seq),
  constraint run_events_seq_counts_from_one check (seq >= 1),
  constraint run_events_run foreign key(run_id) references callkeeper.runs (id) on delete cascade
);

alter table callkeeper.jobs
  add column run_id uuid,
  add column step text,
  add column stage text,
  add column operation_key text,
  add column depends_on text[] default '{}' not null,
  add column optional boolean default false not null,
  add column blocked boolean default false not null,
  add column round integer default 0 not null,
  add column heavy boolean default false not null,
  add column recreates integer default 0 not null;
alter table callkeeper.jobs add constraint jobs_run
  foreign key (run_id) references callkeeper.runs (id) on delete cascade not valid;
alter table callkeeper.jobs add constraint jobs_step_is_whole
  check (num_nulls(run_id, step, stage, operation_key) in (0, 4)) not valid;
alter table callkeeper.jobs add constraint jobs_blocked_never_started
  check (not blocked or (run_id is not null and started_at is null and status not in ('running', 'waiting', 'completed'))) not valid;
alter table callkeeper.jobs add constraint jobs_recreates_within_budget check (recreates between 0 and 2) not valid;

create table callkeeper.run_warnings (
  job_id uuid not null,
  position integer not null,
  run_id uuid not null,
  code text not null,
  stage text not null,
  severity text not null,
  customer_visible boolean not null,
  quality text not null,
  details jsonb default '{}' not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (job_id, position),
  constraint run_warnings_severity_known check (severity in ('info', 'warning')),
  constraint run_warnings_quality_known check (quality in ('standard', 'repaired', 'degraded')),
  constraint run_warnings_code_is_short check (octet_length(code) between 1 and 64),
  constraint run_warnings_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade,
  constraint run_warnings_run foreign key(run_id) references callkeeper.runs (id) on delete cascade
);
create index run_warnings_by_run on callkeeper.run_warnings (run_id, job_id);

-- A whole outcome of an operation, written before its settlement, so that nothing is paid for or computed twice.
create table callkeeper.run_outcomes (
  run_id uuid not null,
  operation_key text not null,
  job_id uuid not null,
  result jsonb not null,
  assets jsonb default '[]' not null,
  warnings jsonb default '[]' not null,
  cost bigint,
  late boolean default false not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (run_id, operation_key),
  constraint run_outcomes_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade,
  constraint run_outcomes_run foreign key(run_id) references callkeeper.runs (id) on delete cascade
);

-- What may be switched on slowly: a row a flag, changed while everything runs.
create table callkeeper.rollout_flags (
  name text not null,
  mode text not null,
  percent integer default 0 not null,
  changed_at timestamptz default clock_timestamp() not null,
  primary key (name),
  constraint rollout_flags_name_known check (name in ('provider_resume', 'classified_retries', 'salvage', 'plan_repair')),
  constraint rollout_flags_mode_known check (mode in ('off', 'shadow', 'canary', 'on')),
  constraint rollout_flags_percent_is_share check (percent between 0 and 100)
);
create table callkeeper.rollout_decisions (
  id bigint generated always as identity,
  flag text not null,
  run_id uuid not null,
  job_id uuid not null,
  did boolean not null,
  decision jsonb not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint rollout_decisions_run foreign key(run_id) references callkeeper.runs (id) on delete cascade,
  constraint rollout_decisions_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index rollout_decisions_by_run on callkeeper.rollout_decisions (run_id, flag);

-- A notice may be of a run instead of a job, and go by e-mail. Older code delivers one without looking at its job.
-- squawk-ignore ban-drop-not-null
alter table callkeeper.notices alter column job_id drop not null;
alter table callkeeper.notices
  add column run_id uuid,
  add column channel text default 'webhook' not null;
alter table callkeeper.notices add constraint notices_run
  foreign key (run_id) references callkeeper.runs (id) on delete cascade not valid;
alter table callkeeper.notices add constraint notices_of_one check (num_nulls(job_id, run_id) = 1) not valid;
alter table callkeeper.notices add constraint notices_channel_known check (channel in ('webhook', 'email')) not valid;
