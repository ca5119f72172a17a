"""The pass's own looks: leases on what it asks about, and the history of what each look found and did."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.hygiene import clean_text
from store.models import DuePoll
from store.polls import as_due

# Somebody who polls this very row at this very moment keeps it: one question at a time.
CLAIM_PROBES = statement(
    """
    with chosen as materialized (
      select id from callkeeper.jobs
      where id = any(:job_ids) and status || '' = 'waiting' and (poll_token is null or next_poll_at <= now())
      order by id
      for update skip locked
    )
    update callkeeper.jobs j
    set poll_token = gen_random_uuid(), next_poll_at = clock_timestamp() + :term
    from chosen
    where j.id = chosen.id and j.status || '' = 'waiting' and (j.poll_token is null or j.next_poll_at <= now())
    returning j.id, j.epoch, j.poll_token, j.job_type, j.queue, j.run_id, j.attempt, j.poll_misses, j.provider_kind,
      j.provider_task_id, j.call_key, j.call_generation, j.call_handle, j.provider_call_started_at, j.resolve_by,
      j.resolve_by <= clock_timestamp() as overdue,
      j.provider_call_started_at + j.stale_after <= clock_timestamp() as stale,
      extract(epoch from clock_timestamp() - j.provider_call_started_at)::float8 as age,
      exists (select from callkeeper.job_signals s where s.job_id = j.id and s.consumed_at is null) as stopping,
      (select r.request from callkeeper.job_requests r where r.job_id = j.id and j.provider_task_id is null) as request
    """
).bindparams(sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)), sa.bindparam("term", type_=pg.INTERVAL))


def claim_probes(connection: sa.Connection, job_ids: Sequence[UUID], *, owner: str, term: Any) -> list[DuePoll]:
    """Those of these waiting jobs that nobody is asking about, ours to ask about for `term`, due or not."""
    rows = connection.execute(CLAIM_PROBES, {"job_ids": list(job_ids), "term": term})
    return [as_due(row, owner) for row in rows]


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one job: what was found, what was done. `failed` and `deferred` are counted on the row, apart.

    `kept`: it belongs into the job's history; a look that left everything as it was does not.
    """

    job_id: UUID
    found: str
    did: str
    code: str = ""
    message: str = ""
    late: float = 0.0
    failed: bool = False
    deferred: bool = False
    kept: bool = True


NOTE_LOOKS = statement(
    """
    with seen as materialized (
      select * from unnest(:ids, :found, :did, :codes, :errors, :late, :failed, :deferred, :kept)
        as s (id, found, did, code, error, late, failed, deferred, kept)
    ), mine as materialized (
      select j.id from callkeeper.jobs j join seen on seen.id = j.id
      where seen.failed or seen.deferred
      order by j.id
      for no key update of j
    ), counted as (
      update callkeeper.jobs j
      set reconcile_attempts = j.reconcile_attempts + seen.failed::int,
        reconcile_deferrals = j.reconcile_deferrals + seen.deferred::int,
        reconcile_last_error = coalesce(seen.error, j.reconcile_last_error)
      from seen join mine on mine.id = seen.id
      where j.id = seen.id and j.status || '' in ('queued', 'running', 'waiting')
      returning j.id, j.reconcile_attempts, j.epoch
    ), history as (
      insert into callkeeper.job_looks (job_id, late_seconds, found, did, code, misses, attempts)
      select j.id, seen.late, seen.found, seen.did, seen.code, j.poll_misses,
        coalesce(counted.reconcile_attempts, j.reconcile_attempts)
      from seen join callkeeper.jobs j on j.id = seen.id left join counted on counted.id = seen.id
      where seen.kept
    )
    select id, reconcile_attempts, epoch from counted
    """
).bindparams(
    sa.bindparam("ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("found", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("did", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("codes", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("errors", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("late", type_=pg.ARRAY(sa.REAL)),
    sa.bindparam("failed", type_=pg.ARRAY(sa.Boolean)),
    sa.bindparam("deferred", type_=pg.ARRAY(sa.Boolean)),
    sa.bindparam("kept", type_=pg.ARRAY(sa.Boolean)),
)


class Tally(NamedTuple):
    """How many looks at a job have failed, and under which epoch it stands."""

    failed_looks: int
    epoch: int


def note(connection: sa.Connection, looks: Sequence[Look]) -> dict[UUID, Tally]:
    """Count and keep these looks; a tally for each job whose counters moved."""
    rows = connection.execute(
        NOTE_LOOKS,
        {
            "ids": [look.job_id for look in looks],
            "found": [look.found for look in looks],
            "did": [look.did for look in looks],
            "codes": [look.code or None for look in looks],
            "errors": [clean_text(f"{look.code}: {look.message}", limit=500) if look.code else None for look in looks],
            "late": [look.late for look in looks],
            "failed": [look.failed for look in looks],
            "deferred": [look.deferred for look in looks],
            "kept": [look.kept for look in looks],
        },
    )
    return {row.id: Tally(row.reconcile_attempts, row.epoch) for row in rows}


def decided(connection: sa.Connection, verb: Callable[..., Any], /, *args: Any, look: Look, **kwargs: Any) -> bool:
    """Run a settling verb and keep its look, in one transaction. False (and no history) when somebody was first."""
    if verb(connection, *args, **kwargs) is False:
        return False
    note(connection, [look])
    return True


COUNTERS = statement(
    """
    select reconcile_attempts as failed_looks, reconcile_deferrals as deferred_looks, poll_misses as misses,
      reconcile_last_error as last_error, next_check_at
    from callkeeper.jobs where id = :job_id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def counters(connection: sa.Connection, job_id: UUID) -> dict[str, Any]:
    """What was counted about this job's looks; empty when there is no such job."""
    row = connection.execute(COUNTERS, {"job_id": job_id}).mappings().one_or_none()
    return {} if row is None else dict(row)


HISTORY = statement(
    """
    select looked_at, late_seconds, found, did, code, misses, attempts from callkeeper.job_looks
    where job_id = :job_id order by id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def history(connection: sa.Connection, job_id: UUID) -> list[dict[str, Any]]:
    """Every look that decided something about this job, in order."""
    return [dict(row) for row in connection.execute(HISTORY, {"job_id": job_id}).mappings()]
