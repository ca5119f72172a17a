"""Capacity: 2,000 calls waiting on one worker process, each to be polled every five seconds."""

import time
from typing import Any

import psutil
import sqlalchemy as sa

from bench.rig import Rig, picture, rig, until

_WAITING = sa.text("select count(*) from callkeeper.jobs where status = 'waiting'")
_CONNECTIONS = sa.text(
    "select count(*) from pg_stat_activity where datname = current_database() and application_name <> 'bench'"
)
EVERY = 5.0
BEST_PEER = {"period_s": 5.0, "rss_mb": 61, "cores": 0.65, "kept": "in its memory"}


def measure(*, calls: int = 2000, seconds: float = 30) -> dict[str, Any]:
    """Real period, memory, cores, threads and connections while nothing but polling goes on."""
    script = {"defaults": {"webhook": "off", "run_seconds": [100000, 100000]}}
    with rig(script, kinds={"first_poll": EVERY, "poll_every": EVERY}) as stand:
        worker = stand.start_worker()
        stand.submit(picture, 20)
        until(lambda: stand.scalar(_WAITING) == 20, what="the first calls to wait")
        until(lambda: _polls(stand) > 0, what="a poll")
        before = _holding(stand, worker)
        stand.submit(picture, calls - 20)
        until(lambda: stand.scalar(_WAITING) == calls, within=240, what="all calls to wait")
        until(lambda: _round_of_polls(stand, calls), within=60, what="one whole round of polls")
        figures = _watch(stand, worker, calls, seconds)
        return {
            "figure": f"{calls} calls waiting on one worker process: real poll period",
            "value": figures.pop("period_s"),
            "unit": "s",
            "yardstick": f"wanted {EVERY:g} s; the best peer measured: {BEST_PEER}",
            "yardstick_value": EVERY,
            **figures,
            "before": before,
            "after": _holding(stand, worker),
        }


def _watch(stand: Rig, worker: psutil.Process, calls: int, seconds: float) -> dict[str, Any]:
    polls, cpu, started = _polls(stand), sum(worker.cpu_times()[:2]), time.perf_counter()
    until(lambda: time.perf_counter() - started > seconds, within=seconds + 5, what="the end of the watch", every=0.5)
    took = time.perf_counter() - started
    return {
        "period_s": round(calls * took / (_polls(stand) - polls), 2),
        "cores": round((sum(worker.cpu_times()[:2]) - cpu) / took, 2),
        "rss_mb": round(worker.memory_info().rss / 1e6),
    }


def _holding(stand: Rig, worker: psutil.Process) -> dict[str, int]:
    return {"threads": worker.num_threads(), "connections": stand.scalar(_CONNECTIONS)}


def _polls(stand: Rig) -> int:
    return int(stand.sandbox.stats()["requests"]["poll"])


def _round_of_polls(stand: Rig, calls: int) -> bool:
    return _polls(stand) >= calls
