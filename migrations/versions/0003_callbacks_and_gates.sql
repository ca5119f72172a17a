-- Callbacks are stored first and applied later: most providers send them once. A body is kept for people; nothing in it
-- is believed but the task's id.
create table callkeeper.webhook_deliveries (
  id bigint generated always as identity,
  provider_kind text not null,
  delivery_id text not null,
  job_id uuid,
  call_generation integer,
  provider_task_id text not null,
  received_at timestamptz default clock_timestamp() not null,
  applied_at timestamptz,
  outcome text,
  primary key (id),
  constraint webhook_deliveries_names_are_short check (
    octet_length(delivery_id) between 1 and 512 and octet_length(provider_task_id) between 1 and 512
  ),
  constraint webhook_deliveries_applied_once check ((applied_at is null) = (outcome is null))
);
create unique index webhook_deliveries_once on callkeeper.webhook_deliveries (provider_kind, delivery_id);
create index webhook_deliveries_by_task on callkeeper.webhook_deliveries (provider_kind, provider_task_id)
  where outcome = 'unknown_task';

-- A provider account that cannot be called for now. No row, or a time that has passed: open. While it is closed no call
-- starts and its jobs' clocks stand still: what they lost is given back when it opens.
create table callkeeper.provider_gates (
  provider_kind text not null,
  account text not null,
  reason text not null,
  closed_at timestamptz not null,
  closed_until timestamptz not null,
  failures integer default 0 not null,
  stops_clocks boolean default false not null,
  primary key (provider_kind, account)
);
