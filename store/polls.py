"""Waiting jobs: claimed when due in batches, polled by whoever is awake, their results handed to an importer.

A poll lease is `poll_token` plus a `next_poll_at` pushed into the future: a poller that dies is simply due again.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.claimed import as_claimed
from store.errors import LeaseLost
from store.events import with_event
from store.guards import CLOCK, NOW, POLL_HELD, TASK_KNOWN, is_state, statement, to_state
from store.jobs import NEW_LEASE, NO_POLL, claiming
from store.models import CallState, ClaimedJob, DuePoll, PollLease, PollNote
from store.queue import wake
from store.states import State
from store.tables import jobs

CLAIM_DUE_POLLS = statement(
    """
    with due as materialized (
      select id from callkeeper.jobs
      where status = 'waiting' and next_poll_at <= now() and provider_kind = any(:kinds)
      order by next_poll_at, id
      limit :at_most
      for update skip locked
    )
    update callkeeper.jobs j
    set poll_token = gen_random_uuid(), next_poll_at = clock_timestamp() + :term
    from due
    where j.id = due.id and j.status || '' = 'waiting' and j.next_poll_at <= now()
    returning j.id, j.epoch, j.poll_token, j.job_type, j.queue, j.run_id, j.attempt, j.poll_misses, j.provider_kind,
      j.provider_task_id, j.call_key, j.call_generation, j.call_handle, j.provider_call_started_at, j.resolve_by,
      j.resolve_by <= clock_timestamp() as overdue,
      j.provider_call_started_at + j.stale_after <= clock_timestamp() as stale,
      extract(epoch from clock_timestamp() - j.provider_call_started_at)::float8 as age,
      exists (select from callkeeper.job_signals s where s.job_id = j.id and s.consumed_at is null) as stopping,
      (select r.request from callkeeper.job_requests r where r.job_id = j.id and j.provider_task_id is null) as request
    """
).bindparams(
    sa.bindparam("kinds", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("term", type_=pg.INTERVAL),
    sa.bindparam("at_most", type_=sa.Integer),
)


def claim_due_polls(
    connection: sa.Connection, *, owner: str, kinds: Sequence[str], term: timedelta, at_most: int
) -> list[DuePoll]:
    """Up to `at_most` waiting jobs whose poll is due, ours to poll for `term`; those overdue longest come first."""
    rows = connection.execute(CLAIM_DUE_POLLS, {"kinds": list(kinds), "term": term, "at_most": at_most})
    return [as_due(row, owner) for row in rows]


def as_due(row: Any, owner: str) -> DuePoll:
    """A row of a statement that claims polls."""
    return DuePoll(
        lease=PollLease(job_id=row.id, epoch=row.epoch, token=row.poll_token, owner=owner),
        job_type=row.job_type,
        call=CallState(
            kind=row.provider_kind,
            task_id=row.provider_task_id,
            key=row.call_key,
            generation=row.call_generation,
            handle=row.call_handle,
            started_at=row.provider_call_started_at,
            resolve_by=row.resolve_by,
        ),
        misses=row.poll_misses,
        age=row.age,
        overdue=bool(row.overdue),
        stopping=row.stopping,
        queue=row.queue,
        request=row.request,
        stale=row.stale,
        run_id=row.run_id,
        attempt=row.attempt,
    )


NEXT_DUE = sa.select(sa.extract("epoch", sa.func.min(jobs.c.next_poll_at) - CLOCK)).where(is_state(State.WAITING))


def seconds_to_next_poll(connection: sa.Connection) -> float | None:
    """Seconds until the earliest waiting job is due (negative when late); None when nothing waits."""
    value = connection.execute(NEXT_DUE).scalar_one()
    return None if value is None else float(value)


RECORD_POLLS = statement(
    """
    with noted as materialized (
      select n.* from unnest(:ids, :epochs, :tokens, :delays, :progress, :missed)
        as n (id, epoch, token, delay, progress, missed)
      join callkeeper.jobs j on j.id = n.id
      where j.poll_token = n.token
      order by j.id
      for no key update of j
    ), moved as (
      update callkeeper.jobs j
      set next_poll_at = clock_timestamp() + noted.delay, poll_token = null,
        poll_misses = case
          when noted.missed is null then j.poll_misses when noted.missed then j.poll_misses + 1 else 0
        end,
        progress = case
          when noted.progress between 0 and 1 then greatest(j.progress, noted.progress) else j.progress
        end
      from noted
      where j.id = noted.id and j.epoch = noted.epoch and j.poll_token = noted.token and j.status || '' = 'waiting'
      returning j.id, j.event_seq, j.attempt, j.epoch, j.progress
    )
    select id, callkeeper.tell_progress(id, event_seq, attempt, epoch, progress) from moved
    """
).bindparams(
    sa.bindparam("ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("epochs", type_=pg.ARRAY(sa.Integer)),
    sa.bindparam("tokens", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("delays", type_=pg.ARRAY(pg.INTERVAL)),
    sa.bindparam("progress", type_=pg.ARRAY(sa.REAL)),
    sa.bindparam("missed", type_=pg.ARRAY(sa.Boolean)),
)


def record_polls(connection: sa.Connection, notes: Sequence[PollNote]) -> set[UUID]:
    """Write down what a batch of polls learned about work that goes on. The ids accepted; the rest were superseded."""
    rows = connection.execute(
        RECORD_POLLS,
        {
            "ids": [note.lease.job_id for note in notes],
            "epochs": [note.lease.epoch for note in notes],
            "tokens": [note.lease.token for note in notes],
            "delays": [note.next_in for note in notes],
            "progress": [note.progress for note in notes],
            "missed": [note.missed for note in notes],
        },
    )
    return {row.id for row in rows}


# Progress is no milestone, so record_polls writes no event; the result is one, and it wakes an importer.
_known, _known_statement = with_event(
    sa.update(jobs)
    .where(POLL_HELD, TASK_KNOWN)
    .values(
        result_known_at=CLOCK,
        next_poll_at=CLOCK + sa.bindparam("look_in", type_=pg.INTERVAL),
        poll_token=None,
    ),
    "result_known",
    jobs.c.queue,
)
_results_queue = sa.case(
    (_known.c.queue == sa.literal_column("'large'"), sa.literal_column("'large'")),
    else_=sa.literal_column("'results'"),
)
_sent, _notify = wake(_known, queue=_results_queue, actor=sa.literal_column("'import_result'"), available_at=CLOCK)
MARK_RESULT_KNOWN = _known_statement.add_cte(_sent).add_columns(_notify)


def mark_result_known(connection: sa.Connection, lease: PollLease, *, look_in: timedelta) -> bool:
    """The provider has the result: wake an importer, look again after `look_in` if none came. False if superseded."""
    return connection.execute(MARK_RESULT_KNOWN, {**lease.binds, "look_in": look_in}).one_or_none() is not None


TAKE_RESULT = claiming(
    sa.update(jobs)
    .where(
        jobs.c.id == sa.bindparam("job_id"),
        is_state(State.WAITING),
        TASK_KNOWN,
        jobs.c.result_known_at.is_not(None),
    )
    .values(status=to_state(State.RUNNING), **NEW_LEASE, **NO_POLL),
    "result_taken",
)


TAKE_POLLED = claiming(
    sa.update(jobs)
    .where(POLL_HELD, TASK_KNOWN)
    .values(status=to_state(State.RUNNING), result_known_at=CLOCK, **NEW_LEASE, **NO_POLL),
    "result_taken",
)


def take_polled(connection: sa.Connection, lease: PollLease, *, term: timedelta) -> ClaimedJob:
    """The job whose result this very poll has just learned, ours to import and settle. Raises LeaseLost."""
    row = connection.execute(TAKE_POLLED, {**lease.binds, "owner": lease.owner, "term": term}).one_or_none()
    if row is None:
        raise LeaseLost(lease.job_id, "take_polled", epoch=lease.epoch, owner=lease.owner)
    return as_claimed(row, lease.owner)


def take_result(connection: sa.Connection, job_id: UUID, *, owner: str, term: timedelta) -> ClaimedJob | None:
    """The job with its known result, ours to import and settle; None when somebody else has it."""
    row = connection.execute(TAKE_RESULT, {"job_id": job_id, "owner": owner, "term": term}).one_or_none()
    return None if row is None else as_claimed(row, owner)


POLL_NOW = (
    sa.update(jobs)
    .where(
        jobs.c.provider_kind == sa.bindparam("kind"),
        jobs.c.provider_task_id == sa.bindparam("task_id"),
        is_state(State.WAITING),
        jobs.c.next_poll_at > NOW,
    )
    .values(next_poll_at=CLOCK)
    .returning(jobs.c.id)
)


def poll_now(connection: sa.Connection, kind: str, task_id: str) -> UUID | None:
    """A hint arrived: make the poll due now. A poll in flight keeps its lease; the next claim supersedes it."""
    return connection.execute(POLL_NOW, {"kind": kind, "task_id": task_id}).scalar_one_or_none()
