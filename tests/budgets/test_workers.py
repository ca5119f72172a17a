"""Budgets and turns with real workers, real kills and the provider's own count of what runs at once."""

import json
import random
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import actors
from store import budgets
from tests.chaos.harness import Fleet, until

KIND = "replicate-prediction"


def limit(
    fleet: Fleet, measure: str, scope: str, name: str = "", *, at_most: int, per: timedelta | None = None
) -> None:
    fleet.db.once(budgets.set_budget, measure, scope, name, at_most=at_most, per=per, by="test")


def submit(fleet: Fleet, job_type: str, user: str, **request: Any) -> Any:
    with fleet.db.engine.begin() as connection:
        job_id = actors.submit(connection, job_type, request, user_id=user, account_id=fleet.account).job_id
    fleet.jobs.append(job_id)
    return job_id


def at_once(fleet: Fleet) -> int:
    """The most tasks that ran at the provider at the same time, by the provider's own clock."""
    return int(fleet.sandbox.stats()["most_at_once"].get("replicate", 0))


def slots(fleet: Fleet) -> int:
    return int(fleet.one("select count(*) as n from callkeeper.slots")["n"])


def storm(fleet: Fleet, *, at_most: int, processes: int, threads: int, seconds: float, jobs: int) -> None:
    """Workers are killed and replaced at random while they start what a limit lets them; then all comes to rest."""
    chance = random.Random(at_most)
    fleet.sandbox.script({"defaults": {"run_seconds": [0.1, 0.5]}})
    limit(fleet, "concurrency", "account", "replicate/default", at_most=at_most)
    for number in range(jobs):
        submit(fleet, "picture", f"user{number % 5}", prompt=f"storm {number}.")
    workers = [fleet.spawn(threads=threads, ready=False) for _ in range(processes)]
    for worker in workers:
        worker.until_ready(within=60)
    kills, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(AssertionError):
            until(lambda: time.monotonic() > end, within=chance.uniform(0.5, 2.5))
        victim = chance.randrange(processes)
        workers[victim].kill()
        kills += 1
        workers[victim] = fleet.spawn(threads=threads, ready=False)
        assert slots(fleet) <= at_most
    done = fleet.until_done(within=120 + jobs / at_most * 2)
    assert kills > 2
    assert set(done) <= {"completed", "failed"}
    assert done["completed"] > 0.8 * jobs, done
    assert 0 < at_once(fleet) <= at_most
    until(lambda: slots(fleet) == 0, what="every slot free")
    assert fleet.rows("select 1 from callkeeper.jobs where parked_on is not null") == []
    assert fleet.violations() == []


@pytest.mark.slow
def test_killed_workers_never_make_the_provider_s_count_exceed_the_limit(fleet: Fleet) -> None:
    storm(fleet, at_most=2, processes=2, threads=6, seconds=8, jobs=30)


@pytest.mark.slow
@pytest.mark.parametrize("at_most", [1, 3, 10])
def test_64_claimers_in_8_processes_killed_for_a_minute(fleet: Fleet, at_most: int) -> None:
    storm(fleet, at_most=at_most, processes=8, threads=8, seconds=60, jobs=60 + 30 * at_most)


def test_waiting_for_a_budget_holds_no_worker(fleet: Fleet) -> None:
    """One thread; ten calls may not start. What is not limited runs at once."""
    fleet.sandbox.script({"defaults": {"run_seconds": 600}})
    limit(fleet, "concurrency", "kind", KIND, at_most=1)
    for number in range(10):
        submit(fleet, "picture", "ann", prompt=f"held {number}.")
    fleet.spawn(threads=1)
    chore = fleet.chore()
    fleet.until_status(chore, "completed")
    until(lambda: len(fleet.rows("select 1 from callkeeper.jobs where parked_on is not null")) == 9, what="nine parked")
    assert fleet.sandbox.totals()["all"] == 1


def test_an_ending_lets_the_next_start_soon(fleet: Fleet) -> None:
    limit(fleet, "concurrency", "global", at_most=1)
    jobs = [fleet.chore() for _ in range(8)]
    fleet.spawn(threads=4)
    assert fleet.until_done(within=20) == {"completed": len(jobs)}
    assert len(fleet.started()) == 8
    fleet.check()


def test_limits_change_while_workers_run(fleet: Fleet) -> None:
    fleet.spawn(threads=6)
    fleet.until_status(fleet.chore(), "completed")
    gate = str(fleet.folder / "gate")
    limit(fleet, "concurrency", "user", "*", at_most=2)
    for _ in range(5):
        fleet.chore(gate=gate)
    until(lambda: slots(fleet) == 2, what="two at work")
    until(
        lambda: fleet.one("select count(*) as n from callkeeper.jobs where parked_on is not null")["n"] == 3,
        what="three parked",
    )
    limit(fleet, "concurrency", "user", "*", at_most=4)
    until(lambda: slots(fleet) == 4, what="four at work")
    assert fleet.db.once(budgets.remove_budget, "concurrency", "user", "*", by="test")
    until(lambda: slots(fleet) == 5, what="all at work")
    Path(gate).touch()
    fleet.until_done()
    fleet.check()


def test_a_rate_is_kept_by_the_whole_fleet(fleet: Fleet) -> None:
    """By the provider's own times of arrival: never more than the limit in any window, less what a request travels."""
    limit(fleet, "rate", "account", "replicate/default", at_most=3, per=timedelta(seconds=2))
    for number in range(9):
        submit(fleet, "picture", f"user{number % 2}", prompt=f"rated {number}.")
    fleet.spawn(threads=4), fleet.spawn(threads=4)
    fleet.until_done(within=40)
    starts = sorted(
        row["at"].timestamp()
        for row in fleet.rows("select created_at as at from callkeeper.job_events where kind = 'started'")
    )
    assert all(late - early >= 1.99 for early, late in zip(starts, starts[3:], strict=False))
    assert fleet.sandbox.totals()["all"] == 9
    fleet.check()


def test_what_can_never_fit_fails_at_its_turn_and_is_refunded(fleet: Fleet) -> None:
    job_id = fleet.picture("never.")
    limit(fleet, "concurrency", "kind", KIND, at_most=0)
    fleet.spawn()
    fleet.until_status(job_id, "failed")
    assert fleet.job(job_id)["error_code"] == "budget_never_fits"
    assert fleet.charged(job_id) == ("refunded", 0)
    assert fleet.sandbox.totals()["all"] == 0
    fleet.check()


def test_a_single_job_does_not_wait_for_a_flood(fleet: Fleet) -> None:
    """Of another user and of another kind: it is next, whatever stands before it in the queue."""
    with fleet.db.engine.begin() as connection:
        for _ in range(300):
            request = {"starts": str(fleet.starts), "seconds": 0.2}
            actors.submit(connection, "chore", request, user_id="flood", account_id=fleet.account)
    fleet.spawn(threads=1)
    until(lambda: len(fleet.started()) >= 2, what="the flood at work")
    single = submit(fleet, "words", "bob", prompt="next.")
    fleet.until_status(single, "completed")
    before = fleet.one(
        "select count(*) as n from callkeeper.jobs where user_id = 'flood' and started_at between"
        " (select created_at from callkeeper.jobs where id = :id) and (select started_at from callkeeper.jobs where id = :id)",
        id=single,
    )["n"]
    assert before <= 2, json.dumps({"started before it": before})
