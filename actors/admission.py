"""Whose turn it is, and whether a budget has room: how a message becomes a claimed job.

Without a budget a claim is one statement. Once there is one, each start asks it; what finds it full is parked, and this
process keeps looking for the next in line. A slot that is given back rings a bell; a look a second is the safety net.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from store import admission, budgets, line, parking, settle
from store.admission import Parked, Refused
from store.engine import Database
from store.models import ClaimedJob, Settlement
from store.states import State

if TYPE_CHECKING:
    from actors.lease import Held
    from actors.runtime import Runtime

log = logging.getLogger("callkeeper.admission")

QUEUES = ("calls", "large")
_LOOK_EVERY = 1.0  # seconds between looks for room that nobody here has rung for
_KEYS = 500  # full budgets looked at in one go
_NOT_OFTENER = 0.05  # seconds between two looks, however often it is rung

# What this process can run, by the name of the actor that a job was submitted to.
WORK: "dict[str, Callable[[Runtime, ClaimedJob, Held], None]]" = {}


class Admission:
    """One a process. `claim` is for worker threads; the rest runs on a thread of its own."""

    def __init__(self, rt: "Runtime") -> None:
        self._rt = rt
        self._limited = False  # whether a start has to ask a budget; a wrong False is noticed by the claim itself
        self._seen = ""  # the last full budget that was looked at; empty where the next look begins anew
        self._bell = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callkeeper-admission", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._bell.set()
        self._thread.join(timeout=2)

    def freed(self) -> None:
        """A job gave its slot back: whoever waits for it is put in line, if anybody can be waiting."""
        if self._limited:
            self._bell.set()

    def claim(self, job_id: UUID) -> tuple[ClaimedJob | None, float]:
        """The next in the line of that job's queue, and when its claim was sent (time.monotonic)."""
        db, owner, term = self._rt.db, self._rt.owner, self._rt.options.lease_term
        sent_at = time.monotonic()
        if not self._limited:
            job = db.once(line.claim_next, job_id, actors=list(WORK), owner=owner, term=term)
            if job is not None:
                return job, sent_at
            self._limited = db.once(budgets.any_limit)
        if not self._limited:  # whoever came while the first claim was under way is seen by a second
            sent_at = time.monotonic()
            return db.once(line.claim_next, job_id, actors=list(WORK), owner=owner, term=term), sent_at
        while not self._rt.draining.is_set():
            sent_at = time.monotonic()
            found = db.transact(
                admission.claim_within,
                job_id,
                actors=list(WORK),
                owner=owner,
                term=term,
                accounts=self._rt.options.accounts,
            )
            match found:
                case Parked():
                    log.info("budget.full budget=%r parked=%s", found.budget, found.jobs)
                case Refused():
                    self._refuse(db, found)
                case _:
                    return found, sent_at
        return None, sent_at

    def pass_on(self, job_id: UUID) -> None:
        """A claim found nobody: if somebody stands in that job's line all the same, they get the message."""
        passed_on = self._rt.db.once(line.pass_on, job_id, actors=list(WORK))
        log.debug("job.not_claimed job_id=%s passed_on=%s", job_id, passed_on)

    def _refuse(self, db: Database, found: Refused) -> None:
        words = f"budget {found.budget} is {found.limit} and this job needs {found.needed}: it can never start"
        outcome = Settlement(status=State.FAILED, error_code="budget_never_fits", error_message=words)
        db.transact(settle.end_queued, found.job_id, outcome)
        log.info("job.failed job_id=%s code=budget_never_fits", found.job_id)

    def look(self) -> int:
        """Put parked jobs in line where there is room, and what was delayed and is due; how many. For passes, too."""
        db = self._rt.db
        self._limited = db.once(budgets.any_limit)
        ripe = db.once(line.ripen)
        keys = db.once(parking.parked_keys, queues=QUEUES, after=self._seen, at_most=_KEYS)
        if not keys:
            self._seen = ""
            return ripe
        # Where there are more, the next look goes on with them, so that none waits behind those that stay full.
        self._seen = keys[-1] if len(keys) == _KEYS else ""
        if self._seen:
            self._bell.set()
        return ripe + db.once(parking.release, queues=QUEUES, accounts=self._rt.options.accounts, keys=keys)

    def _run(self) -> None:
        while not self._ended.is_set():
            self._bell.wait(_LOOK_EVERY)
            self._bell.clear()
            if self._ended.is_set():
                return
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  # the next look tries again; so does every other process
                log.warning("admission.look_failed error=%s", type(error).__name__)
            self._ended.wait(_NOT_OFTENER)
