"""A failed run goes on: its sole cause came home late, so what never ran is released, and what was stopped runs again.

A run that failed for several reasons, or that somebody stopped, stays as it is. Terminal jobs never change: a step that
is to run again gets a new job, of the next round, on the terms of its first.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store import submit
from store.guards import statement
from store.models import NewAsset, NewJob, Place
from store.roll_up import lock_payer, lock_run
from store.run_outcomes import keep_late, run_of
from store.settle import settle_run
from store.tables import job_requests, jobs

REOPEN_RUN = statement(
    """
    with late as materialized (
      select run_id, step from callkeeper.jobs where id = :job_id
    ), moved as (
      update callkeeper.runs r
      set status = 'running', ending = null, failure_code = null, failed_nodes = '{}', finished_at = null,
        round = r.round + 1, deadline_at = clock_timestamp() + r.run_limit,
        next_check_at = clock_timestamp() + interval '1 minute', event_seq = r.event_seq + 1
      from late
      where r.id = late.run_id and r.status = 'failed' and r.failed_nodes = array[late.step]
        and not exists (
          select from callkeeper.runs other
          where coalesce(other.user_id, '') = coalesce(r.user_id, '') and other.idempotency_key = r.idempotency_key
            and other.status in ('running', 'completed')
        )
      returning r.id, r.round, r.event_seq, late.step
    ), event as (
      insert into callkeeper.run_events (run_id, seq, kind, data)
      select id, event_seq, 'resumed', jsonb_build_object('step', step, 'round', round) from moved
    )
    select id, round, step from moved
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))

UNFINISHED = (
    sa.select(jobs, job_requests.c.request)
    .join(job_requests, job_requests.c.job_id == jobs.c.id)
    .where(jobs.c.run_id == sa.bindparam("run_id"))
    .ext(pg.distinct_on(jobs.c.step))
    .order_by(jobs.c.step, jobs.c.round.desc())
)

# The budget of paid calls is the operation's, whichever round they were made in.
CARRY_BUDGET = statement(
    """
    update callkeeper.jobs j
    set recreates = (
      select max(o.recreates) from callkeeper.jobs o where o.run_id = :run_id and o.operation_key = j.operation_key
    )
    where j.run_id = :run_id and j.round = :round and j.status = 'queued'
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID))


def resume(connection: sa.Connection, job_id: UUID) -> UUID | None:
    """Reopen the run whose sole cause this job was, in one transaction; the run. None: it stays as it is.

    Raises InsufficientCredits when the steps that are left cannot be paid, QueueFull when they cannot queue now, and
    IntegrityError when the run's key was used anew at this very moment; the transaction must then be given up.
    """
    row = connection.execute(REOPEN_RUN, {"job_id": job_id}).one_or_none()
    if row is None:
        return None
    lock_payer(connection, row.id)
    for old in connection.execute(UNFINISHED, {"run_id": row.id}).mappings().all():
        if old["status"] != "completed":
            submit.submit(connection, _again(old, round_number=row.round, free=old["step"] == row.step))
    connection.execute(CARRY_BUDGET, {"run_id": row.id, "round": row.round})
    settle_run(connection, row.id)
    run_id: UUID = row.id
    return run_id


OWE_RESUME = statement(
    """
    insert into callkeeper.consequences (key, job_id, effect, body)
    values ('resume-run:' || cast(:job_id as text), cast(:job_id as uuid), 'resume_run', '{}')
    on conflict (key) do nothing
    """
).bindparams(sa.bindparam("job_id", type_=sa.Text))


def come_home_late(
    connection: sa.Connection,
    job_id: UUID,
    *,
    result: Mapping[str, Any],
    assets: Sequence[NewAsset],
    resumes: bool,
    later: bool = False,
) -> UUID | None:
    """A result after its step had failed: kept for the run, and the run resumed if this was its sole cause.

    `later` owes the resuming instead. The run if it was resumed. In one transaction; raises what `resume` raises.
    """
    run_id = keep_late(connection, job_id, result=result, assets=assets)
    if run_id is None:
        return None
    if later:
        connection.execute(OWE_RESUME, {"job_id": str(job_id)})
    return resume_owed(connection, job_id) if resumes else None


def resume_owed(connection: sa.Connection, job_id: UUID) -> UUID | None:
    """Resume the run of this job, whose late result is kept, under the run's lock. Raises what `resume` raises."""
    run_id = run_of(connection, job_id)
    if run_id is None:
        return None
    lock_run(connection, run_id)
    return resume(connection, job_id)


def _again(old: sa.RowMapping, *, round_number: int, free: bool) -> NewJob:
    """`free`: its result is there already and was never charged."""
    place = Place(
        run_id=old["run_id"],
        step=old["step"],
        stage=old["stage"],
        operation_key=old["operation_key"],
        depends_on=tuple(old["depends_on"]),
        optional=old["optional"],
        round=round_number,
    )
    return NewJob(
        job_type=old["job_type"],
        mode=old["mode"],
        queue=old["queue"],
        actor=old["actor"],
        request=old["request"],
        fingerprint=old["request_fingerprint"],
        price=0 if free else old["price"],
        max_attempts=old["max_attempts"],
        retry_safe=old["retry_safe"],
        queue_limit=old["queue_limit"],
        run_limit=old["run_limit"],
        attempt_limit=old["attempt_limit"],
        provider_kind=old["provider_kind"],
        user_id=old["user_id"],
        account_id=old["account_id"],
        stale_after=old["stale_after"],
        visibility=old["visibility"],
        watermark=old["watermark"],
        effects=old["effects"],
        heavy=old["heavy"],
        app=old["app"],
        priority=old["priority"],
        place=place,
    )
