"""Calls that have a price: admitted by the emergency stop, made under the lease, booked whatever becomes of the job.

A booking that fails never repeats the call: its row is closed by a pass once the call can run no longer.
"""

import logging
import random
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy.exc import SQLAlchemyError

from actors.classify import backoff
from actors.lease import Held, StopWanted
from actors.letting_go import fail
from actors.pricing import Booking, booking_of, booking_of_error
from actors.runtime import Request, Runtime
from providers.contract import Failed, Succeeded
from providers.errors import ProviderError
from store import call_ledger, emergency_stop, jobs
from store.call_ledger import Spend
from store.errors import LeaseLost, SpendingInsufficient, SpendingRefused, SpendingStopped
from store.models import CallState, ClaimedJob

log = logging.getLogger("callkeeper.spending")

_BATCH = 500
_LONGEST_PAUSE = 20.0  # seconds between two tries of a job that waits for others' reservations


def begin(
    rt: Runtime,
    job: ClaimedJob,
    *,
    kind: str,
    handle: Mapping[str, Any],
    quiet: timedelta,
    spend: Spend,
    next_call: bool = False,
) -> CallState:
    """Commit the intent of a priced call. Raises LeaseLost, or SpendingRefused when the stop does not let it begin.

    As `calls.mark_call_started`. `next_call`: the job made one under this lease before, and that one is over.
    """
    asked: dict[str, Any] = {
        "kind": kind, "handle": handle, "quiet": quiet, "spend": spend, "next_call": next_call,
    }  # fmt: skip
    state = rt.db.once(call_ledger.begin_unlimited, job.lease, **asked)
    if state is not None:
        return state
    begun = rt.db.transact(call_ledger.begin_within, job.lease, **asked)
    if isinstance(begun, SpendingRefused):
        log.info("spending.refused job_id=%s code=%s reserve=%s", job.lease.job_id, begun.code, spend.reserved)
        raise begun
    return begun


def refused(rt: Runtime, job: ClaimedJob, error: SpendingRefused) -> None:
    """The job's end, or its way back into the queue without an attempt spent, as the refusal says. Raises LeaseLost."""
    match error:
        case SpendingStopped():
            fail(rt, job, "emergency_stop", str(error))
        case SpendingInsufficient():
            fail(rt, job, "spending_insufficient", str(error))
        case _:
            # Others' calls may take minutes: a job that is asked each second of them would fill its log with that.
            base = error.retry_after or 1.0
            pause = backoff(job.lease.epoch, base=base, cap=_LONGEST_PAUSE, jitter=random.random())  # noqa: S311
            rt.db.once(jobs.requeue, job.lease, delay=timedelta(seconds=pause), why="spending_reserved")


def make(
    rt: Runtime,
    job: ClaimedJob,
    held: Held,
    state: CallState,
    spend: Spend,
    work: Request[Succeeded | Failed],
    *,
    deadline: timedelta,
    stops: bool = True,
) -> Succeeded | Failed:
    """Send the request of a call that has begun, and book what it cost. Raises ProviderError, LeaseLost, StopWanted.

    When we hang up on it, nobody knows whether the provider does: it stays open, and takes a slot, until it can run no
    longer. An answer is booked even if the job is somebody else's by now.
    """
    job_id, generation = job.lease.job_id, state.generation
    try:
        answer = rt.call_held(work, held, deadline=deadline, stops=stops)
    except ProviderError as error:
        book(rt, job_id, generation, booking_of_error(error))
        raise
    except StopWanted:
        _hung_up(rt, job_id, generation, "cancelled")
        raise
    except LeaseLost:
        _hung_up(rt, job_id, generation, "lease_lost")
        raise
    book(rt, job_id, generation, booking_of(answer, spend.price))
    return answer


def book(rt: Runtime, job_id: UUID, generation: int, booking: Booking) -> None:
    """Close a call's row; the first booking counts. Raises nothing: no trouble here is a reason to call again."""
    try:
        booked = rt.db.once(
            call_ledger.finish,
            job_id,
            generation,
            status=booking.status,
            cost=booking.cost,
            input_tokens=booking.input_tokens,
            output_tokens=booking.output_tokens,
            error=booking.error,
        )
    except SQLAlchemyError as error:
        log.warning("spending.not_booked job_id=%s call=%s error=%s", job_id, generation, type(error).__name__)
        return
    if not booked:
        log.warning("spending.booked_before job_id=%s call=%s", job_id, generation)


def _hung_up(rt: Runtime, job_id: UUID, generation: int, reason: str) -> None:
    try:
        rt.db.once(call_ledger.note_abort, job_id, generation, why=reason)
    except SQLAlchemyError as error:
        log.warning("spending.not_noted job_id=%s call=%s error=%s", job_id, generation, type(error).__name__)


def close_lost(rt: Runtime, until: float) -> Mapping[str, int]:
    """What can run no longer and nobody booked is ours, at its reserve; in batches until done or `until`."""
    closed = 0
    while time.monotonic() < until:
        batch = rt.db.once(call_ledger.close_overdue, at_most=_BATCH)
        closed += batch
        if batch < _BATCH:
            break
    latched = rt.db.transact(emergency_stop.look)
    rt.db.once(call_ledger.forget_hours)
    return {"scanned": closed, "swept": closed, "latched": int(latched)}
