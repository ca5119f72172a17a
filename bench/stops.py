"""Stops: how long until a running holder, in another process, has ended its job."""

import statistics
from typing import Any

import sqlalchemy as sa

from actors import stop
from bench import handlers
from bench.rig import Rig, rig, until

ROUNDS = 200

_STARTED = sa.text("select count(*) from callkeeper.job_events where job_id = :id and kind = 'call_started'")
# Both by the database's clock: from the stop's row to the settlement that honours it.
_HEARD = sa.text(
    "select extract(epoch from j.finished_at - s.created_at)::float8 from callkeeper.jobs j"
    " join callkeeper.job_signals s on s.job_id = j.id where j.id = :id"
)


def _wait(_number: int) -> tuple[str, dict[str, Any]]:
    return "bench-wait", {}


def measure(*, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """From a stop's commit to the job's settled end, in another process."""
    with rig(modules=handlers.__name__) as stand:
        stand.start_worker()
        stand.start_worker()
        took = [_stopped(stand) for _ in range(rounds)]
        return [
            {
                "figure": "a stop, from its row to the running holder's settled end",
                "value": round(1000 * statistics.median(took), 2),
                "unit": "ms, p50",
                "p99_ms": round(1000 * statistics.quantiles(took, n=100)[-1], 2),
                "worst_ms": round(1000 * max(took), 2),
                "stops": rounds,
                "yardstick": "wanted: below 200 ms",
                "yardstick_value": 200,
                "violations": stand.violations(),
            }
        ]


def _stopped(stand: Rig) -> float:
    (job_id,) = stand.submit(_wait, 1)
    until(lambda: stand.scalar(_STARTED, id=job_id), what="its start", every=0.005)
    with stand.db.engine.begin() as connection:
        stop(connection, job_id)
    stand.wait_until_done()
    return float(stand.scalar(_HEARD, id=job_id))
