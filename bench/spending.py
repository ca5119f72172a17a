"""What the emergency stop costs those who begin a priced call: without one, over a day, over 31 days of busy hours."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

from bench.rig import Rig, rig
from store import call_ledger, emergency_stop, jobs
from store.call_ledger import Spend
from store.engine import Database, make_engine
from store.models import CallState, Lease

THREADS, CALLS = 16, 1600
TERM = timedelta(hours=1)
SPEND = Spend("default", "claude-x", {"input": 1, "output": 1}, 1000, timedelta(minutes=1))
_BUSY = """
  insert into callkeeper.spending_hours (hour, part, cost, calls)
  select date_bin('1 hour', now(), timestamptz '2000-01-03 00:00:00+00') - n * interval '1 hour', part, 1, 1
  from generate_series(1, 744) n, generate_series(0, 7) part on conflict do nothing
"""


def measure() -> list[dict[str, Any]]:
    """Calls begun and booked a second, by 16 threads at once."""
    with rig() as stand:
        db = Database(make_engine(stand.url, name="bench", pool_size=THREADS + 2))
        off = _rate(stand, db)
        db.once(emergency_stop.set_stop, amount=2**60, per=timedelta(days=1), by="bench")
        day = _rate(stand, db)
        db.once(emergency_stop.set_stop, amount=2**60, per=timedelta(days=31), by="bench")
        with db.engine.begin() as connection:
            connection.exec_driver_sql(_BUSY)
        month = _rate(stand, db)
        db.dispose()
    return [
        {
            "figure": f"priced calls begun and booked under an emergency stop over {window}, {THREADS} at once",
            "value": round(rate),
            "unit": "calls/s",
            "yardstick": "without a stop",
            "yardstick_value": round(off),
            "ratio": round(rate / off, 2),
        }
        for window, rate in (("a day", day), ("31 days, every hour busy", month))
    ]


def _rate(stand: Rig, db: Database) -> float:
    held = [_claim(db, job_id) for job_id in stand.submit(_text, CALLS)]
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda lease: _call(db, lease), held))
    return CALLS / (time.perf_counter() - began)


def _text(number: int) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": f"priced {number}"}]
    return "anthropic-sync", {"model": "claude-x", "max_tokens": 16, "messages": messages}


def _claim(db: Database, job_id: Any) -> Lease:
    claimed = db.once(jobs.claim_queued, job_id, owner="bench", term=TERM)
    assert claimed is not None
    return claimed.lease


def _call(db: Database, lease: Lease) -> None:
    asked: dict[str, Any] = {"kind": "anthropic-sync", "handle": {}, "quiet": TERM, "spend": SPEND}
    begun = db.once(call_ledger.begin_unlimited, lease, **asked) or db.transact(
        call_ledger.begin_within, lease, **asked
    )
    assert isinstance(begun, CallState), begun
    db.once(call_ledger.finish, lease.job_id, begun.generation, status="ok", cost=900)
