"""Running an app's own function as a job: the same lease, fence and settlement as a provider call."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import dramatiq

from actors import job_types
from actors.admission import WORK
from actors.announce import Words
from actors.call import Draining, with_claim
from actors.context import Context, OutOfMemory, RetryLater, SecretMissing, WorkFailed
from actors.lease import Held, StopWanted
from actors.letting_go import cancel, fail, give_back
from actors.points import reached
from actors.results import metered
from actors.run_doors import Doors
from actors.run_work import as_entry
from actors.runtime import Runtime, runtime
from actors.second_try import run_larger, was_killed
from store import calls, jobs, milestones, run_outcomes, settle
from store.errors import InsufficientCredits, LeaseLost, NeverFits, QueueFull
from store.models import ClaimedJob, Settlement
from store.states import State

log = logging.getLogger("callkeeper.handler")


@dramatiq.actor(queue_name="calls", priority=10, throws=Draining)
def run_handler(job_id: str) -> None:
    """Run a local handler under a kept lease."""
    rt = runtime()
    with_claim(rt, UUID(job_id))


def _run(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    try:
        registered = job_types.get(job.job_type)
    except job_types.UnknownJobType as error:
        give_back(rt, job, "unknown_job_type", str(error))
        return
    # A handler may do things that cannot be undone, so its start is an intent like any call's.
    intent = rt.db.once(calls.mark_call_started, job.lease, kind="local", handle={}, quiet=timedelta(0))
    reached("after_intent", job.lease.job_id)
    held.check("start")
    try:
        # What is still unsaid is said when this block ends, so before the end itself.
        with rt.announcer.words(job.lease) as words:
            context = _context(rt, job, held, words, generation=intent.generation)
            assert registered.function is not None  # noqa: S101  # a job type without kind has its handler
            value = registered.function(context, registered.request.model_validate(job.request))
    except LeaseLost:
        raise
    except StopWanted:
        cancel(rt, job)
    except RetryLater as later:
        _again(rt, job, later)
    except Exception as error:  # noqa: BLE001  # the app's code; whatever it raised is the job's outcome
        _raised(rt, job, error)
    else:
        _complete(rt, job, registered, value, context)


def _context(rt: Runtime, job: ClaimedJob, held: Held, words: Words, *, generation: int) -> Context:
    def record(name: str, data: Mapping[str, Any]) -> None:
        rt.announcer.flush(words)  # what was said before it comes before it
        rt.db.once(milestones.record, job.lease, name, data)

    return Context(
        job.lease.job_id,
        job.attempt,
        held,
        report=lambda share: rt.db.once(jobs.report_progress, job.lease, share),
        record=record,
        say=words.add,
        find_secret=lambda name: _secret(rt, name),
        place=job.place,
        doors=Doors(rt, job, generation=generation),
    )


def _raised(rt: Runtime, job: ClaimedJob, error: Exception) -> None:
    match error:
        case SecretMissing():
            fail(rt, job, "secret_missing", str(error))
        case WorkFailed(code=code):
            fail(rt, job, code, str(error))
        case OutOfMemory():
            _larger(rt, job, str(error))
        case _ if was_killed(error):
            _larger(rt, job, type(error).__name__)
        case _:
            log.info("handler.raised job_id=%s error=%s", job.lease.job_id, type(error).__name__)
            fail(rt, job, "handler_error", f"{type(error).__name__}: {error}")


def _complete(rt: Runtime, job: ClaimedJob, registered: job_types.JobType, value: Any, context: Context) -> None:
    result = dict(value) if isinstance(value, Mapping) else {"value": value}
    if context.assets:
        result["media"] = [as_entry(asset) for asset in context.assets]
    outcome = Settlement(
        status=State.COMPLETED,
        result=result,
        cost=metered(rt, registered, result),
        assets=context.assets,
        warnings=context.warnings,
        steps=context.steps,
        steps_first=context.steps_first,
    )
    # What adds steps is cheap and must add them each time; everything else is kept before it is settled.
    if job.place is not None and not context.steps:
        rt.db.once(run_outcomes.keep_outcome, job.lease, outcome)
    reached("after_upload", job.lease.job_id)
    try:
        rt.db.transact(settle.complete, job.lease, outcome)
    except InsufficientCredits as error:
        fail(rt, job, "credits_insufficient", str(error))
        return
    except NeverFits as error:
        fail(rt, job, "budget_never_fits", str(error))
        return
    except QueueFull as error:
        _again(rt, job, RetryLater(rt.options.operator_wait, str(error)))
        return
    reached("after_settle", job.lease.job_id)
    log.info("job.completed job_id=%s", job.lease.job_id)


def _larger(rt: Runtime, job: ClaimedJob, why: str) -> None:
    """Once, on a larger machine; what does not fit there fits nowhere."""
    if run_larger(rt, job, why):
        log.info("handler.escalated job_id=%s", job.lease.job_id)
        return
    fail(rt, job, "out_of_memory", "the work needs more memory than a worker has")


def _again(rt: Runtime, job: ClaimedJob, later: RetryLater) -> None:
    delay = timedelta(seconds=later.seconds)
    counted = rt.db.once(jobs.requeue_counted, job.lease, expected_attempt=job.attempt, delay=delay, why="retry_later")
    if not counted:
        fail(rt, job, "attempts_exhausted", str(later))


def _secret(rt: Runtime, name: str) -> str | None:
    value = rt.options.secrets.get(name)
    return None if value is None else value.get_secret_value()


WORK["run_handler"] = _run
