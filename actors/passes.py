"""The scheduled passes: what polling and heartbeats do all the time, guaranteed once a minute, and left on record."""

import logging
import time
from collections.abc import Callable
from datetime import timedelta

import dramatiq
from periodiq import cron

from actors.outbox import deliver
from actors.poll import poll_due
from actors.recover import recover_lapsed
from actors.runtime import Runtime, runtime
from store import passes, settle
from store.models import Settlement
from store.passes import Quiet
from store.states import State

log = logging.getLogger("callkeeper.passes")

BUDGET = timedelta(minutes=4)


def _recorded(rt: Runtime, name: str, work: Callable[[Runtime, float], tuple[int, int]]) -> None:
    """Run one pass and leave its row, whatever happens: health reads when it last succeeded."""
    started = time.monotonic()
    rt.db.once(passes.start_pass, name)
    scanned = acted = 0
    error: str | None = None
    try:
        scanned, acted = work(rt, started + BUDGET.total_seconds())
    except Exception as problem:
        error = type(problem).__name__
        raise
    finally:
        took_ms = int((time.monotonic() - started) * 1000)
        rt.db.once(passes.finish_pass, name, scanned=scanned, acted=acted, took_ms=took_ms, error=error)
        log.info("pass.done name=%s scanned=%s acted=%s took_ms=%s error=%s", name, scanned, acted, took_ms, error)


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def sweep() -> None:
    """Open jobs gone quiet: past a deadline, ended; queued without a message, woken."""
    _recorded(runtime(), "sweep", _sweep)


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def watchdog() -> None:
    """Orphans: leases whose holders are gone, polls and deliveries that nobody picks up."""
    _recorded(runtime(), "watchdog", _watch)
    poll_due.send()
    deliver.send()


def _sweep(rt: Runtime, until: float) -> tuple[int, int]:
    scanned = acted = 0
    while time.monotonic() < until and not rt.draining.is_set():
        quiet = rt.db.once(passes.look_at_quiet)
        if not quiet:
            break
        scanned += len(quiet)
        lost = [one.job_id for one in quiet if one.status is State.QUEUED and not one.message_sent]
        late = [one for one in quiet if one.past_queue_deadline or one.past_deadline]
        acted += sum(_time_out(rt, one) for one in late)
        if lost:
            acted += rt.db.once(passes.send_again, lost)
    rt.db.once(passes.prune_ticks)
    return scanned, acted


def _time_out(rt: Runtime, one: Quiet) -> bool:
    code, words = (
        ("queue_timeout", "the job was not started before its queue deadline")
        if one.past_queue_deadline
        else ("deadline_exceeded", "the job did not end before its deadline")
    )
    outcome = Settlement(status=State.TIMED_OUT, error_code=code, error_message=words)
    return rt.db.transact(settle.end_overdue, one.job_id, epoch=one.epoch, outcome=outcome)


def _watch(rt: Runtime, until: float) -> tuple[int, int]:
    _ = until
    recovered = recover_lapsed(rt.db)
    return recovered, recovered
