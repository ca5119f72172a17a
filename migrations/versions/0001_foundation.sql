-- Callkeeper's tables. The row is the truth; a queue message only wakes somebody to look at it.
--
-- jobs            one row a job: state, lease, call, poll, outcome. Narrow, since it is rewritten at every transition.
-- job_requests    what was asked for, written once, so that a transition never rewrites it.
-- accounts        credits in two pools; a CHECK keeps granted = balance + reserved + committed at every statement.
-- usage_logs      one reservation a job, with its split over the pools; committed or refunded once, with the job.
-- job_events      the job's log: seq is a counter on the job row, taken under its lock, so 1..n without gaps.
-- job_signals     requests to a job (stop), consumed exactly once, in the settlement at the latest.
-- call_receipts   every provider task id ever learned, whoever held the lease: the money is spent all the same.
-- assets          result media in the object store.
-- notices         messages owed to people; consequences: effects owed to machines. Both are outboxes.
-- alerts, stale_writes, ticks, passes: what operators look at.
--
-- Who moves which state stands in store/states.py; the CHECKs below refuse every half-transition, also by hand.

create schema if not exists callkeeper;

create table callkeeper.accounts (
  id text not null,
  granted_subscription bigint default 0 not null,
  granted_topup bigint default 0 not null,
  balance_subscription bigint default 0 not null,
  balance_topup bigint default 0 not null,
  reserved_subscription bigint default 0 not null,
  reserved_topup bigint default 0 not null,
  committed_subscription bigint default 0 not null,
  committed_topup bigint default 0 not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint accounts_subscription_conserved check (granted_subscription = balance_subscription + reserved_subscription + committed_subscription),
  constraint accounts_topup_conserved check (granted_topup = balance_topup + reserved_topup + committed_topup),
  constraint accounts_subscription_never_negative check (least(balance_subscription, reserved_subscription, committed_subscription) >= 0),
  constraint accounts_topup_never_negative check (least(balance_topup, reserved_topup, committed_topup) >= 0)
);

create table callkeeper.jobs (
  id uuid default gen_random_uuid() not null,
  user_id text,
  account_id text,
  job_type text not null,
  queue text not null,
  actor text not null,
  mode text not null,
  retry_safe boolean default false not null,
  idempotency_key text,
  request_fingerprint text not null,
  price bigint not null,
  status text default 'queued' not null,
  attempt integer default 1 not null,
  max_attempts integer not null,
  queue_limit interval not null,
  run_limit interval not null,
  available_at timestamptz not null,
  queue_deadline_at timestamptz not null,
  deadline_at timestamptz not null,
  next_check_at timestamptz,
  epoch integer default 0 not null,
  lease_owner text,
  lease_token uuid,
  lease_until timestamptz,
  provider_kind text,
  provider_task_id text,
  provider_call_started_at timestamptz,
  call_key uuid,
  call_generation integer default 0 not null,
  call_handle jsonb,
  resolve_by timestamptz,
  next_poll_at timestamptz,
  poll_token uuid,
  poll_misses integer default 0 not null,
  result_known_at timestamptz,
  progress real,
  event_seq integer default 0 not null,
  result jsonb,
  error_code text,
  error_message text,
  created_at timestamptz default clock_timestamp() not null,
  started_at timestamptz,
  finished_at timestamptz,
  primary key (id),
  constraint jobs_status_known check (status in ('queued', 'running', 'waiting', 'completed', 'failed', 'timed_out', 'cancelled')),
  constraint jobs_mode_known check (mode in ('async', 'sync', 'local')),
  constraint jobs_running_is_leased check ((status = 'running') = (lease_token is not null)),
  constraint jobs_lease_is_whole check (num_nulls(lease_owner, lease_token, lease_until) in (0, 3)),
  constraint jobs_waiting_is_polled check ((status = 'waiting') = (next_poll_at is not null)),
  constraint jobs_poll_lease_waits check (poll_token is null or status = 'waiting'),
  constraint jobs_waiting_has_call check (status <> 'waiting' or (mode = 'async' and provider_call_started_at is not null)),
  constraint jobs_queued_has_no_call check (status <> 'queued' or provider_call_started_at is null),
  constraint jobs_call_is_whole check (num_nulls(provider_call_started_at, call_key, call_handle) in (0, 3) and (provider_call_started_at is null or provider_kind is not null)),
  constraint jobs_task_has_call check (provider_task_id is null or (provider_call_started_at is not null and call_generation > 0)),
  constraint jobs_ambiguity_is_bounded check (status <> 'waiting' or provider_task_id is not null or resolve_by is not null),
  constraint jobs_result_has_task check (result_known_at is null or provider_task_id is not null),
  constraint jobs_terminal_is_finished check ((status in ('completed', 'failed', 'timed_out', 'cancelled')) = (finished_at is not null)),
  constraint jobs_open_is_watched check ((status in ('queued', 'running', 'waiting')) = (next_check_at is not null)),
  constraint jobs_completed_has_result check ((status = 'completed') = (result is not null)),
  constraint jobs_unsuccess_has_error check ((status in ('failed', 'timed_out', 'cancelled')) = (error_code is not null)),
  constraint jobs_error_is_capped check (octet_length(error_message) <= 4096 and octet_length(error_code) <= 64),
  constraint jobs_attempt_within_limit check (attempt between 1 and max_attempts),
  constraint jobs_price_is_payable check (price >= 0 and (price = 0 or account_id is not null)),
  constraint jobs_progress_is_share check (progress between 0 and 1),
  constraint jobs_names_are_short check (octet_length(job_type) <= 128 and octet_length(queue) <= 128 and octet_length(user_id) <= 256 and octet_length(idempotency_key) between 1 and 256),
  constraint jobs_account foreign key(account_id) references callkeeper.accounts (id)
);
create index jobs_check_due on callkeeper.jobs (next_check_at, id)
  where status in ('queued', 'running', 'waiting');
