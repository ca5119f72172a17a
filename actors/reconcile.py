"""One pass over the jobs that have gone quiet: each row looked at once, explained, and left for its next look.

Rows are selected in the order of their next check and in batches; every selection moves that check on, so passes may
overlap and nothing starves. Each provider kind has a lane of its own: one that does not answer holds up itself.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from actors.deadlines import ATTEMPT, JOB, QUEUE, timed_out
from actors.inspect_call import Inspector
from actors.probe import Found, lease_verdict, message_verdict
from actors.recover import recover_one
from actors.runtime import Runtime
from providers.registry import KINDS
from store import looks, passes, settle
from store.looks import Look
from store.models import Settlement
from store.passes import Lapsed, Quiet
from store.states import State

log = logging.getLogger("callkeeper.reconcile")

_BATCH = 200
_SHARE = 50  # questions open at one provider kind at a time


class Pass:
    """One run. `counts` says in the end what it did: scanned, recovered, swept, deferred, failed, alerted."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._run = rt.on_thread
        self.counts: Counter[str] = Counter()
        self._inspector = Inspector(rt, self.counts)
        self._lanes: dict[str, list[Quiet]] = defaultdict(list)
        self._working: dict[str, asyncio.Task[None]] = {}
        self._alerted: set[str] = set()

    async def work(self, until: float) -> Counter[str]:
        """Look at everything that is due, until it is done or the time (`time.monotonic()`) has come."""
        while time.monotonic() < until and not self._rt.draining.is_set():
            busy = [kind for kind, waiting in self._lanes.items() if len(waiting) >= _SHARE]
            batch = await self._run(self._rt.db.once, passes.look_at_quiet, at_most=_BATCH, busy=busy)
            self.counts["scanned"] += len(batch)
            await self._sort(batch)
            if not batch:
                if not self._working:
                    break
                await asyncio.wait(self._working.values(), timeout=0.5, return_when=asyncio.FIRST_COMPLETED)
        await self._finish(until)
        return self.counts

    async def _finish(self, until: float) -> None:
        """What was selected and not reached is due again at once: for the next pass, or one that runs beside this."""
        unreached = [quiet.job_id for waiting in self._lanes.values() for quiet in waiting]
        self._lanes.clear()
        if unreached:
            await self._run(self._rt.db.once, passes.look_again, unreached)
        if self._working:
            left = max(until - time.monotonic(), 0) + self._rt.options.poll_lease
            await asyncio.wait(self._working.values(), timeout=left)

    async def _sort(self, batch: Sequence[Quiet]) -> None:
        """Drift and deadlines at once, questions into their lanes. A row that cannot be dealt with stops no other."""
        lost = []
        for quiet in batch:
            act = self._act_on(quiet)
            if act is None:
                if quiet.status is State.QUEUED and message_verdict(sent=quiet.message_sent).found is Found.MISSING:
                    lost.append(quiet)
                continue
            try:
                await self._run(act, quiet)
            except Exception as error:  # noqa: BLE001  # see above; its next look has been set
                self.counts["errors"] += 1
                log.warning("pass.row_failed job_id=%s error=%s", quiet.job_id, type(error).__name__)
        if lost:
            await self._run(self._wake, lost)
        for kind, waiting in self._lanes.items():
            if waiting and kind not in self._working:
                self._working[kind] = task = asyncio.ensure_future(self._ask_along(kind))
                task.add_done_callback(partial(self._idle, kind))

    def _idle(self, kind: str, _task: "asyncio.Task[None]") -> None:
        self._working.pop(kind, None)

    def _act_on(self, quiet: Quiet) -> Callable[[Quiet], None] | None:
        """What is to be done here and now, by the database alone; None once it stands in a lane, or is left alone."""
        waits_too_long = quiet.status is State.WAITING and quiet.past_attempt_deadline
        late = quiet.past_queue_deadline or quiet.past_deadline or waits_too_long
        if late and not quiet.clock_stands:
            return self._time_out
        if self._is_foreign(quiet) and (quiet.stale or quiet.kind is not None):
            return self._sweep_foreign
        if quiet.status is State.RUNNING:
            return self._look_at_lease
        if quiet.status is State.WAITING:
            # Also past its deadline while the clock stands: did nobody ask any more, nobody would hear of the end.
            self._lanes[quiet.kind or ""].append(quiet)
        return None

    async def _ask_along(self, kind: str) -> None:
        """One provider kind's questions, so many at a time; a closed account is not asked at all."""
        while waiting := self._lanes[kind][:_SHARE]:
            del self._lanes[kind][:_SHARE]
            try:
                await self._inspector.inspect(waiting)
            except Exception as error:  # noqa: BLE001  # these rows are looked at again; the other kinds go on
                self.counts["errors"] += len(waiting)
                log.warning("pass.lane_failed kind=%s error=%s", kind, type(error).__name__)

    # What needs no provider.

    def _is_foreign(self, quiet: Quiet) -> bool:
        """A kind nobody here knows, or a row from before there were kinds."""
        return quiet.kind is None or (quiet.kind != "local" and quiet.kind not in KINDS)

    def _time_out(self, quiet: Quiet) -> None:
        passed = {QUEUE: quiet.past_queue_deadline, JOB: quiet.past_deadline, ATTEMPT: quiet.past_attempt_deadline}
        late = next(late for late, past in passed.items() if past)
        self._end(settle.end_overdue, quiet, timed_out(late), look=self._look(quiet, "overdue", "timed_out", late[0]))

    def _sweep_foreign(self, quiet: Quiet) -> None:
        if quiet.kind is not None:
            self._alert(f"unknown_kind:{quiet.kind}", {"job_id": str(quiet.job_id)})
        if quiet.status is State.RUNNING:
            self._look_at_lease(quiet)
        elif quiet.stale:
            words = "its provider kind is not known here" if quiet.kind else "it names no provider kind"
            outcome = Settlement(
                status=State.FAILED, error_code="reconcile_no_recovery", error_message=f"{words}, and it is stale"
            )
            self._end(settle.end_stranded, quiet, outcome, look=self._look(quiet, "foreign", "failed"))

    def _look_at_lease(self, quiet: Quiet) -> None:
        """The watchdog's work, should it not come to it."""
        if lease_verdict(lapsed=quiet.lapsed).found is Found.RUNNING:
            return
        lapsed = Lapsed(
            quiet.job_id, quiet.epoch, quiet.mode, quiet.attempt, quiet.max_attempts, quiet.retry_safe,
            quiet.call_started, quiet.task_known,
        )  # fmt: skip
        self.counts["recovered"] += recover_one(self._rt.db, lapsed)

    def _wake(self, lost: Sequence[Quiet]) -> None:
        sent = self._rt.db.once(passes.send_again, [quiet.job_id for quiet in lost])
        self.counts["recovered"] += sent
        if sent:
            notes = [self._look(quiet, "missing", "woken", "message_lost") for quiet in lost]
            self._rt.db.once(looks.note, notes)

    def _end(self, verb: Any, quiet: Quiet, outcome: Settlement, *, look: Look) -> None:
        done = self._rt.db.transact(looks.decided, verb, quiet.job_id, epoch=quiet.epoch, outcome=outcome, look=look)
        self.counts["swept"] += done
        if done:
            log.info("job.swept job_id=%s code=%s", quiet.job_id, outcome.error_code)

    def _look(self, quiet: Quiet, found: str, did: str, code: str = "reconcile_no_recovery") -> Look:
        return Look(quiet.job_id, found, did, code, late=quiet.late)

    def _alert(self, subject: str, details: dict[str, object]) -> None:
        """Once a pass and subject, however many rows it concerns."""
        if subject not in self._alerted:
            self._alerted.add(subject)
            self.counts["alerted"] += 1
            self._rt.db.once(passes.raise_alert, subject, details)
