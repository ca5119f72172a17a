"""What the passes look for, and what they leave behind: lapsed leases, rows gone quiet, their own last success."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import NOW, is_state, statement
from store.queue import wake
from store.states import State
from store.tables import jobs


@dataclass(frozen=True, slots=True)
class Lapsed:
    """A running job whose lease has run out, with the facts the recovery table asks for."""

    job_id: UUID
    epoch: int
    mode: str
    attempt: int
    max_attempts: int
    retry_safe: bool
    call_started: bool
    task_known: bool
    heavy: bool = False  # it may have been too large for the machine that is gone
    run_id: UUID | None = None


LAPSED_LEASES = (
    sa.select(
        jobs.c.id,
        jobs.c.epoch,
        jobs.c.mode,
        jobs.c.attempt,
        jobs.c.max_attempts,
        jobs.c.retry_safe,
        jobs.c.provider_call_started_at.is_not(None).label("call_started"),
        jobs.c.provider_task_id.is_not(None).label("task_known"),
        jobs.c.heavy,
        jobs.c.run_id,
    )
    .where(is_state(State.RUNNING), jobs.c.lease_until < NOW)
    .limit(sa.bindparam("at_most"))
)


def lapsed_leases(connection: sa.Connection, *, at_most: int = 200) -> list[Lapsed]:
    """Jobs to recover. A hint only: every act on one repeats its guard."""
    return [Lapsed(*row) for row in connection.execute(LAPSED_LEASES, {"at_most": at_most})]


@dataclass(frozen=True, slots=True)
class Quiet:
    """An open job that nobody has had reason to look at for a while, with all that a decision about it needs.

    `late` is how many seconds after its time this look came; `stale` says that the row is past its kind's threshold,
    counted from the call's start, or from its submit before there was one.
    """

    job_id: UUID
    epoch: int
    status: State
    past_queue_deadline: bool
    past_deadline: bool
    past_attempt_deadline: bool
    task_known: bool
    call_started: bool
    message_sent: bool
    job_type: str
    mode: str
    kind: str | None
    attempt: int
    max_attempts: int
    retry_safe: bool
    lapsed: bool
    stale: bool
    failed_looks: int
    late: float
    clock_stands: bool


# Looking is itself a write: the row's next look moves on, so no row is looked at twice in a pass and none starves.
LOOK_AT_QUIET = statement(
    """
    with due as materialized (
      select id, next_check_at as due_at from callkeeper.jobs
      where status in ('queued', 'running', 'waiting') and next_check_at <= now()
        and (provider_kind is null or provider_kind <> all(:busy))
      order by next_check_at, id
      limit :at_most
      for update skip locked
    ), looked as (
      update callkeeper.jobs j
      set next_check_at = case
        when status <> 'queued' and least(deadline_at, attempt_deadline_at) <= now()
          then clock_timestamp() + interval '1 minute'
        when status <> 'queued'
          then least(deadline_at, attempt_deadline_at, clock_timestamp() + interval '5 minutes')
        else least(
          greatest(queue_deadline_at, clock_timestamp() + interval '1 minute'), clock_timestamp() + interval '5 minutes'
        )
      end
      from due
      where j.id = due.id and j.status || '' in ('queued', 'running', 'waiting') and j.next_check_at <= now()
      returning j.*, due.due_at
    )
    select id as job_id, epoch, status,
      status = 'queued' and queue_deadline_at <= now() as past_queue_deadline,
      deadline_at <= now() as past_deadline, coalesce(attempt_deadline_at <= now(), false) as past_attempt_deadline,
      provider_task_id is not null as task_known,
      provider_call_started_at is not null as call_started,
      status = 'queued' and (parked_on is not null or exists (
        select from dramatiq.queue q
        where q.state in ('queued', 'consumed') and q.message -> 'args' ->> 0 = looked.id::text
      )) as message_sent,
      job_type, mode, provider_kind as kind, attempt, max_attempts, retry_safe,
      coalesce(lease_until < now(), false) as lapsed,
      coalesce(provider_call_started_at, greatest(created_at, available_at)) + stale_after <= now() as stale,
      reconcile_attempts as failed_looks, greatest(extract(epoch from now() - due_at), 0)::float8 as late,
      exists (
        select from callkeeper.provider_gates g where g.provider_kind = looked.provider_kind and g.stops_clocks
      ) as clock_stands
    from looked
    """
).bindparams(sa.bindparam("at_most", type_=sa.Integer), sa.bindparam("busy", type_=pg.ARRAY(sa.Text)))


def look_at_quiet(connection: sa.Connection, *, at_most: int = 200, busy: Sequence[str] = ()) -> list[Quiet]:
    """Open jobs whose `next_check_at` has passed, each advanced to its next look; the longest quiet come first.

    Rows of the kinds in `busy` stay due: their provider has as many of our questions open as one provider may have.
    """
    rows = connection.execute(LOOK_AT_QUIET, {"at_most": at_most, "busy": list(busy)}).mappings()
    return [Quiet(**{**row, "status": State(row["status"])}) for row in rows]


_due = (
    sa.select(jobs.c.id, jobs.c.queue, jobs.c.actor, jobs.c.available_at)
    .where(
        jobs.c.id == sa.any_(sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID))),
        is_state(State.QUEUED),
        jobs.c.available_at <= NOW,
        ~jobs.c.blocked,
    )
    .cte("due")
)
_sent, _notify = wake(_due, queue=_due.c.queue, actor=_due.c.actor, available_at=_due.c.available_at)
SEND_AGAIN = sa.select(_due.c.id, _notify).add_cte(_sent)


LOOK_AGAIN = statement(
    """
    with unreached as materialized (
      select id from callkeeper.jobs where id = any(:job_ids) order by id for no key update
    )
    update callkeeper.jobs j set next_check_at = clock_timestamp()
    from unreached
    where j.id = unreached.id and j.status || '' in ('queued', 'running', 'waiting') and j.next_check_at > now()
    """
).bindparams(sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)))


def look_again(connection: sa.Connection, job_ids: Sequence[UUID]) -> None:
    """These were selected and then not looked at after all: due again at once."""
    connection.execute(LOOK_AGAIN, {"job_ids": list(job_ids)})


def send_again(connection: sa.Connection, job_ids: Sequence[UUID]) -> int:
    """A fresh message for each queued job that is due; a second message for one is harmless."""
    return len(connection.execute(SEND_AGAIN, {"job_ids": list(job_ids)}).all())


START_PASS = statement(
    """
    insert into callkeeper.passes (name, last_started_at) values (:name, clock_timestamp())
    on conflict (name) do update set last_started_at = clock_timestamp()
    """
)

FINISH_PASS = statement(
    """
    update callkeeper.passes
    set last_success_at = case when cast(:error as text) is null then clock_timestamp() else last_success_at end,
      last_error = :error, scanned = :scanned, acted = :acted, took_ms = :took_ms, counts = :counts
    where name = :name
    """
).bindparams(sa.bindparam("error", type_=sa.Text), sa.bindparam("counts", type_=pg.JSONB))

PRUNE_TICKS = sa.text("delete from callkeeper.ticks where due_at < now() - interval '7 days'")


def start_pass(connection: sa.Connection, name: str) -> None:
    connection.execute(START_PASS, {"name": name})


def finish_pass(
    connection: sa.Connection,
    name: str,
    *,
    scanned: int,
    acted: int,
    took_ms: int,
    counts: Mapping[str, int],
    error: str | None = None,
) -> None:
    """Leave the row health reads. `last_success_at` moves only when `error` is None."""
    binds = {"name": name, "scanned": scanned, "acted": acted, "took_ms": took_ms, "counts": counts, "error": error}
    connection.execute(FINISH_PASS, binds)


def prune_ticks(connection: sa.Connection) -> None:
    connection.execute(PRUNE_TICKS)


RAISE_ALERT = statement(
    """
    insert into callkeeper.alerts (subject, details) values (:subject, :details)
    on conflict (subject) do update
    set times = callkeeper.alerts.times + 1, last_at = clock_timestamp(), details = excluded.details, resolved_at = null
    """
).bindparams(sa.bindparam("details", type_=pg.JSONB))


def raise_alert(connection: sa.Connection, subject: str, details: dict[str, object]) -> None:
    """One row a subject, counted; raising it again is an update."""
    connection.execute(RAISE_ALERT, {"subject": subject, "details": details})