create unique index jobs_one_per_key on callkeeper.jobs (coalesce(user_id, ''), idempotency_key)
  where idempotency_key is not null and status in ('queued', 'running', 'waiting', 'completed');
create unique index jobs_one_per_task on callkeeper.jobs (provider_kind, provider_task_id)
  where provider_task_id is not null;
create index jobs_poll_due on callkeeper.jobs (next_poll_at, id)
  where status = 'waiting';
create index jobs_running on callkeeper.jobs (id)
  where status = 'running';

create table callkeeper.job_requests (
  job_id uuid not null,
  request jsonb not null,
  primary key (job_id),
  constraint job_requests_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);

create table callkeeper.usage_logs (
  job_id uuid not null,
  account_id text not null,
  status text default 'reserved' not null,
  reserved_subscription bigint default 0 not null,
  reserved_topup bigint default 0 not null,
  committed_subscription bigint default 0 not null,
  committed_topup bigint default 0 not null,
  cost bigint,
  created_at timestamptz default clock_timestamp() not null,
  settled_at timestamptz,
  primary key (job_id),
  constraint usage_logs_status_known check (status in ('reserved', 'committed', 'refunded')),
  constraint usage_logs_settled_once check ((status = 'reserved') = (settled_at is null)),
  constraint usage_logs_commit_within_reservation check (committed_subscription between 0 and reserved_subscription and committed_topup between 0 and reserved_topup),
  constraint usage_logs_only_committed_charges check (status = 'committed' or committed_subscription + committed_topup = 0),
  constraint usage_logs_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade,
  constraint usage_logs_account foreign key(account_id) references callkeeper.accounts (id)
);
create index usage_logs_reserved on callkeeper.usage_logs (account_id)
  where status = 'reserved';

