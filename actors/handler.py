"""Running an app's own function as a job: the same lease, fence and settlement as a provider call."""

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import dramatiq

from actors import job_types
from actors.call import Draining, cancel, fail, give_back, with_claim
from actors.context import Context, RetryLater, SecretMissing
from actors.lease import Held, StopWanted
from actors.points import reached
from actors.results import metered
from actors.runtime import Runtime, runtime
from store import calls, jobs, settle
from store.errors import LeaseLost
from store.models import ClaimedJob, Settlement
from store.states import State

log = logging.getLogger("callkeeper.handler")


@dramatiq.actor(queue_name="calls", priority=10, throws=Draining)
def run_handler(job_id: str) -> None:
    """Run a local handler under a kept lease."""
    rt = runtime()
    with_claim(rt, UUID(job_id), _run)


def _run(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    try:
        registered = job_types.get(job.job_type)
    except job_types.UnknownJobType as error:
        give_back(rt, job, "unknown_job_type", str(error))
        return
    # A handler may do things that cannot be undone, so its start is an intent like any call's.
    rt.db.once(calls.mark_call_started, job.lease, kind="local", handle={}, quiet=timedelta(0))
    reached("after_intent", job.lease.job_id)
    held.check("start")
    context = Context(
        job.lease.job_id,
        job.attempt,
        held,
        report=lambda share: rt.db.once(jobs.report_progress, job.lease, share),
        find_secret=lambda name: _secret(rt, name),
    )
    try:
        assert registered.function is not None  # noqa: S101  # a job type without kind has its handler
        value = registered.function(context, registered.request.model_validate(job.request))
    except LeaseLost:
        raise
    except StopWanted:
        cancel(rt, job)
    except RetryLater as later:
        _again(rt, job, later)
    except SecretMissing as error:
        fail(rt, job, "secret_missing", str(error))
    except Exception as error:  # noqa: BLE001  # the app's code; whatever it raised is the job's outcome
        log.info("handler.raised job_id=%s error=%s", job.lease.job_id, type(error).__name__)
        fail(rt, job, "handler_error", f"{type(error).__name__}: {error}")
    else:
        _complete(rt, job, registered, value)


def _complete(rt: Runtime, job: ClaimedJob, registered: job_types.JobType, value: Any) -> None:
    result = dict(value) if isinstance(value, Mapping) else {"value": value}
    outcome = Settlement(status=State.COMPLETED, result=result, cost=metered(rt, registered, result))
    rt.db.transact(settle.complete, job.lease, outcome)
    reached("after_settle", job.lease.job_id)
    log.info("job.completed job_id=%s", job.lease.job_id)


def _again(rt: Runtime, job: ClaimedJob, later: RetryLater) -> None:
    delay = timedelta(seconds=later.seconds)
    counted = rt.db.once(jobs.requeue_counted, job.lease, expected_attempt=job.attempt, delay=delay, why="retry_later")
    if not counted:
        fail(rt, job, "attempts_exhausted", str(later))


def _secret(rt: Runtime, name: str) -> str | None:
    value = rt.options.secrets.get(name)
    return None if value is None else value.get_secret_value()
