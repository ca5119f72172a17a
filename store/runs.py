"""Runs: submitting one whole, stopping it, resuming it after a late success, and reading it.

A plan is written in the caller's transaction: the run, its jobs, their reservations. What an accepted run costs at most
is reserved from the start, so a run that began can be paid to its end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store import submit
from store.errors import AccountNotFound, IdempotencyConflict, StoreError
from store.guards import statement
from store.models import NewJob, NewRun, Place, Submitted, SubmittedRun
from store.roll_up import lock_payer, lock_run
from store.settle import settle_run
from store.tables import jobs, run_events, run_warnings, runs, usage_logs

CREATE_RUN = statement(
    """
    with run as (
      insert into callkeeper.runs (
        run_type, user_id, account_id, idempotency_key, request_fingerprint, result_step, reuse, email, watermark,
        node_limit, run_limit, deadline_at, next_check_at, event_seq
      )
      select :run_type, :user_id, :account_id, :idempotency_key, :fingerprint, :result_step, :reuse, :email,
        :watermark, :node_limit, :run_limit, start.at + :run_limit, start.at + interval '1 minute', 1
      from (select clock_timestamp() as at) start
      where :account_id is null or exists (select from callkeeper.accounts where id = :account_id)
      on conflict do nothing
      returning id
    ), event as (
      insert into callkeeper.run_events (run_id, seq, kind, data)
      select id, 1, 'submitted', jsonb_build_object('steps', cast(:steps as text[])) from run
    )
    select id from run
    """
).bindparams(
    sa.bindparam("user_id", type_=sa.Text),
    sa.bindparam("account_id", type_=sa.Text),
    sa.bindparam("idempotency_key", type_=sa.Text),
    sa.bindparam("reuse", type_=sa.Boolean),
    sa.bindparam("email", type_=sa.Text),
    sa.bindparam("watermark", type_=sa.Boolean),
    sa.bindparam("node_limit", type_=pg.INTERVAL),
    sa.bindparam("run_limit", type_=pg.INTERVAL),
    sa.bindparam("steps", type_=pg.ARRAY(sa.Text)),
)

KNOWN_RUN = sa.select(runs.c.id, runs.c.status, runs.c.request_fingerprint).where(
    sa.func.coalesce(runs.c.user_id, sa.literal_column("''")) == sa.bindparam("owner"),
    runs.c.idempotency_key == sa.bindparam("key"),
    runs.c.status.in_([sa.literal_column("'running'"), sa.literal_column("'completed'")]),
)

JOBS_OF = (
    sa.select(jobs.c.id, jobs.c.step, jobs.c.status)
    .where(jobs.c.run_id == sa.bindparam("run_id"))
    .ext(pg.distinct_on(jobs.c.step))
    .order_by(jobs.c.step, jobs.c.round.desc())
)


def create(connection: sa.Connection, run: NewRun, steps: Sequence[NewJob]) -> SubmittedRun:
    """Write the run and the jobs of its steps, whose places name everything but the run's id.

    Raises IdempotencyConflict, AccountNotFound or InsufficientCredits; nothing is written then.
    """
    with connection.begin_nested():
        for _ in range(5):
            run_id = connection.execute(CREATE_RUN, _binds(run, steps)).scalar_one_or_none()
            if run_id is not None:
                lock_payer(connection, run_id)
                made = {_place(job).step: _add(connection, run_id, job).job_id for job in steps}
                return SubmittedRun(run_id=run_id, status="running", created=True, jobs=made)
            known = _known(connection, run)
            if known is not None:
                return known
            _check_account(connection, run.account_id)
    raise StoreError(f"idempotency_key {run.idempotency_key!r} changes hands too fast: try again")


def _check_account(connection: sa.Connection, account_id: str | None) -> None:
    if account_id is not None and connection.execute(submit.AVAILABLE, {"account_id": account_id}).first() is None:
        raise AccountNotFound(account_id)


def _add(connection: sa.Connection, run_id: UUID, job: NewJob) -> Submitted:
    return submit.submit(connection, replace(job, place=replace(_place(job), run_id=run_id)))


def _place(job: NewJob) -> Place:
    assert job.place is not None  # noqa: S101  # whoever builds a step gives it its place
    return job.place


def _known(connection: sa.Connection, run: NewRun) -> SubmittedRun | None:
    if run.idempotency_key is None:
        return None
    binds = {"owner": run.user_id or "", "key": run.idempotency_key}
    row = connection.execute(KNOWN_RUN, binds).one_or_none()
    if row is None:
        return None
    if row.request_fingerprint != run.fingerprint:
        raise IdempotencyConflict(run.idempotency_key, row.id, what="run")
    return SubmittedRun(run_id=row.id, status=row.status, created=False, jobs=jobs_of(connection, row.id))


def _binds(run: NewRun, steps: Sequence[NewJob]) -> dict[str, Any]:
    return {
        "run_type": run.run_type,
        "user_id": run.user_id,
        "account_id": run.account_id,
        "idempotency_key": run.idempotency_key,
        "fingerprint": run.fingerprint,
        "result_step": run.result_step,
        "reuse": run.reuse,
        "email": run.email,
        "watermark": run.watermark,
        "node_limit": run.node_limit,
        "run_limit": run.run_limit,
        "steps": [_place(job).step for job in steps],
    }


def jobs_of(connection: sa.Connection, run_id: UUID) -> dict[str, UUID]:
    """The job of each step as it is now."""
    return {row.step: row.id for row in connection.execute(JOBS_OF, {"run_id": run_id})}


TERMS = (
    sa.select(
        runs.c.user_id,
        runs.c.account_id,
        runs.c.node_limit,
        runs.c.result_step,
        runs.c.watermark,
        sa.func.array_agg(jobs.c.step.distinct()),
    )
    .select_from(runs.join(jobs, jobs.c.run_id == runs.c.id))
    .where(runs.c.id == sa.bindparam("run_id"))
    .group_by(runs.c.id)
)


class Terms(NamedTuple):
    """On which a run's steps are made, and which it has."""

    user_id: str | None
    account_id: str | None
    node_limit: timedelta
    result_step: str
    watermark: bool
    steps: list[str]


