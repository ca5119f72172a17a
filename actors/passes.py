"""The scheduled passes: what polling and heartbeats do all the time, guaranteed once a minute, and left on record."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta

import dramatiq
from periodiq import cron

from actors.deadlines import end_overdue
from actors.outbox import deliver
from actors.poll import poll_due
from actors.reconcile import Pass
from actors.recover import recover_lapsed
from actors.run_watch import look_at_runs
from actors.runtime import Runtime, runtime
from actors.spending import close_lost
from store import follow, passes

log = logging.getLogger("callkeeper.passes")

BUDGET = timedelta(minutes=4)
_ACTS = ("recovered", "swept", "failed")

Work = Callable[[Runtime, float], Mapping[str, int]]


def recorded(rt: Runtime, name: str, work: Work, *, budget: timedelta = BUDGET) -> Mapping[str, int]:
    """Run one pass and leave its row and its line, whatever happens: health reads when it last succeeded."""
    started = time.monotonic()
    rt.db.once(passes.start_pass, name)
    counts: Mapping[str, int] = {}
    error: str | None = None
    try:
        counts = work(rt, started + budget.total_seconds())
    except BaseException as problem:
        error = type(problem).__name__
        raise
    finally:
        took_ms = int((time.monotonic() - started) * 1000)
        scanned, acted = counts.get("scanned", 0), sum(counts.get(act, 0) for act in _ACTS)
        rt.db.once(
            passes.finish_pass, name, scanned=scanned, acted=acted, took_ms=took_ms, counts=dict(counts), error=error
        )
        told = " ".join(f"{what}={count}" for what, count in sorted(counts.items()))
        log.info("pass.done name=%s took_ms=%s error=%s %s", name, took_ms, error, told)
    return counts


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def sweep() -> None:
    """Open jobs gone quiet: asked about, brought home, woken, or ended; each with its reason on record."""
    recorded(runtime(), "sweep", _sweep)


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def watchdog() -> None:
    """Orphans: leases whose holders are gone, polls and deliveries that nobody picks up."""
    recorded(runtime(), "watchdog", _watch)
    poll_due.send()
    deliver.send()


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def watch_runs() -> None:
    """Open runs, looked at again: what was missed is put right, what is late is looked into."""
    recorded(runtime(), "watch_runs", look_at_runs)


@dramatiq.actor(queue_name="maintenance", priority=0, periodic=cron("* * * * *"))
def book_lost_calls() -> None:
    """Priced calls whose cost nobody booked: ours, as an estimate. And the emergency stop, looked at."""
    recorded(runtime(), "book_lost_calls", close_lost)


def _sweep(rt: Runtime, until: float) -> Mapping[str, int]:
    late = end_overdue(rt.db)
    counts = Counter(rt.submit(Pass(rt).work(until)).result())
    if late:
        counts["swept"] += late
    rt.db.once(passes.prune_ticks)
    rt.db.once(follow.forget)
    return counts


def _watch(rt: Runtime, until: float) -> Mapping[str, int]:
    _ = until
    late = end_overdue(rt.db)
    recovered = recover_lapsed(rt.db)
    return Counter(scanned=late + recovered, recovered=recovered, swept=late, put_in_line=rt.admission.look())
