"""From the caller's commit to the provider's first byte: with NOTIFY at once, without it within the poll's second."""

import statistics
import time
from datetime import datetime

import pytest

from tests.chaos.harness import Fleet, until


def pickups(fleet: Fleet, count: int) -> list[float]:
    """Seconds from commit to the provider's acceptance, one job at a time."""
    seconds = []
    for number in range(count):
        fleet.picture(f"pickup {number}.")
        committed = time.time()
        until(lambda number=number: fleet.creates(f"pickup {number}."), what="the create")
        (line,) = fleet.sandbox.bill(containing=f"pickup {number}.")
        seconds.append(datetime.fromisoformat(line["created_at"]).timestamp() - committed)
    return seconds


def test_with_notify_it_is_immediate(fleet: Fleet) -> None:
    fleet.spawn()
    pickups(fleet, 3)
    fleet.until_done()
    fleet.sandbox.reset()
    seconds = pickups(fleet, 15)
    median = statistics.median(seconds)
    print(f"pickup: median {1000 * median:.1f} ms of {[round(1000 * one, 1) for one in seconds]}")
    assert median < 0.1


def test_without_a_listener_work_starts_within_two_seconds(fleet: Fleet) -> None:
    worker = fleet.spawn(env={"DEAF": "1"})
    assert "listen" not in {row["query"][:6].lower() for row in fleet.rows(
        "select query from pg_stat_activity where datname = current_database() and application_name = 'dramatiq-postgres'"
    )}, "the broker does not listen"  # fmt: skip
    seconds = pickups(fleet, 4)
    print(f"pickup without a listener: {[round(one, 2) for one in seconds]}")
    assert max(seconds) < 2
    assert worker.alive


@pytest.mark.slow
def test_a_listener_that_is_cut_off_listens_again(fleet: Fleet) -> None:
    fleet.spawn()
    listener = (
        "select pid from pg_stat_activity where datname = current_database()"
        " and application_name = 'dramatiq-postgres' and query ilike 'listen %'"
    )
    (first,) = until(lambda: fleet.rows(listener), what="the listener")
    for number in range(3):
        fleet.do("select pg_terminate_backend(:pid)", pid=fleet.rows(listener)[0]["pid"])
        job_id = fleet.picture(f"cut off {number}.")
        fleet.until_status(job_id, "completed", within=4)
        until(lambda: fleet.rows(listener), what="a new listener")
    assert fleet.rows(listener)[0]["pid"] != first["pid"]
    fleet.check()
