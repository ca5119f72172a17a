"""Whether a step of a run gets a second try: another paid call, or the same work on a larger machine."""

import logging
import random
import signal
from datetime import timedelta
from uuid import UUID

from actors.classify import backoff
from actors.dispositions import Disposition, of_ended_call
from actors.rollout import Rollout
from actors.runtime import Runtime
from store import rollout, second_tries
from store.models import ClaimedJob, Lease, PollLease

log = logging.getLogger("callkeeper.second_try")

_FLAG = "classified_retries"
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # as Python says it of a child, as a shell does


def recreated(rt: Runtime, lease: Lease | PollLease, *, run_id: UUID | None, attempt: int, code: str) -> bool:
    """The provider said that the call ended: whether the step is queued for one more, within its budget."""
    if run_id is None or of_ended_call(code, in_run=True) is not Disposition.RETRY:
        return False
    if not _allowed(rt, run_id, lease.job_id, {"act": "recreate", "code": code}):
        return False
    pause = backoff(attempt, base=rt.options.retry_base, cap=rt.options.retry_cap, jitter=random.random())  # noqa: S311
    done = rt.db.once(second_tries.recreate, lease, expected_attempt=attempt, delay=timedelta(seconds=pause), why=code)
    log.info("call.recreate job_id=%s code=%s allowed=%s", lease.job_id, code, done)
    return done


def run_larger(rt: Runtime, job: ClaimedJob, why: str) -> bool:
    """A local handler ran out of memory: whether it runs again on a larger machine."""
    if not _larger_allowed(rt, job, why):
        return False
    return rt.db.once(second_tries.run_larger, job.lease, expected_attempt=job.attempt, why=why)


def import_larger(rt: Runtime, job: ClaimedJob, why: str) -> bool:
    """An import ran out of memory: whether it is a larger machine's now."""
    return _larger_allowed(rt, job, why) and rt.db.once(second_tries.import_larger, job.lease, why=why)


def was_killed(error: BaseException) -> bool:
    """Whether this says that memory ran out here, or that the kernel took a child of ours."""
    return isinstance(error, MemoryError) or getattr(error, "returncode", None) in _KILLED


def _larger_allowed(rt: Runtime, job: ClaimedJob, why: str) -> bool:
    if job.queue == "large":
        return False
    return job.place is None or _allowed(rt, job.place.run_id, job.lease.job_id, {"act": "larger", "why": why})


def _allowed(rt: Runtime, run_id: UUID, job_id: UUID, decision: dict[str, str]) -> bool:
    mode = rt.flags.of(_FLAG, run_id)
    if mode is not Rollout.OFF:
        rt.db.once(rollout.record, _FLAG, run_id=run_id, job_id=job_id, did=mode is Rollout.ON, decision=decision)
    return mode is Rollout.ON
