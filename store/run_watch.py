"""What is looked at of runs: how one stands, which are due, their steps that take longer than their stage should."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement

DUE_RUNS = statement(
    """
    select id from callkeeper.runs
    where status = 'running' and next_check_at <= now()
    order by next_check_at, id
    limit :at_most
    """
).bindparams(sa.bindparam("at_most", type_=sa.Integer))


def due(connection: sa.Connection, *, at_most: int = 100) -> list[UUID]:
    """Open runs to look at again, those quiet for longest first. Looking moves a run's next look on."""
    return list(connection.execute(DUE_RUNS, {"at_most": at_most}).scalars())


class Outlook(NamedTuple):
    """Where a run stands. `continued_as`: the run that has its key now, once it came to nothing itself."""

    status: str
    failure_code: str | None
    continued_as: UUID | None


OUTLOOK = statement(
    """
    select r.status, r.failure_code, (
      select o.id from callkeeper.runs o
      where coalesce(o.user_id, '') = coalesce(r.user_id, '') and o.idempotency_key = r.idempotency_key
        and o.status in ('running', 'completed') and o.id <> r.id
    ) as continued_as
    from callkeeper.runs r where r.id = :run_id
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))


def outlook(connection: sa.Connection, run_id: UUID) -> Outlook | None:
    """How a run stands, in short; None if there is none."""
    row = connection.execute(OUTLOOK, {"run_id": run_id}).one_or_none()
    return None if row is None else Outlook(*row)


@dataclass(frozen=True, slots=True)
class OpenStep:
    """A step that could run and has not ended. `age`: seconds since it could run, by the database's clock."""

    job_id: UUID
    step: str
    stage: str
    job_type: str
    status: str
    epoch: int
    mode: str
    kind: str | None
    attempt: int
    max_attempts: int
    retry_safe: bool
    heavy: bool
    call_started: bool
    task_known: bool
    result_known: bool
    lapsed: bool
    poll_late: bool
    message_sent: bool
    age: float


OPEN_STEPS = statement(
    """
    select id as job_id, step, stage, job_type, status, epoch, mode, provider_kind as kind, attempt, max_attempts,
      retry_safe, heavy, provider_call_started_at is not null as call_started,
      provider_task_id is not null as task_known, result_known_at is not null as result_known,
      coalesce(lease_until < now(), false) as lapsed,
      coalesce(next_poll_at < now() - interval '1 minute', false) as poll_late,
      status = 'queued' and (parked_on is not null or exists (
        select from dramatiq.queue q
        where q.state in ('queued', 'consumed') and q.message -> 'args' ->> 0 = j.id::text
      )) as message_sent,
      extract(epoch from now() - coalesce(started_at, available_at))::float8 as age
    from callkeeper.jobs j
    where run_id = :run_id and status in ('queued', 'running', 'waiting') and not blocked
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))


def open_steps(connection: sa.Connection, run_id: UUID) -> list[OpenStep]:
    rows = connection.execute(OPEN_STEPS, {"run_id": run_id}).mappings()
    return [OpenStep(**row) for row in rows]


# Once a job and kind of event, however often it is looked at.
TELL_ONCE = statement(
    """
    with moved as (
      update callkeeper.runs r
      set event_seq = r.event_seq + 1
      where r.id = :run_id and r.status = 'running' and not exists (
        select from callkeeper.run_events e
        where e.run_id = :run_id and e.kind = :kind and e.data ->> 'job_id' = cast(:job_id as text)
      )
      returning r.id, r.event_seq
    )
    insert into callkeeper.run_events (run_id, seq, kind, data)
    select id, event_seq, :kind, :data || jsonb_build_object('job_id', cast(:job_id as text)) from moved
    returning seq
    """
).bindparams(
    sa.bindparam("run_id", type_=pg.UUID),
    sa.bindparam("kind", type_=sa.Text),
    sa.bindparam("job_id", type_=sa.Text),
    sa.bindparam("data", type_=pg.JSONB),
)


def tell_once(connection: sa.Connection, run_id: UUID, kind: str, *, job_id: UUID, data: Mapping[str, Any]) -> bool:
    """Write down what the watchdog saw of a job of this run. False when it was written before."""
    binds = {"run_id": run_id, "kind": kind, "job_id": str(job_id), "data": dict(data)}
    return connection.execute(TELL_ONCE, binds).one_or_none() is not None


POLL_SOON = statement(
    """
    update callkeeper.jobs
    set next_poll_at = clock_timestamp(), poll_token = null
    where id = :job_id and epoch = :epoch and status = 'waiting' and next_poll_at < now() - interval '1 minute'
    returning id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def poll_soon(connection: sa.Connection, job_id: UUID, *, epoch: int) -> bool:
    """Make an overdue poll due at the front of the line; a poll in flight is superseded."""
    return connection.execute(POLL_SOON, {"job_id": job_id, "epoch": epoch}).one_or_none() is not None