def terms(connection: sa.Connection, run_id: UUID) -> Terms:
    return Terms(*connection.execute(TERMS, {"run_id": run_id}).one())


STOP_RUN = statement(
    """
    with run as materialized (
      select id, status, ending from callkeeper.runs
      where id = :run_id and (cast(:user_id as text) is null or user_id = :user_id)
      for no key update
    ), moved as (
      update callkeeper.runs r
      set ending = 'cancelled', failure_code = 'cancelled', event_seq = r.event_seq + 1
      from run
      where r.id = run.id and r.status = 'running' and r.ending is null
      returning r.id, r.event_seq
    ), event as (
      insert into callkeeper.run_events (run_id, seq, kind, data)
      select id, event_seq, 'stopping', '{}' from moved
    )
    select status from run
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID), sa.bindparam("user_id", type_=sa.Text))


def request_stop(connection: sa.Connection, run_id: UUID, *, user_id: str | None = None) -> str | None:
    """Ask a run to end, in one transaction; its status afterwards, None if there is no such run of this user.

    What rests is cancelled here and now; what runs hears it, and the run ends with the last of them.
    """
    status = connection.execute(STOP_RUN, {"run_id": run_id, "user_id": user_id}).scalar_one_or_none()
    if status != "running":
        return status
    return settle_run(connection, run_id) or status


def look_again(connection: sa.Connection, run_id: UUID) -> str | None:
    """Roll a run up once more, in one transaction: whatever was missed is put right. None: it has settled before."""
    lock_run(connection, run_id)
    return settle_run(connection, run_id)


RUN = sa.select(
    *[
        runs.c[name]
        for name in (
            "id", "run_type", "user_id", "account_id", "status", "ending", "failure_code", "failed_nodes", "quality",
            "progress", "result_step", "reuse", "round", "deadline_at", "created_at", "finished_at",
        )
    ]
).where(runs.c.id == sa.bindparam("run_id"))  # fmt: skip

STEPS = (
    sa.select(
        *[
            jobs.c[name]
            for name in (
                "id", "step", "stage", "operation_key", "status", "optional", "blocked", "depends_on", "round",
                "attempt", "job_type", "progress", "result", "error_code", "error_message", "price",
                "call_generation", "recreates", "created_at", "started_at", "finished_at",
            )
        ],
        usage_logs.c.status.label("credits"),
        (usage_logs.c.committed_subscription + usage_logs.c.committed_topup).label("charged"),
    )
    .select_from(jobs.outerjoin(usage_logs, usage_logs.c.job_id == jobs.c.id))
    .where(jobs.c.run_id == sa.bindparam("run_id"))
    .ext(pg.distinct_on(jobs.c.step))
    .order_by(jobs.c.step, jobs.c.round.desc())
)  # fmt: skip

WARNINGS = (
    sa.select(
        run_warnings.c.job_id,
        run_warnings.c.code,
        run_warnings.c.stage,
        run_warnings.c.severity,
        run_warnings.c.customer_visible,
        run_warnings.c.quality,
        run_warnings.c.details,
    )
    .where(run_warnings.c.run_id == sa.bindparam("run_id"))
    .order_by(run_warnings.c.created_at, run_warnings.c.job_id, run_warnings.c.position)
)


EVENTS = (
    sa.select(run_events.c.seq, run_events.c.kind, run_events.c.data, run_events.c.created_at)
    .where(run_events.c.run_id == sa.bindparam("run_id"))
    .order_by(run_events.c.seq)
)


def read(connection: sa.Connection, run_id: UUID) -> Mapping[str, Any] | None:
    """The run as its owner may see it, with its steps as they are now and their warnings; None if there is none."""
    row = connection.execute(RUN, {"run_id": run_id}).mappings().one_or_none()
    if row is None:
        return None
    steps = [_as_step(step) for step in connection.execute(STEPS, {"run_id": run_id}).mappings()]
    now = {step["job_id"] for step in steps}
    warnings = [dict(one) for one in connection.execute(WARNINGS, {"run_id": run_id}).mappings()]
    shares = [_share(step) for step in steps]
    progress = (
        max(row["progress"], sum(shares) / max(len(shares), 1)) if row["status"] == "running" else row["progress"]
    )
    return {
        **row,
        "progress": progress,
        "steps": sorted(steps, key=lambda step: (step["created_at"], step["step"])),
        "warnings": [one for one in warnings if one["job_id"] in now],
    }


def _share(step: Mapping[str, Any]) -> float:
    """What a step has earned: all of it once done, or once the run goes on without it."""
    done = step["status"] == "completed" or (step["optional"] and step["finished_at"] is not None)
    return 1.0 if done else step["progress"] or 0.0


def _as_step(row: sa.RowMapping) -> dict[str, Any]:
    return {"job_id": row["id"], **{name: value for name, value in row.items() if name != "id"}}


def events(connection: sa.Connection, run_id: UUID) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(EVENTS, {"run_id": run_id}).mappings()]


NEWEST_RUNS = (
    sa.select(
        runs.c.id, runs.c.run_type, runs.c.user_id, runs.c.status, runs.c.ending, runs.c.quality, runs.c.progress,
        runs.c.failure_code, runs.c.created_at, runs.c.finished_at,
    )
    .order_by(runs.c.created_at.desc(), runs.c.id.desc())
    .limit(sa.bindparam("at_most"))
)  # fmt: skip


def newest(connection: sa.Connection, *, at_most: int = 20) -> list[Mapping[str, Any]]:
    return [dict(row) for row in connection.execute(NEWEST_RUNS, {"at_most": at_most}).mappings()]
