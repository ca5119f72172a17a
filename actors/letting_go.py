"""How the holder of a job lets go of it: ended with all that belongs to an end, or back to the queue."""

import logging
from datetime import timedelta

from actors import job_types
from actors.classify import Act, Decision, Patience
from actors.results import keep_partial
from actors.runtime import Runtime
from providers.contract import Kind
from store import calls, jobs, passes, settle, signals
from store.models import ClaimedJob, Settlement
from store.states import State

log = logging.getLogger("callkeeper.call")


def carry_out(rt: Runtime, job: ClaimedJob, kind: Kind, decision: Decision, *, heard: str = "") -> None:
    """Do what was decided about a request without a result, of which `heard` was said. Raises LeaseLost."""
    lease = job.lease
    delay = timedelta(seconds=decision.delay or 0)
    match decision.act:
        case Act.RESOLVE:
            rt.db.once(calls.mark_ambiguous, lease, look_in=kind.poll_every, why=decision.code)
        case Act.REQUEUE:
            rt.db.once(jobs.requeue, lease, delay=delay, why=decision.code)
        case Act.RETRY:
            counted = rt.db.once(
                jobs.requeue_counted,
                lease,
                expected_attempt=job.attempt,
                delay=delay,
                why=decision.code,
                unknown=decision.unknown,
            )
            if not counted:
                fail(rt, job, decision.code, decision.message, heard=heard)
        case _:
            fail(rt, job, decision.code, decision.message, heard=heard)


def fail(rt: Runtime, job: ClaimedJob, code: str, message: str, *, may_be_paid: bool = False, heard: str = "") -> None:
    """End the job as failed, credits back; of a stream that broke off, what came is kept. Raises LeaseLost.

    Whoever asked for its end does not read of a failure instead.
    """
    stopped = rt.db.once(signals.is_stopping, job.lease.job_id)
    outcome = Settlement(
        status=State.CANCELLED if stopped else State.FAILED,
        error_code="cancelled" if stopped else code,
        error_message="stopped on request" if stopped else message,
        assets=keep_partial(rt, job, heard) if heard else (),
        may_be_paid=may_be_paid,
    )
    rt.db.transact(settle.end_held, job.lease, outcome)
    log.info("job.failed job_id=%s code=%s stopped=%s", job.lease.job_id, code, stopped)


def cancel(rt: Runtime, job: ClaimedJob, *, upstream_ended: bool = True) -> None:
    """End the job because somebody asked for it. Raises LeaseLost."""
    outcome = Settlement(status=State.CANCELLED, error_code="cancelled", error_message="stopped on request")
    rt.db.transact(settle.end_held, job.lease, outcome, upstream_ended=upstream_ended)
    log.info("job.cancelled job_id=%s", job.lease.job_id)


def give_back(rt: Runtime, job: ClaimedJob, why: str, message: str) -> None:
    """Not this worker's to do, or an operator's to make possible: back to the queue, no attempt spent, one alert."""
    rt.db.once(passes.raise_alert, f"{why}:{job.job_type}", {"message": message})
    rt.db.once(jobs.requeue, job.lease, delay=timedelta(seconds=rt.options.operator_wait), why=why)
    log.warning("job.given_back job_id=%s why=%s", job.lease.job_id, why)


def patience(rt: Runtime, job: ClaimedJob) -> Patience:
    """How long to wait before what may be tried again: by the settings, or by the job's type."""
    options, known = rt.options, job_types.REGISTRY.get(job.job_type)
    return Patience(
        base=options.retry_base,
        cap=options.retry_cap,
        throttled=options.throttle_wait,
        operator=options.operator_wait,
        pauses=() if known is None else known.pauses,
    )
