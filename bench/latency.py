"""Pickup: from the submitting transaction's commit to the provider's first byte of the create."""

import statistics
import time
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from bench.rig import Rig, picture, rig, until

_DEAF = sa.text(
    "select count(pg_terminate_backend(pid)) from pg_stat_activity"
    " where query ilike 'listen%' and query like '%dramatiq%'"
)
ROUNDS = 60


def measure(*, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Median and p95 with a listener; the worst of a few without one."""
    with rig() as stand:
        stand.start_worker()
        stand.submit(picture, 20)
        stand.wait_until_done()
        heard = [_once(stand, number) for number in range(rounds)]
        deaf = []
        for number in range(5):
            stand.scalar(_DEAF)
            deaf.append(_once(stand, 1000 + number))
        return [
            {
                "figure": "pickup latency, commit to the provider's first byte",
                "value": round(1000 * statistics.median(heard), 2),
                "unit": "ms, median",
                "p95_ms": round(1000 * statistics.quantiles(heard, n=20)[-1], 2),
                "yardstick": "wanted: below 20 ms",
                "yardstick_value": 20,
            },
            {
                "figure": "pickup with every listener's connection just cut",
                "value": round(max(deaf), 3),
                "unit": "s, worst of 5",
                "yardstick": "wanted: below 2 s",
                "yardstick_value": 2,
            },
        ]


def _once(stand: Rig, number: int) -> float:
    """One lone call. Both clocks are this machine's wall clock: the sandbox stamps the create's arrival."""
    marker = f"bench pickup {number} {time.time_ns()}"

    def make(_number: int) -> tuple[str, dict[str, Any]]:
        return "replicate-prediction", {"model": "acme/draw", "input": {"prompt": marker}}

    stand.submit(make, 1)
    committed = time.time()
    found = until(lambda: stand.sandbox.bill(containing=marker), what="the create", every=0.005)
    stand.wait_until_done()
    return max(0.0, _seconds(found[0]["created_at"]) - committed)


def _seconds(stamp: object) -> float:
    if isinstance(stamp, int | float):
        return float(stamp)
    return datetime.fromisoformat(str(stamp)).timestamp()
