"""The watchdog of runs: rolls every open run up once a minute, and looks after steps that take longer than they should.

Hooks of a framework do not fire for a crash, so nothing here depends on any: what a step's row says decides. What is
active or waits is left alone; a result that is there is brought home; a lost worker's step is recovered by the same
table as any job's; what nobody can tell is told to people, and nothing is guessed. What is exhausted ends by its job's
own caps and deadlines, which fails its run, with one notice.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from actors import job_types
from actors.probe import Found, Verdict, lease_verdict, message_verdict
from actors.recover import recover_one
from actors.rollout import Rollout
from actors.runtime import Runtime
from providers.registry import KINDS
from store import passes, resume, rollout, run_outcomes, run_watch, runs
from store.errors import QueueFull, SubmitRefused
from store.models import NewAsset
from store.passes import Lapsed
from store.run_watch import OpenStep

log = logging.getLogger("callkeeper.runs")

_FLAG = "provider_resume"
STAGE_THRESHOLD = 45 * 60.0  # seconds; half of what a step may take


_UNKNOWN = "unknown"


def verdict(step: OpenStep, *, threshold: float, known: bool) -> Verdict:
    """How one open step stands, by its row. Total. `known`: this code knows the job's type and its provider kind."""
    if step.age < threshold:
        return Verdict(Found.RUNNING)
    if not known:
        return Verdict(Found.UNSURE, _UNKNOWN, "its job type or provider kind is not known here", useless=True)
    match step.status:
        case "queued":
            return message_verdict(sent=step.message_sent)
        case "running":
            return lease_verdict(lapsed=step.lapsed)
        case _ if step.result_known:
            return Verdict(Found.SUCCEEDED)
        case _ if step.poll_late:
            return Verdict(Found.UNSURE, "poll_late", "nobody has asked about it for a while")
        case _:
            return Verdict(Found.RUNNING)


def threshold_of(stage: str, thresholds: Mapping[str, float]) -> float:
    """Seconds; `CALLKEEPER_STAGE_THRESHOLDS` names stages."""
    return thresholds.get(stage, STAGE_THRESHOLD)


def look_at_runs(rt: Runtime, until: float) -> Mapping[str, int]:
    """A run that cannot be dealt with stops no other; it stays due, and comes first in the next pass."""
    counts: Counter[str] = Counter()
    failed: set[UUID] = set()
    while time.monotonic() < until and not rt.draining.is_set():
        due = [run_id for run_id in rt.db.once(run_watch.due, at_most=100 + len(failed)) if run_id not in failed]
        for run_id in due:
            counts["scanned"] += 1
            try:
                _look_at_run(rt, run_id, counts)
            except Exception as error:  # noqa: BLE001  # see above
                failed.add(run_id)
                counts["errors"] += 1
                log.warning("run.look_failed run_id=%s error=%s", run_id, type(error).__name__)
        if not due:
            break
    return counts


def _look_at_run(rt: Runtime, run_id: UUID, counts: "Counter[str]") -> None:
    if rt.db.transact(runs.look_again, run_id) == "running":
        _look_at_steps(rt, run_id, rt.db.once(run_watch.open_steps, run_id), counts)
    else:
        counts["swept"] += 1


def _look_at_steps(rt: Runtime, run_id: UUID, steps: Sequence[OpenStep], counts: "Counter[str]") -> None:
    for step in steps:
        seen = verdict(step, threshold=threshold_of(step.stage, rt.options.stage_thresholds), known=_is_known(step))
        if seen.found is Found.RUNNING:
            continue
        acted = _act(rt, run_id, step, seen)
        counts["alerted" if seen.code == _UNKNOWN else "recovered"] += acted
        what = seen.code or seen.found
        log.info("run.step_late run_id=%s step=%s what=%s acted=%s", run_id, step.step, what, acted)


def _is_known(step: OpenStep) -> bool:
    return step.job_type in job_types.REGISTRY and (step.mode == "local" or step.kind in KINDS)


def _act(rt: Runtime, run_id: UUID, step: OpenStep, seen: Verdict) -> bool:
    match seen:
        case Verdict(found=Found.MISSING) if step.status == "queued":
            return bool(rt.db.once(passes.send_again, [step.job_id]))
        case Verdict(found=Found.MISSING):
            lapsed = Lapsed(
                step.job_id, step.epoch, step.mode, step.attempt, step.max_attempts, step.retry_safe,
                step.call_started, step.task_known, heavy=step.heavy, run_id=run_id,
            )  # fmt: skip
            return recover_one(rt.db, lapsed)
        case Verdict(code=code) if code == _UNKNOWN:
            data = {"step": step.step, "job_type": step.job_type, "kind": step.kind, "status": step.status}
            if rt.db.once(run_watch.tell_once, run_id, "unknown", job_id=step.job_id, data=data):
                rt.db.once(passes.raise_alert, f"run_step_unknown:{step.job_type}", {"run_id": str(run_id), **data})
                return True
            return False
        case _:
            return rt.db.once(run_watch.poll_soon, step.job_id, epoch=step.epoch)


Keep = Callable[[sa.Connection], object]


def came_home_late(
    rt: Runtime, job_id: UUID, *, result: Mapping[str, Any], assets: Sequence[NewAsset], keep: Keep
) -> bool:
    """A result came home after its job had ended: whether a run goes on with it. Never charged.

    `keep` puts the result where it belongs in any case, in the same transaction; when it says no, somebody was first.
    """
    run_id = rt.db.once(run_outcomes.run_of, job_id)
    if run_id is None:
        rt.db.transact(keep)
        return False
    mode = rt.flags.of(_FLAG, run_id)
    if mode is not Rollout.OFF:
        decision = {"act": "resume"}
        did = mode is Rollout.ON
        rt.db.once(rollout.record, _FLAG, run_id=run_id, job_id=job_id, did=did, decision=decision)
    late = partial(_come_home, job_id=job_id, result=result, assets=assets, keep=keep)
    try:
        resumed = rt.db.transact(late, resumes=mode is Rollout.ON)
    except QueueFull:
        rt.db.transact(late, resumes=False, later=True)
        return False
    except (SubmitRefused, IntegrityError) as error:
        _tell_not_resumed(rt, run_id, error)
        rt.db.transact(late, resumes=False)
        return False
    if resumed is not None:
        log.info("run.resumed run_id=%s job_id=%s", resumed, job_id)
    return resumed is not None


def resume_owed(rt: Runtime, job_id: UUID) -> None:
    """Resume a run that had no room to queue when its sole cause came home. Raises QueueFull while there is none."""
    try:
        resumed = rt.db.transact(resume.resume_owed, job_id)
    except QueueFull:
        raise
    except (SubmitRefused, IntegrityError) as error:
        run_id = rt.db.once(run_outcomes.run_of, job_id)
        _tell_not_resumed(rt, run_id, error)
        return
    if resumed is not None:
        log.info("run.resumed run_id=%s job_id=%s", resumed, job_id)


def _tell_not_resumed(rt: Runtime, run_id: UUID | None, error: Exception) -> None:
    rt.db.once(passes.raise_alert, "run_not_resumed", {"run_id": str(run_id), "why": type(error).__name__})


def _come_home(
    connection: sa.Connection,
    *,
    job_id: UUID,
    result: Mapping[str, Any],
    assets: Sequence[NewAsset],
    keep: Keep,
    resumes: bool,
    later: bool = False,
) -> UUID | None:
    if not keep(connection):
        return None
    return resume.come_home_late(connection, job_id, result=result, assets=assets, resumes=resumes, later=later)
