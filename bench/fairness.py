"""Turns: how long one user's single job waits behind another's flood, what a weight is worth, when a priority ages."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from bench.rig import Rig, rig, text, until
from store import budgets, line
from store import submit as store_submit

TERM = timedelta(hours=1)
_STARTED = sa.text("select count(*) from callkeeper.jobs where started_at is not null and user_id = 'flood'")
_BETWEEN = sa.text(
    """
    select count(*) from callkeeper.jobs f, callkeeper.jobs j
    where j.id = :id and f.user_id = 'flood' and f.started_at > j.created_at and f.started_at < j.started_at
    """
)
_WAITED = sa.text("select extract(epoch from started_at - created_at) from callkeeper.jobs where id = :id")
_HAS_STARTED = sa.text("select started_at is not null from callkeeper.jobs where id = :id")
_ANALYZE = "vacuum analyze callkeeper.jobs, dramatiq.queue"


def submit(stand: Rig, user: str, count: int, *, priority: int = 0) -> list[UUID]:
    from actors import job_types

    ids: list[UUID] = []
    for first in range(0, count, 500):
        with stand.db.engine.begin() as connection:
            for number in range(first, min(first + 500, count)):
                name, body = text(number)
                job = job_types.prepare(
                    name, body, user_id=user, account_id=None, idempotency_key=None, delay=timedelta(0),
                    priority=priority,
                )  # fmt: skip
                ids.append(store_submit.submit(connection, job).job_id)
    return ids


def flood(*, jobs: int = 50_000, threads: int = 8) -> dict[str, Any]:
    """The wait of single jobs of other users while a flood stands in the queue."""
    with rig() as stand:
        began = time.perf_counter()
        submit(stand, "flood", jobs)
        submitted = jobs / (time.perf_counter() - began)
        with stand.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("set statement_timeout = 0")
            connection.exec_driver_sql(_ANALYZE)
        stand.start_worker(threads=threads)
        until(lambda: stand.scalar(_STARTED) > 50, what="the flood at work")
        began, before = time.perf_counter(), stand.scalar(_STARTED)
        passed, waited = [], []
        for number in range(20):
            (single,) = submit(stand, f"other{number}", 1)
            until(lambda job_id=single: stand.scalar(_HAS_STARTED, id=job_id), what="its start", every=0.005)
            passed.append(stand.scalar(_BETWEEN, id=single))
            waited.append(float(stand.scalar(_WAITED, id=single)))
        rate = (stand.scalar(_STARTED) - before) / (time.perf_counter() - began)
    slot = threads / rate
    return {
        "figure": f"one job behind {jobs} of another user: the longest wait of 20, in slot times ({threads} slots)",
        "value": round(max(waited) / slot, 2),
        "unit": "slot times",
        "yardstick": "first in, first out: what is left of the flood",
        "yardstick_value": round(jobs / threads),
        "waited_ms": sorted(round(1000 * one) for one in waited),
        "started_before_it": sorted(passed),
        "calls_per_second_meanwhile": round(rate, 1),
        "submits_per_second": round(submitted),
    }


def shares(*, jobs: int = 400) -> list[dict[str, Any]]:
    """Who is started while several users have more than enough to do."""
    with rig() as stand:
        stand.db.once(budgets.set_budget, "weight", "user", "three", at_most=3, per=None, by="bench")
        (message, *_) = submit(stand, "one", jobs)
        submit(stand, "three", jobs)
        submit(stand, "late", jobs)
        users = [_next(stand, message) for _ in range(jobs)]
        weighted = users.count("three") / max(1, users.count("one"))
        low = submit(stand, "low", 1, priority=-1)[0]
        aged = 0
        while True:
            submit(stand, "one", 1, priority=1)
            if _next(stand, message) == "low":
                break
            aged += 1
        assert stand.scalar(_HAS_STARTED, id=low)
    return [
        {
            "figure": "starts of a user with weight 3 for each of one with weight 1",
            "value": round(weighted, 2),
            "unit": "starts",
            "yardstick": "the weights",
            "yardstick_value": 3,
            "starts": {user: users.count(user) for user in ("one", "three", "late")},
        },
        {
            "figure": "a job of low priority while ones of high priority keep coming: how many pass it",
            "value": aged,
            "unit": "jobs",
            "yardstick": "no ageing",
            "yardstick_value": "all",
        },
    ]


def _next(stand: Rig, message: UUID) -> str | None:
    actors = ["start_call", "run_sync_call"]
    job = stand.db.once(line.claim_next, message, actors=actors, owner="bench", term=TERM)
    return None if job is None else job.user_id


def measure() -> list[dict[str, Any]]:
    """All of it."""
    return [flood(), *shares()]
