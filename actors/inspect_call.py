"""The pass's look at calls under way: the poller's own look and import, with counted failures and a kept history.

A call that honestly runs is left alone, however often it is looked at. A look that learned nothing is deferred and
counted apart; an account that is closed is not asked. Only what was learned and could not be used counts, to a cap.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa

from actors.classify import Act, Decision
from actors.poll import Poller
from actors.probe import Found, verdict_of
from actors.runtime import Runtime
from actors.second_try import recreated
from providers.contract import Kind, Outcome
from providers.errors import ProviderError
from store import looks, passes, polls, settle
from store.errors import LeaseLost
from store.looks import Look, Tally
from store.models import DuePoll, PollNote, Settlement
from store.passes import Quiet
from store.states import State

log = logging.getLogger("callkeeper.reconcile")

# Why a result was put back that says nothing about the job: somebody has to repair a worker first.
_NOT_ITS_FAULT = {"cannot_import"}


class Inspector(Poller):
    """Asks about calls in handfuls, each at most one request, all at the same time. Never started as a poller."""

    def __init__(self, rt: Runtime, counts: "Counter[str]") -> None:
        super().__init__(rt)
        self._counts = counts
        self._seen: dict[UUID, Quiet] = {}
        self._looks: list[Look] = []

    async def inspect(self, quiet: Sequence[Quiet]) -> None:
        """Look at these waiting jobs, except those that somebody else asks about right now."""
        self._seen.update({one.job_id: one for one in quiet})
        ids = list({one.job_id for one in quiet})
        due = await self._run(
            self._rt.db.once, looks.claim_probes, ids, owner=self._rt.owner, term=self._rt.options.poll_lease_term
        )
        await asyncio.gather(*(self._inspect(one) for one in due))
        notes, self._notes = self._notes, []
        seen, self._looks = self._looks, []
        tallies = await self._run(self._rt.db.transact, _write_down, notes, seen)
        for job_id, tally in tallies.items():
            if tally.failed_looks >= self._rt.options.reconcile_attempts:
                await self._run(self._exhaust, job_id, tally.epoch)
        for one in quiet:
            self._seen.pop(one.job_id, None)

    async def _inspect(self, due: DuePoll) -> None:
        job_id = due.lease.job_id
        try:
            if self._seen[job_id].failed_looks >= self._rt.options.reconcile_attempts:
                await self._run(self._exhaust, job_id, due.lease.epoch)
                return
            kind = self._rt.kind(due.call.kind or "")
            gate = await self._run(self._rt.gates.closed, kind.name, (due.call.handle or {}).get("account", "default"))
            if gate is not None and not due.stopping:
                self._later(due, kind, Decision(Act.POLL_AGAIN, delay=self._rt.gates.pause(gate), missed=None))
                self._counts["deferred"] += 1
                return
            await self._look(due)
        except LeaseLost:
            log.info("poll.superseded job_id=%s", job_id)
        except Exception as error:
            log.exception("look.failed job_id=%s", job_id)
            self._counts["errors"] += 1
            self._remember(due, "unsure", "counted", "look_failed", type(error).__name__, failed=True)

    async def _act(self, due: DuePoll, kind: Kind, answer: Outcome | ProviderError) -> str | None:
        put_back = await super()._act(due, kind, answer)
        verdict = verdict_of(answer)
        match verdict.found:
            case Found.SUCCEEDED if put_back in _NOT_ITS_FAULT:
                self._remember(due, "succeeded", "put_back", put_back or "", "", deferred=True)
            case Found.SUCCEEDED if put_back:
                self._remember(
                    due, "succeeded", "put_back", put_back, "the result is there, it cannot be kept", failed=True
                )
            case Found.SUCCEEDED:
                self._counts["recovered"] += 1
                self._remember(due, "succeeded", "brought_home")
            case Found.UNSURE if verdict.useless:
                self._remember(due, "unsure", "counted", verdict.code, verdict.message, failed=True)
            case Found.UNSURE:
                self._remember(due, "unsure", "deferred", verdict.code, verdict.message, deferred=True)
            case Found.MISSING if self._notes and self._notes[-1].lease == due.lease and self._notes[-1].missed:
                self._remember(due, "missing", "counted", verdict.code, verdict.message)
            case _:
                pass
        return put_back

    def _remember(self, due: DuePoll, found: str, did: str, code: str = "", message: str = "", **counted: bool) -> None:
        job_id = due.lease.job_id
        if counted.get("deferred"):
            self._counts["deferred"] += 1
        kept = not counted.get("deferred")
        look = Look(job_id, found, did, code, message, late=self._seen[job_id].late, kept=kept, **counted)
        self._looks.append(look)

    def _fail(self, due: DuePoll, decision: Decision) -> None:
        job_id = due.lease.job_id
        if recreated(self._rt, due.lease, run_id=due.run_id, attempt=due.attempt, code=decision.code):
            self._counts["recovered"] += 1
            self._looks.append(Look(job_id, "failed", "recreated", decision.code, late=self._seen[job_id].late))
            return
        found = "missing" if decision.code in ("provider_task_lost", "output_missing") else "failed"
        look = Look(job_id, found, "failed", decision.code, decision.message, late=self._seen[job_id].late)
        outcome = Settlement(status=State.FAILED, error_code=decision.code, error_message=decision.message)
        self._rt.db.transact(looks.decided, settle.end_polled, due.lease, outcome, upstream_ended=True, look=look)
        self._counts["failed"] += 1
        log.info("job.failed job_id=%s code=%s", job_id, decision.code)

    def _exhaust(self, job_id: UUID, epoch: int) -> None:
        done = self._rt.db.transact(
            _exhaust, job_id, epoch, self._rt.options.reconcile_attempts, self._seen[job_id].kind
        )
        self._counts["swept"] += done
        self._counts["alerted"] += done


def _write_down(connection: sa.Connection, notes: Sequence[PollNote], seen: Sequence[Look]) -> dict[UUID, Tally]:
    """Counters and history belong to the same decision, so they are written together or not at all."""
    superseded = {note.lease.job_id for note in notes} - (polls.record_polls(connection, notes) if notes else set())
    believed = [look for look in seen if look.job_id not in superseded]
    return looks.note(connection, believed) if believed else {}


def _exhaust(connection: sa.Connection, job_id: UUID, epoch: int, cap: int, kind: str | None) -> bool:
    words = f"{cap} looks in a row could not bring the result home"
    outcome = Settlement(status=State.FAILED, error_code="reconcile_exhausted", error_message=words)
    look = Look(job_id, "exhausted", "failed", "reconcile_exhausted", words)
    done = looks.decided(connection, settle.end_exhausted, job_id, epoch=epoch, cap=cap, outcome=outcome, look=look)
    if done:
        passes.raise_alert(connection, f"reconcile_exhausted:{kind}", {"job_id": str(job_id)})
        log.warning("job.exhausted job_id=%s", job_id)
    return done
