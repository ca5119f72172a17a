"""Whole outcomes of a run's operations, kept before their settlement, so that nothing is paid for or made twice.

Two questions, two functions. A run's own outcome is looked for before every paid or expensive stage, always. Other
runs' outcomes are used only where the user allows it, and never in fresh mode.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.hygiene import clean_json
from store.models import Lease, NewAsset, Place, Settlement, StepWarning
from store.tables import jobs, run_outcomes


@dataclass(frozen=True, slots=True)
class RecoveredAsset:
    """An outcome to complete with, without a call. `cost` as in a Settlement; `job_id` is whose it was."""

    job_id: UUID
    result: Mapping[str, Any]
    assets: Sequence[NewAsset]
    cost: int | None
    late: bool
    warnings: Sequence[StepWarning] = ()


# Written by the job's holder. The first one stands: a collision means that somebody kept the same operation's outcome.
KEEP_OUTCOME = statement(
    """
    insert into callkeeper.run_outcomes (run_id, operation_key, job_id, result, assets, warnings, cost)
    select j.run_id, j.operation_key, j.id, :result, :assets, :warnings, :cost
    from callkeeper.jobs j
    where j.id = :held_id and j.epoch = :held_epoch and j.lease_token = :held_token and j.status = 'running'
      and j.run_id is not null
    on conflict (run_id, operation_key) do nothing
    """
).bindparams(
    sa.bindparam("result", type_=pg.JSONB),
    sa.bindparam("assets", type_=pg.JSONB),
    sa.bindparam("warnings", type_=pg.JSONB),
    sa.bindparam("cost", type_=sa.BigInteger),
    sa.bindparam("held_id", type_=pg.UUID),
    sa.bindparam("held_token", type_=pg.UUID),
)


def keep_outcome(connection: sa.Connection, lease: Lease, outcome: Settlement) -> None:
    """Keep what this step is about to complete with. Without effect when it is no step, or no longer held."""
    binds = {
        "result": clean_json(outcome.result),
        "assets": [asdict(asset) for asset in outcome.assets],
        "warnings": clean_json([asdict(warning) for warning in outcome.warnings]),
        "cost": outcome.cost,
    }
    connection.execute(KEEP_OUTCOME, {**lease.binds, **binds})


FIND_RECOVERY = sa.select(
    run_outcomes.c.job_id,
    run_outcomes.c.result,
    run_outcomes.c.assets,
    run_outcomes.c.warnings,
    run_outcomes.c.cost,
    run_outcomes.c.late,
).where(
    run_outcomes.c.run_id == sa.bindparam("run_id"),
    run_outcomes.c.operation_key == sa.bindparam("operation_key"),
)


def find_run_recovery_asset(connection: sa.Connection, *, run_id: UUID, operation_key: str) -> RecoveredAsset | None:
    """This run's own outcome of this very operation, from whichever of its jobs; None if there is none."""
    row = connection.execute(FIND_RECOVERY, {"run_id": run_id, "operation_key": operation_key}).one_or_none()
    if row is None:
        return None
    return RecoveredAsset(
        job_id=row.job_id,
        result=row.result,
        assets=[NewAsset(**asset) for asset in row.assets],
        cost=row.cost,
        late=row.late,
        warnings=[StepWarning(**warning) for warning in row.warnings],
    )


