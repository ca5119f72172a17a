"""Polling what waits: due rows claimed in batches, asked about concurrently on one event loop, noted in batches.

A waiting job costs a row and nothing else: no thread, no connection, no lease. Any awake process polls it.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import dramatiq

from actors.call import as_call
from actors.classify import Act, Decision, after_look
from actors.deliver import bring_home
from actors.outbox import deliver_due
from actors.points import reached
from actors.probe import verdict_of
from actors.resolve import resolve
from actors.runtime import NoCredentials, Runtime, now, runtime, within
from actors.second_try import recreated
from providers.contract import AsyncProvider, Kind, Missing, Outcome, Succeeded
from providers.errors import ProviderError
from providers.registry import KINDS
from store import passes, polls, settle
from store.errors import LeaseLost
from store.models import DuePoll, PollNote, Settlement
from store.states import State

log = logging.getLogger("callkeeper.poll")

_BATCH = 100
_NOTE_EVERY = 0.02  # seconds a note may wait for company
_LOOK_EVERY = 0.05  # seconds between claims, so that a steady trickle is claimed in handfuls
_IDLE_LOOK = 1.0  # seconds at most between looks when nothing is known to be due
ASYNC_KINDS = [kind.name for kind in KINDS.values() if isinstance(kind.provider, AsyncProvider)]


class Poller:
    """One a process. Runs on the process's event loop; its database work on a few threads of its own."""

    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._ended = asyncio.Event()
        self._bell = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._notes: list[PollNote] = []
        self._room = asyncio.Semaphore(rt.options.imports_at_once)
        self._run = rt.on_thread
        self._running: list[Future[None]] = []

    def start(self) -> None:
        self._running = [self._rt.submit(self._supervised(part)) for part in (self._claim, self._note, self._deliver)]

    def end(self) -> None:
        """Claim no more; what is under way goes on."""
        self._rt.loop.call_soon_threadsafe(self._ended.set)
        self.nudge()

    def nudge(self) -> None:
        """Something may be due sooner than was known when this process last looked."""
        self._rt.loop.call_soon_threadsafe(self._bell.set)

    def wait(self, seconds: float) -> None:
        """Wait for polls and imports under way, and for their notes, at most this long."""
        wait_for_all(self._running, timeout=max(seconds, 0))

    async def drain_once(self) -> int:
        """One batch of due rows, to the end; how many. For the pass and for tests."""
        due = await self._run(self._claim_due, _BATCH)
        await asyncio.gather(*(self._poll(one) for one in due))
        await self._write_notes()
        return len(due)

    async def _supervised(self, part: Callable[[], Awaitable[None]]) -> None:
        """A part that fails (the database is away) starts over; it never ends the process or stays silently dead."""
        while True:
            try:
                await part()
                break
            except Exception as error:  # noqa: BLE001  # see above
                log.warning("poll.part_failed part=%s error=%s", getattr(part, "__name__", ""), type(error).__name__)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ended.wait(), 1)

    async def _claim(self) -> None:
        while not self._ended.is_set():
            room = self._rt.options.polls_at_once - len(self._tasks)
            due = await self._run(self._claim_due, min(room, _BATCH)) if room > 0 else []
            for one in due:
                task = asyncio.ensure_future(self._poll(one))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            self._bell.clear()
            pause = _LOOK_EVERY if due or room <= 0 else await self._run(self._pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._bell.wait(), pause)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _note(self) -> None:
        while not (self._ended.is_set() and not self._tasks):
            await asyncio.sleep(_NOTE_EVERY)
            await self._write_notes()
        await self._write_notes()

    async def _deliver(self) -> None:
        while not self._ended.is_set():
            delivered = await deliver_due(self._rt, self._run)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _LOOK_EVERY if delivered else _IDLE_LOOK)

    async def _write_notes(self) -> set[UUID]:
        """The jobs about which we had the right to say something."""
        notes, self._notes = self._notes, []
        if not notes:
            return set()
        kept: set[UUID] = await self._run(self._rt.db.once, polls.record_polls, notes)
        for note in notes:
            if note.lease.job_id not in kept:
                log.info("poll.superseded job_id=%s", note.lease.job_id)
        return kept

    def _claim_due(self, at_most: int) -> list[DuePoll]:
        term = timedelta(seconds=self._rt.options.poll_lease)
        return self._rt.db.once(
            polls.claim_due_polls, owner=self._rt.owner, kinds=ASYNC_KINDS, term=term, at_most=at_most
        )

    def _pause(self) -> float:
        left = self._rt.db.once(polls.seconds_to_next_poll)
        return _IDLE_LOOK if left is None else min(max(left, _LOOK_EVERY), _IDLE_LOOK)

    async def _poll(self, due: DuePoll) -> None:
        try:
            await self._look(due)
        except LeaseLost:
            log.info("poll.superseded job_id=%s", due.lease.job_id)
        except Exception:
            log.exception("poll.failed job_id=%s; it is due again when its poll lease ends", due.lease.job_id)

    async def _look(self, due: DuePoll) -> None:
        kind = self._rt.kind(due.call.kind or "")
        if due.stopping and due.call.task_id is not None:
            await self._run(self._cancel, due)
            return
        try:
            account = self._rt.account(kind, (due.call.handle or {}).get("account"))
        except NoCredentials as error:
            await self._run(self._alert, f"provider_auth_missing:{kind.name}", str(error))
            self._later(due, kind, Decision(Act.POLL_AGAIN, delay=self._rt.options.operator_wait, missed=None))
            return
        if due.call.task_id is None:
            verdict = await resolve(self._rt, self._run, due, kind, account)
            if verdict is not None:
                self._later(due, kind, verdict)
            return
        answer = await self._ask(kind, due, account)
        reached("mid_poll", due.lease.job_id)
        await self._act(due, kind, answer)

    async def _ask(self, kind: Kind, due: DuePoll, account: Any) -> Outcome | ProviderError:
        provider = kind.provider
        assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous jobs wait, by CHECK
        work = provider.poll(self._rt.looking, account, as_call(due.call, due.request), due.call.task_id or "")
        try:
            return await within(work, kind.poll_deadline)
        except ProviderError as error:
            return error

    async def _act(self, due: DuePoll, kind: Kind, answer: Outcome | ProviderError) -> str | None:
        """Do what the answer asks for; why a result that is there could not be brought home, or None."""
        # The grace is for ids that the provider may not show yet; a success without a result is no such thing.
        young = isinstance(answer, Missing) and due.age < kind.missing_grace.total_seconds()
        decision = after_look(verdict_of(answer), misses=due.misses, young=young)
        decision = await self._run(self._heed_gate, kind, due, answer, decision)
        if decision.alert:
            await self._run(self._alert, f"{kind.name}:{decision.alert}", decision.message)
        match decision.act:
            case Act.IMPORT:
                assert isinstance(answer, Succeeded)  # noqa: S101  # nothing else leads here
                return await self._import(due, answer)
            case Act.FAIL:
                await self._run(self._fail, due, decision)
            case _:
                if decision.code:
                    log.info("poll.learned_nothing job_id=%s code=%s", due.lease.job_id, decision.code)
                self._later(due, kind, decision, progress=getattr(answer, "progress", None))
        return None

    async def _import(self, due: DuePoll, answer: Succeeded) -> str | None:
        """Bring it home from here if there is room; otherwise wake an importer, on a larger machine if it must be."""
        rt = self._rt
        if due.queue == "large" or rt.draining.is_set() or not await self._has_room():
            look_in = timedelta(seconds=rt.options.import_again)
            await self._run(rt.db.once, polls.mark_result_known, due.lease, look_in=look_in)
            return None
        try:
            taken_at = now()
            job = await self._run(rt.db.once, polls.take_polled, due.lease, term=rt.options.lease_term)
            return await bring_home(rt, self._run, job, taken_at=taken_at, answer=answer)
        finally:
            self._room.release()

    async def _has_room(self) -> bool:
        """A place among the imports of this process, waited for well within the poll lease."""
        try:
            await asyncio.wait_for(self._room.acquire(), self._rt.options.poll_lease / 10)
        except TimeoutError:
            return False
        return True

    def _later(self, due: DuePoll, kind: Kind, decision: Decision, *, progress: float | None = None) -> None:
        seconds = decision.delay or kind.poll_every.total_seconds()
        jitter = random.uniform(0.95, 1.05)  # noqa: S311  # spreads polls, nothing more
        note = PollNote(
            due.lease, next_in=timedelta(seconds=seconds * jitter), progress=progress, missed=decision.missed
        )
        self._notes.append(note)

    def _heed_gate(self, kind: Kind, due: DuePoll, answer: Outcome | ProviderError, decision: Decision) -> Decision:
        """What this answer says about the account; while it is closed, its polls wait too."""
        account = (due.call.handle or {}).get("account", "default")
        if not isinstance(answer, ProviderError):
            self._rt.gates.answered(kind.name, account)
            return decision
        if answer.code != "output_missing":
            self._rt.gates.failed(kind.name, account, answer)
        gate = self._rt.gates.closed(kind.name, account)
        if gate is None or decision.act is not Act.POLL_AGAIN:
            return decision
        return replace(decision, delay=max(decision.delay or 0, self._rt.gates.pause(gate)))

    def _fail(self, due: DuePoll, decision: Decision) -> None:
        if recreated(self._rt, due.lease, run_id=due.run_id, attempt=due.attempt, code=decision.code):
            return
        outcome = Settlement(status=State.FAILED, error_code=decision.code, error_message=decision.message)
        self._rt.db.transact(settle.end_polled, due.lease, outcome, upstream_ended=True)
        log.info("job.failed job_id=%s code=%s", due.lease.job_id, decision.code)

    def _cancel(self, due: DuePoll) -> None:
        outcome = Settlement(status=State.CANCELLED, error_code="cancelled", error_message="stopped on request")
        self._rt.db.transact(settle.end_polled, due.lease, outcome, upstream_ended=False)
        log.info("job.cancelled job_id=%s", due.lease.job_id)

    def _alert(self, subject: str, message: str) -> None:
        self._rt.db.once(passes.raise_alert, subject, {"message": message})


@dramatiq.actor(queue_name="maintenance", priority=0)
def poll_due() -> None:
    """Poll everything that is due, once. Workers do it by themselves; this is for a fleet without a live poller."""
    rt = runtime()
    poller = Poller(rt)
    while not rt.draining.is_set() and rt.submit(poller.drain_once()).result():
        threading.Event().wait(_LOOK_EVERY)
