"""Calls settled per second against an instant sandbox, beside the same HTTP requests without a database."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from bench import bare
from bench.rig import Request, Rig, picture, rig, text

_COMMITS = sa.text("select xact_commit from pg_stat_database where datname = current_database()")
_WAL = sa.text("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")


def measure(kind: str, *, count: int, processes: int, threads: int = 8) -> dict[str, Any]:
    """One run: ours, then bare, on the same sandbox."""
    make: Callable[[int], Request] = picture if kind == "picture" else text
    with tempfile.TemporaryDirectory() as counts, rig(modules="bench.count_statements") as stand:
        stand.environment["CALLKEEPER_BENCH_COUNTS"] = counts
        workers = [stand.start_worker(threads=threads) for _ in range(processes)]
        stand.submit(make, 100)
        stand.wait_until_done()
        ours = _run(stand, workers, make, count, Path(counts))
        yardstick = bare.in_processes(stand.sandbox.url, count, kind, processes=processes, at_once=threads)
        return {
            "figure": f"calls settled per second, {kind}, {processes} worker process(es)",
            "value": round(ours["per_second"], 1),
            "unit": "calls/s",
            "yardstick": "the same requests by bare httpx, no database",
            "yardstick_value": round(yardstick, 1),
            "ratio": round(ours["per_second"] / yardstick, 3),
            **{name: value for name, value in ours.items() if name != "per_second"},
            "violations": stand.violations(),
        }


def _run(
    stand: Rig, workers: list[psutil.Process], make: Callable[[int], Request], count: int, counts: Path
) -> dict[str, Any]:
    requests = _requests(stand)
    cpu = _cpu(workers)
    stand.submit(make, count)  # committed in batches, so the workers are at it while the last ones come in
    commits, wal, statements = stand.scalar(_COMMITS), stand.scalar(_WAL), _sum(counts)
    settled = stand.open_jobs()
    started = time.perf_counter()
    stand.wait_until_done()
    seconds = time.perf_counter() - started
    time.sleep(0.5)  # the workers write their counts five times a second
    return {
        "per_second": settled / seconds,
        "http_requests_per_call": round((_requests(stand) - requests) / count, 2),
        "worker_cpu_ms_per_call": round(1000 * (_cpu(workers) - cpu) / count, 2),
        "commits_per_call": round((stand.scalar(_COMMITS) - commits) / settled, 2),
        "statements_per_call": round((_sum(counts) - statements) / settled, 2),
        "wal_bytes_per_call": round((stand.scalar(_WAL) - wal) / settled),
    }


def _sum(counts: Path) -> int:
    return sum(int(place.read_text() or 0) for place in counts.iterdir())


def _requests(stand: Rig) -> int:
    return sum(stand.sandbox.stats()["requests"].values())


def _cpu(workers: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (worker.cpu_times() for worker in workers))