FIND_REUSABLE = statement(
    """
    select j.id as job_id, j.result, (
      select coalesce(jsonb_agg(jsonb_build_object(
        'object_key', a.object_key, 'content_type', a.content_type, 'size_bytes', a.size_bytes, 'sha256', a.sha256
      ) order by a.position), '[]')
      from callkeeper.assets a where a.job_id = j.id
    ) as assets
    from callkeeper.jobs mine
    join callkeeper.runs r on r.id = mine.run_id and r.reuse and mine.mode <> 'local'
    join callkeeper.jobs j on j.request_fingerprint = mine.request_fingerprint and j.job_type = mine.job_type
      and j.user_id = mine.user_id and j.run_id is not null and j.run_id <> mine.run_id and j.status = 'completed'
    where mine.id = :job_id
    order by j.finished_at desc
    limit 1
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def find_reusable_asset(connection: sa.Connection, job_id: UUID) -> RecoveredAsset | None:
    """Another run's outcome of the same paid call of the same user; None unless this job's run was allowed to reuse.

    What is computed here is never borrowed: it was computed from that run's inputs.
    """
    row = connection.execute(FIND_REUSABLE, {"job_id": job_id}).one_or_none()
    if row is None:
        return None
    assets = [NewAsset(**asset) for asset in row.assets]
    return RecoveredAsset(job_id=row.job_id, result=row.result, assets=assets, cost=0, late=False)


KEEP_LATE = statement(
    """
    with ended as materialized (
      select j.run_id, j.operation_key, j.id from callkeeper.jobs j
      where j.id = :job_id and j.run_id is not null
        and (j.status in ('failed', 'timed_out') or (j.status = 'cancelled' and j.error_code = 'run_ended'))
    ), kept as (
      insert into callkeeper.run_outcomes (run_id, operation_key, job_id, result, assets, cost, late)
      select run_id, operation_key, id, :result, :assets, 0, true from ended
      on conflict (run_id, operation_key) do nothing
    )
    select run_id from ended
    """
).bindparams(
    sa.bindparam("result", type_=pg.JSONB),
    sa.bindparam("assets", type_=pg.JSONB),
    sa.bindparam("job_id", type_=pg.UUID),
)


def keep_late(
    connection: sa.Connection, job_id: UUID, *, result: Mapping[str, Any], assets: Sequence[NewAsset]
) -> UUID | None:
    """A result came home after its step had failed: keep it for the run, never charged. The run; None: nobody's.

    An outcome of the same operation that was kept before stands; the run has one either way.
    """
    binds = {"job_id": job_id, "result": clean_json(result), "assets": [asdict(asset) for asset in assets]}
    run_id: UUID | None = connection.execute(KEEP_LATE, binds).scalar_one_or_none()
    return run_id


RUN_OF = sa.select(jobs.c.run_id).where(jobs.c.id == sa.bindparam("job_id", type_=pg.UUID))


def run_of(connection: sa.Connection, job_id: UUID) -> UUID | None:
    """The run that a job is a step of."""
    run_id: UUID | None = connection.execute(RUN_OF, {"job_id": job_id}).scalar_one_or_none()
    return run_id


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How a step this one depends on has ended. `result["media"]` names its files."""

    step: str
    operation_key: str
    status: str
    result: Mapping[str, Any] | None
    error_code: str | None
    warnings: Sequence[Mapping[str, Any]]


OUTCOMES = statement(
    """
    select distinct on (j.step) j.step, j.operation_key, j.status, j.result, j.error_code, (
      select coalesce(jsonb_agg(jsonb_build_object(
        'code', w.code, 'stage', w.stage, 'severity', w.severity, 'customerVisible', w.customer_visible,
        'details', w.details
      ) order by w.position), '[]')
      from callkeeper.run_warnings w where w.job_id = j.id
    ) as warnings
    from callkeeper.jobs j
    where j.run_id = :run_id and j.step = any(:steps)
    order by j.step, j.round desc
    """
).bindparams(sa.bindparam("run_id", type_=pg.UUID), sa.bindparam("steps", type_=pg.ARRAY(sa.Text)))


def outcomes(connection: sa.Connection, place: Place) -> dict[str, StepOutcome]:
    """What the steps that this one depends on have come to, by name."""
    rows = connection.execute(OUTCOMES, {"run_id": place.run_id, "steps": list(place.depends_on)}).mappings()
    return {row["step"]: StepOutcome(**row) for row in rows}
