"""Completing a step from what is there already, before anything is paid for or computed once more.

The run's own outcome of the same operation comes first, whatever the run was asked for. Other runs' outcomes of the
same request come second, and only where the run was submitted with `reuse`: their files are copied, since each job has
its own.
"""

import logging
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from actors.rollout import Rollout
from actors.run_work import as_entry, extension
from actors.runtime import Runtime
from store import rollout, run_outcomes, settle
from store.media import object_key
from store.models import ClaimedJob, NewAsset, Settlement
from store.run_outcomes import RecoveredAsset
from store.states import State

log = logging.getLogger("callkeeper.recovery")

_FLAG = "provider_resume"


def completed_from_recovery(rt: Runtime, job: ClaimedJob) -> bool:
    """Whether this step is complete without a call. Raises LeaseLost."""
    if job.place is None:
        return False
    found = _find(rt, job)
    if found is None or not _allowed(rt, job, found):
        return False
    outcome = Settlement(
        status=State.COMPLETED,
        result=found.result,
        cost=found.cost,
        assets=found.assets,
        warnings=found.warnings,
        details={"recovered_from": str(found.job_id)},
    )
    rt.db.transact(settle.complete, job.lease, outcome)
    log.info("job.completed job_id=%s recovered_from=%s", job.lease.job_id, found.job_id)
    return True


def _find(rt: Runtime, job: ClaimedJob) -> RecoveredAsset | None:
    assert job.place is not None  # noqa: S101  # the caller looked
    run_id, operation_key = job.place.run_id, job.place.operation_key
    own = rt.db.once(run_outcomes.find_run_recovery_asset, run_id=run_id, operation_key=operation_key)
    if own is not None:
        return own
    other = rt.db.once(run_outcomes.find_reusable_asset, job.lease.job_id)
    return other and _copied(rt, job, other)


def _allowed(rt: Runtime, job: ClaimedJob, found: RecoveredAsset) -> bool:
    assert job.place is not None  # noqa: S101  # the caller looked
    mode = rt.flags.of(_FLAG, job.place.run_id)
    if mode is not Rollout.OFF:
        decision = {"act": "complete", "recovered_from": str(found.job_id), "late": found.late}
        rt.db.once(
            rollout.record,
            _FLAG,
            run_id=job.place.run_id,
            job_id=job.lease.job_id,
            did=mode is Rollout.ON,
            decision=decision,
        )
    return mode is Rollout.ON


def _copied(rt: Runtime, job: ClaimedJob, found: RecoveredAsset) -> RecoveredAsset:
    assets = [_copy(rt, job, position, asset) for position, asset in enumerate(found.assets)]
    return replace(found, assets=assets, result={**found.result, **_media(assets)})


def _media(assets: Sequence[NewAsset]) -> dict[str, object]:
    return {"media": [as_entry(asset) for asset in assets]} if assets else {}


def _copy(rt: Runtime, job: ClaimedJob, position: int, asset: NewAsset) -> NewAsset:
    key = object_key(
        job.lease.job_id,
        generation=job.call.generation,
        position=position,
        sha256=asset.sha256,
        extension=extension(asset.content_type),
    )
    with tempfile.TemporaryDirectory(prefix="callkeeper-") as folder:
        path = Path(folder) / "asset"
        rt.media.fetch(asset.object_key, path)
        with path.open("rb") as file:
            rt.submit(rt.media.put(key, file, content_type=asset.content_type)).result()
    return replace(asset, object_key=key)
