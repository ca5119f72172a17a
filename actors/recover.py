"""The recovery table: what becomes of jobs whose holder is gone. Run by every worker on its beat, and once a minute."""

import logging

from actors.classify import Recovery, after_lost_lease
from actors.rollout import Rollout, decide
from store import calls, jobs, looks, passes, rollout, settle, signals
from store.engine import Database
from store.looks import Look
from store.models import Settlement
from store.passes import Lapsed
from store.states import State

log = logging.getLogger("callkeeper.recover")

_WORDS = {
    Recovery.FAIL_LOST: "the worker was lost and no attempt is left",
    Recovery.FAIL_UNKNOWN: "the worker was lost during the call, and this provider offers no way to learn its outcome",
}


def _larger(db: Database, one: Lapsed) -> bool:
    """A worker that is gone cannot say why. One that was lost over heavy work was perhaps out of memory."""
    if not one.heavy or one.run_id is None:
        return False
    flag = "classified_retries"
    mode = decide(db.once(rollout.read).get(flag), flag, one.run_id)
    if mode is not Rollout.OFF:
        decision = {"act": "larger", "why": "worker_lost"}
        db.once(rollout.record, flag, run_id=one.run_id, job_id=one.job_id, did=mode is Rollout.ON, decision=decision)
    return mode is Rollout.ON


def recover_lapsed(db: Database) -> int:
    """Decide about every lapsed lease. How many were decided here; another process may have been first with some."""
    decided = 0
    while True:
        lapsed = db.once(passes.lapsed_leases)
        moved = sum(recover_one(db, one) for one in lapsed)
        decided += moved
        if not moved:
            return decided


def recover_one(db: Database, one: Lapsed) -> bool:
    """Decide about one lapsed lease by the recovery table. False when somebody was first, or the lease lives again."""
    recovery = after_lost_lease(
        mode=one.mode,
        call_started=one.call_started,
        retry_safe=one.retry_safe,
        attempts_left=one.attempt < one.max_attempts,
    )
    match recovery:
        case Recovery.REQUEUE | Recovery.FAIL_LOST | Recovery.FAIL_UNKNOWN if db.once(signals.is_stopping, one.job_id):
            # Whoever asked for its end shall not read of a failure instead.
            outcome = Settlement(
                status=State.CANCELLED, error_code="cancelled", error_message="stopped on request; its worker was lost"
            )
            done = db.transact(settle.end_lapsed, one.job_id, epoch=one.epoch, outcome=outcome)
        case Recovery.RESUME:
            done = db.once(calls.resume_lost, one.job_id, epoch=one.epoch, larger=_larger(db, one))
        case Recovery.REQUEUE:
            done = db.once(
                jobs.requeue_lost,
                one.job_id,
                epoch=one.epoch,
                expected_attempt=one.attempt,
                call_started=one.call_started,
                larger=_larger(db, one),
            )
        case _:
            outcome = Settlement(status=State.FAILED, error_code=str(recovery), error_message=_WORDS[recovery])
            look = Look(one.job_id, "missing", "failed", str(recovery))
            done = db.transact(
                looks.decided, settle.end_lapsed, one.job_id, epoch=one.epoch, outcome=outcome, look=look
            )
    if done:
        log.info("job.recovered job_id=%s epoch=%s how=%s", one.job_id, one.epoch, recovery)
    return done
