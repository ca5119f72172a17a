"""Ending what is late: by every worker on its beat and once a minute, whoever holds it. A hung holder loses the job."""

import logging

from store import deadlines, settle
from store.deadlines import Overdue
from store.engine import Database
from store.models import Settlement
from store.states import State

log = logging.getLogger("callkeeper.deadlines")

Late = tuple[str, str]  # a failure code, and the words for people

QUEUE: Late = ("queue_timeout", "the job was not started before its queue deadline")
JOB: Late = ("deadline_exceeded", "the job did not end before its deadline")
ATTEMPT: Late = (
    "attempt_deadline_exceeded",
    "the attempt did not end before its deadline, and the work may not be repeated",
)


def timed_out(late: Late) -> Settlement:
    code, words = late
    return Settlement(status=State.TIMED_OUT, error_code=code, error_message=words)


def end_overdue(db: Database) -> int:
    """Decide about every running job that is late. How many were decided here."""
    decided = 0
    while True:
        late = db.once(deadlines.overdue)
        moved = sum(_end(db, one) for one in late)
        decided += moved
        if not moved:
            return decided


def _end(db: Database, one: Overdue) -> bool:
    if not one.whole_job and db.once(deadlines.requeue_overdue, one):
        log.info("job.attempt_overdue job_id=%s epoch=%s attempt=%s", one.job_id, one.epoch, one.attempt)
        return True
    outcome = timed_out(JOB if one.whole_job else ATTEMPT)
    done = db.transact(settle.end_overdue, one.job_id, epoch=one.epoch, outcome=outcome)
    if done:
        log.info("job.timed_out job_id=%s epoch=%s code=%s", one.job_id, one.epoch, outcome.error_code)
    return done
