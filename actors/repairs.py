"""Repairs: work that may be stranded outside of a call.

Each is its own actor, with its own schedule, lock and deadline, so that one that fails or hangs takes no other with it.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from itertools import groupby
from typing import Any, TypeVar

import dramatiq
from dramatiq.middleware import Interrupt, raise_thread_exception
from periodiq import cron

from actors.aftercare import look_after
from actors.passes import BUDGET, recorded
from actors.runtime import Runtime, runtime
from store import passes
from store import repairs as store_repairs
from store.engine import Database

log = logging.getLogger("callkeeper.repairs")

F = TypeVar("F", bound=Callable[[Database], Any])


class RepairLate(Interrupt):
    """Raised in the middle of a repair that is past its deadline."""


def repair(name: str, *, every: str = "*/5 * * * *", deadline: timedelta = BUDGET) -> Callable[[F], F]:
    """Register `function(db)` as a repair of the app's own: `every` is a cron line, `deadline` ends it by RepairLate.

    It runs on a worker that takes queue `maintenance`, one at a time in the whole fleet, and returns how many things it
    repaired (or None). What it raises is on record in its row of `callkeeper.passes` and in an alert
    `repair_failed:NAME`, and its next turn comes as if nothing had happened. `db.engine` is for its own SQL.
    """

    def decorate(function: F) -> F:
        def work(rt: Runtime, _until: float) -> Mapping[str, int]:
            return Counter(repaired=int(function(rt.db) or 0))

        _make_actor(name, work, every=every, deadline=deadline)
        return function

    return decorate


def _make_actor(
    name: str, work: Callable[[Runtime, float], Mapping[str, int]], *, every: str, deadline: timedelta = BUDGET
) -> "dramatiq.Actor[[], None]":
    def turn() -> None:
        run_alone(runtime(), name, work, deadline=deadline)

    schedule = cron(every)  # type: ignore[no-untyped-call]  # it has no types of its own
    return dramatiq.actor(actor_name=name, queue_name="maintenance", priority=0, periodic=schedule)(turn)


def run_alone(
    rt: Runtime, name: str, work: Callable[[Runtime, float], Mapping[str, int]], *, deadline: timedelta
) -> Mapping[str, int] | None:
    """Run one repair under its lock and deadline; None while it runs elsewhere. A failure is recorded, never raised."""
    token = rt.db.once(store_repairs.lock, name, span=deadline + timedelta(seconds=30))
    if token is None:
        log.info("repair.busy name=%s", name)
        return None
    thread = threading.get_ident()
    alarm = threading.Timer(deadline.total_seconds(), raise_thread_exception, (thread, RepairLate))
    alarm.start()
    try:
        return recorded(rt, name, work, budget=deadline)
    except (Exception, RepairLate) as error:  # noqa: BLE001  # the app's code; its next turn comes all the same
        alarm.cancel()
        log.warning("repair.failed name=%s error=%s", name, type(error).__name__)
        details: dict[str, object] = {"error": type(error).__name__}
        rt.db.once(passes.raise_alert, f"repair_failed:{name}", details)
        return {}
    finally:
        alarm.cancel()
        rt.db.once(store_repairs.unlock, name, token)


# The built-in ones.


def _aftercare(rt: Runtime, until: float) -> Mapping[str, int]:
    return rt.submit(look_after(rt, until)).result()


def _settle_holds(rt: Runtime, _until: float) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    while settled := rt.db.once(store_repairs.settle_holds):
        counts["repaired"] += settled
    for job in rt.db.once(store_repairs.without_hold):
        counts["alerted"] += 1
        rt.db.once(passes.raise_alert, f"job_without_hold:{job['job_id']}", {"job_type": job["job_type"]})
    return counts


def _tidy_messages(rt: Runtime, _until: float) -> Mapping[str, int]:
    return Counter(repaired=rt.db.once(store_repairs.tidy_messages))


def _audit_books(rt: Runtime, _until: float) -> Mapping[str, int]:
    """State every invariant; one alert each that does not hold, with its first violation."""
    found = rt.db.transact(store_repairs.violations, seconds=BUDGET.total_seconds() - 10)
    counts: Counter[str] = Counter(violations=len(found))
    for invariant, group in groupby(found, key=lambda row: row["invariant"]):
        rows = list(group)
        counts[f"invariant_{invariant}"] = len(rows)
        counts["alerted"] += 1
        first = {"count": len(rows), "job_id": str(rows[0]["job_id"]), "what": rows[0]["what"]}
        rt.db.once(passes.raise_alert, f"violation:{invariant}", dict(first))
    return counts


aftercare = _make_actor("aftercare", _aftercare, every="* * * * *")
settle_holds = _make_actor("settle_holds", _settle_holds, every="* * * * *")
tidy_messages = _make_actor("tidy_messages", _tidy_messages, every="*/10 * * * *")
audit_books = _make_actor("audit_books", _audit_books, every="7 * * * *")
