"""Rescue: from the SIGKILL of a worker to the settlement of the call it held, at the default lease."""

import time
from typing import Any

import sqlalchemy as sa

from bench.rig import picture, rig, until

_IN_CREATE = sa.text(
    "select count(*) from callkeeper.jobs where status = 'running' and provider_call_started_at is not null"
)
LEASE = 30


def measure() -> dict[str, Any]:
    """One worker dies while the provider holds its create; another one finds the call and brings it home."""
    script = {"rules": [{"when": {"route": "create", "nth": [1]}, "do": {"accept_then": "hang"}}]}
    with rig(script, lease=LEASE, kinds={"send_deadline": 20, "visibility_lag": 2}) as stand:
        stand.start_worker()
        stand.submit(picture, 1)
        until(lambda: stand.scalar(_IN_CREATE) == 1, what="a create in flight")
        until(lambda: stand.sandbox.totals()["all"] == 1, what="the bill")
        stand.kill_workers()
        killed = time.perf_counter()
        stand.start_worker()
        stand.wait_until_done()
        return {
            "figure": "rescue of a call whose worker was killed mid-create",
            "value": round(time.perf_counter() - killed, 2),
            "unit": "s",
            "yardstick": "lease + one beat",
            "yardstick_value": LEASE + 10,
            "creates": stand.sandbox.totals()["all"],
            "violations": stand.violations(),
        }
