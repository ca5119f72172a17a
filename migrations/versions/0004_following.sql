-- Following a job. Every event carries its frame: the exact bytes that are sent live, and again to whoever asks later.
-- A trigger writes it, so that no writer can forget it, and tells the followers, where there are any: a NOTIFY makes
-- commits wait for each other, so nobody pays for one that nobody hears.

alter table callkeeper.job_events add column frame text;

create function callkeeper.event_frame(
  seq integer, kind text, attempt integer, epoch integer, at timestamptz, data text
) returns text
language sql stable
return '{"seq":' || seq || ',"kind":' || to_json(kind) || ',"attempt":' || attempt || ',"epoch":' || epoch
  || ',"at":"' || to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') || '","data":' || data || '}';

-- Who is followed until when; `ephemeral_until` by somebody who wants what is never stored, too. Nothing depends on it:
-- after a crash it is empty, its followers look by themselves until they have said again that they are there.
create unlogged table callkeeper.followed (
  job_id uuid not null,
  until timestamptz not null,
  ephemeral_until timestamptz,
  primary key (job_id)
);

create function callkeeper.write_event_frame() returns trigger
language plpgsql as $$
begin
  -- A writer who cares for the order of its keys gives the text of the data as the frame.
  new.frame := callkeeper.event_frame(
    new.seq, new.kind, new.attempt, new.epoch, new.created_at, coalesce(new.frame, new.data::text)
  );
  -- Nobody follows a job that is not there yet.
  if new.seq > 1 and exists (select from callkeeper.followed where job_id = new.job_id and until > now()) then
    perform pg_notify('callkeeper_event', new.job_id::text);
  end if;
  return new;
end
$$;

create trigger job_events_have_frames
  before insert on callkeeper.job_events
  for each row execute function callkeeper.write_event_frame();

-- The limit of one attempt, beside that of the whole job; null where there is none. It begins anew with each claim.
alter table callkeeper.jobs add column attempt_limit interval, add column attempt_deadline_at timestamptz;
