-- What operators are to be told: one row for each opening of an alert and each way to tell of it.
create table callkeeper.alert_notices (
  key text primary key,
  subject text not null,
  channel text not null,
  body jsonb not null,
  available_at timestamptz default clock_timestamp() not null,
  attempts integer default 0 not null,
  claim_token uuid,
  last_error text,
  created_at timestamptz default clock_timestamp() not null,
  delivered_at timestamptz,
  dead_at timestamptz,
  constraint alert_notices_end_once check (delivered_at is null or dead_at is null),
  constraint alert_notices_channel_known check (channel in ('webhook', 'email')),
  constraint alert_notices_alert foreign key(subject) references callkeeper.alerts (subject) on delete cascade
);
create index alert_notices_due on callkeeper.alert_notices (available_at, key) where delivered_at is null and dead_at is null;

-- In the transaction that opens it, whoever does; raising an open alert again tells nobody twice.
create function callkeeper.tell_alert() returns trigger
language plpgsql
as $$
begin
  insert into callkeeper.alert_notices (key, subject, channel, body)
  select 'alert:' || md5(new.subject) || ':' || new.times || ':' || c.channel, new.subject, c.channel,
    jsonb_build_object('subject', new.subject, 'details', new.details, 'times', new.times, 'opened_at', new.last_at)
  from (values ('webhook'), ('email')) as c (channel)
  on conflict (key) do nothing;
  return null;
end
$$;
create trigger alerts_opened_are_told
after insert on callkeeper.alerts
for each row when (new.resolved_at is null) execute function callkeeper.tell_alert();
create trigger alerts_reopened_are_told
after update on callkeeper.alerts
for each row when (old.resolved_at is not null and new.resolved_at is null) execute function callkeeper.tell_alert();

-- Added to the view as it stands, whatever else it states by now.
do $$
begin
  execute 'create or replace view callkeeper_audit.violations as '
    || rtrim(pg_get_viewdef('callkeeper_audit.violations'::regclass), ' ;')
    || ' union all select 12 as invariant, null::uuid as job_id,'
    || ' ''alert notice '' || key || '' holds what looks like a secret or a signed URL'' as what'
    || ' from callkeeper.alert_notices'
    || ' where concat_ws('' '', body::text, last_error) ~* ''[?&](x-amz-signature|x-goog-signature|signature|sig|token|key)='''
    || ' or concat_ws('' '', body::text, last_error)'
    || ' ~ ''(^|[^A-Za-z0-9_])(sk-[A-Za-z0-9_-]{16,}|r8_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{30,})''';
end
$$;