create table callkeeper.job_events (
  job_id uuid not null,
  seq integer not null,
  kind text not null,
  attempt integer not null,
  epoch integer not null,
  data jsonb default '{}' not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (job_id, seq),
  constraint job_events_seq_counts_from_one check (seq >= 1),
  constraint job_events_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create unique index job_events_one_terminal on callkeeper.job_events (job_id)
  where kind in ('completed', 'failed', 'timed_out', 'cancelled');

create table callkeeper.job_signals (
  id bigint generated always as identity,
  job_id uuid not null,
  kind text not null,
  created_at timestamptz default clock_timestamp() not null,
  consumed_at timestamptz,
  primary key (id),
  constraint job_signals_kind_known check (kind in ('stop')),
  constraint job_signals_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create unique index job_signals_one_pending on callkeeper.job_signals (job_id, kind)
  where consumed_at is null;

create table callkeeper.call_receipts (
  id bigint generated always as identity,
  job_id uuid not null,
  provider_kind text not null,
  provider_task_id text not null,
  call_generation integer not null,
  call_key uuid not null,
  source text not null,
  epoch integer not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint call_receipts_source_known check (source in ('create', 'late_create', 'find', 'callback', 'response')),
  constraint call_receipts_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index call_receipts_by_task on callkeeper.call_receipts (provider_kind, provider_task_id);
create unique index call_receipts_once on callkeeper.call_receipts (job_id, provider_kind, provider_task_id);

create table callkeeper.assets (
  id bigint generated always as identity,
  job_id uuid not null,
  position integer not null,
  object_key text not null,
  content_type text not null,
  size_bytes bigint not null,
  sha256 text not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint assets_are_whole check (size_bytes > 0 and sha256 ~ '^[0-9a-f]{64}$'),
  constraint assets_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create unique index assets_one_per_object on callkeeper.assets (object_key);
create unique index assets_one_per_position on callkeeper.assets (job_id, position);

create table callkeeper.notices (
  key text not null,
  job_id uuid not null,
  user_id text,
  body jsonb not null,
  available_at timestamptz default clock_timestamp() not null,
  attempts integer default 0 not null,
  claim_token uuid,
  last_error text,
  created_at timestamptz default clock_timestamp() not null,
  delivered_at timestamptz,
  dead_at timestamptz,
  primary key (key),
  constraint notices_end_once check (delivered_at is null or dead_at is null),
  constraint notices_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index notices_due on callkeeper.notices (available_at, key)
  where delivered_at is null and dead_at is null;

create table callkeeper.consequences (
  key text not null,
  job_id uuid not null,
  effect text not null,
  body jsonb not null,
  available_at timestamptz default clock_timestamp() not null,
  attempts integer default 0 not null,
  claim_token uuid,
  last_error text,
  created_at timestamptz default clock_timestamp() not null,
  delivered_at timestamptz,
  dead_at timestamptz,
  primary key (key),
  constraint consequences_end_once check (delivered_at is null or dead_at is null),
  constraint consequences_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);
create index consequences_due on callkeeper.consequences (available_at, key)
  where delivered_at is null and dead_at is null;

create table callkeeper.alerts (
  subject text not null,
  details jsonb default '{}' not null,
  times bigint default 1 not null,
  first_at timestamptz default clock_timestamp() not null,
  last_at timestamptz default clock_timestamp() not null,
  resolved_at timestamptz,
  primary key (subject)
);

create table callkeeper.stale_writes (
  id bigint generated always as identity,
  job_id uuid not null,
  verb text not null,
  epoch integer not null,
  lease_owner text not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (id),
  constraint stale_writes_job foreign key(job_id) references callkeeper.jobs (id) on delete cascade
);

create table callkeeper.ticks (
  schedule text not null,
  due_at timestamptz not null,
  created_at timestamptz default clock_timestamp() not null,
  primary key (schedule, due_at)
);

create table callkeeper.passes (
  name text not null,
  last_started_at timestamptz not null,
  last_success_at timestamptz,
  last_error text,
  scanned bigint default 0 not null,
  acted bigint default 0 not null,
  took_ms bigint default 0 not null,
  primary key (name)
);

-- Room on each page for heap-only updates: a heartbeat touches no index.
alter table callkeeper.jobs set (
  fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1
);
alter table callkeeper.accounts set (fillfactor = 50);

-- The last word on "a terminal job never changes", for code and people alike.
create function callkeeper.refuse_terminal_change() returns trigger
language plpgsql as $$
begin
  raise exception 'job % is %: a terminal job never changes', old.id, old.status
    using errcode = 'check_violation', schema = 'callkeeper', table = 'jobs', constraint = 'jobs_terminal_is_final';
end
$$;

create trigger jobs_terminal_is_final
  before update on callkeeper.jobs
  for each row when (old.status in ('completed', 'failed', 'timed_out', 'cancelled'))
  execute function callkeeper.refuse_terminal_change();

-- Receipts are append-only: what was once learned about paid work is never forgotten or rewritten.
create function callkeeper.refuse_receipt_change() returns trigger
language plpgsql as $$
begin
  raise exception 'call receipt % is append-only', old.id
    using errcode = 'check_violation', schema = 'callkeeper', table = 'call_receipts',
      constraint = 'call_receipts_append_only';
end
$$;

create trigger call_receipts_append_only
  before update on callkeeper.call_receipts
  for each row execute function callkeeper.refuse_receipt_change();

-- The queue, as dramatiq-postgres 1.4 expects to find it. A test compares it with what the library itself would create.
create schema if not exists dramatiq;

create type dramatiq.state as enum ('queued', 'consumed', 'rejected');

create table dramatiq.queue (
  message_id uuid primary key,
  queue_name text not null default 'default',
  state dramatiq.state,
  mtime timestamptz default now(),
  message jsonb,
  position bigint generated by default as identity,
  available_at timestamptz not null default now(),
  worker_id uuid,
  consumed_at timestamptz
);
create index queue_queue_name_available_at_position_idx on dramatiq.queue (queue_name, available_at, position)
  where state = 'queued';
create index queue_state_mtime_idx on dramatiq.queue (state, mtime);
alter table dramatiq.queue set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

create table dramatiq.worker (
  worker_id uuid primary key,
  heartbeat_at timestamptz not null
);

create table dramatiq.result (
  message_id uuid primary key,
  result jsonb,
  expires_at timestamptz
);
