"""Behaviours 25 to 32: stops, deadlines and shutdowns."""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

import actors
from store import settle, signals
from store.errors import LeaseLost
from tests.behaviours.conftest import MODULES
from tests.chaos.harness import Fleet, until
from tests.store.steps import DONE, Steps, at_once

OVER = {"completed", "failed", "timed_out", "cancelled"}


def test_b25_a_running_job_is_cancelled_at_its_next_boundary(office: Fleet) -> None:
    job_id = office.submit("book", chapters=1_000, pause=0.1)
    until(lambda: "app.chapter_done" in office.events(job_id), what="the first boundary")
    assert office.stop(job_id) == "running"
    asked = time.monotonic()
    office.until_status(job_id, "cancelled", within=10)
    assert time.monotonic() - asked < 2 * 3, "two seconds, on a machine three times slower"
    office.check()


def test_b26_a_queued_job_is_cancelled_at_once_and_never_runs(fleet: Fleet) -> None:
    job_id = fleet.chore()
    assert fleet.stop(job_id) == "cancelled"
    job = fleet.job(job_id)
    assert (job["status"], job["error_code"], job["finished_at"] is not None) == ("cancelled", "cancelled", True)
    fleet.spawn()
    other = fleet.chore()
    fleet.until_status(other, "completed")
    until(lambda: not fleet.rows("select 1 from dramatiq.queue"), what="both messages handled")
    assert fleet.events(job_id) == ["queued", "cancelled"]
    assert len(fleet.started()) == 1
    fleet.check()


@pytest.mark.parametrize("state", [state for state in actors.State if state.value in OVER])
def test_b27_what_has_ended_stays_as_it_is(steps: Steps, state: actors.State) -> None:
    job_id = steps.ended(state)

    def everything() -> list[Any]:
        tables = ("jobs", "job_events", "job_signals", "notices", "usage_logs", "consequences")
        return [steps.all(f"select t::text from callkeeper.{table} t") for table in tables]

    before = everything()
    with steps.db.engine.begin() as connection:
        assert actors.stop(connection, job_id) is state
    assert everything() == before


def race(steps: Steps, times: int) -> dict[str, int]:
    """A stop against a completion, as two connections that know nothing of each other."""
    ends = {"completed": 0, "cancelled": 0}
    for _ in range(times):
        lease = steps.running(mode="local")
        seen: list[str] = []
        over = threading.Event()

        def complete(held: Any = lease) -> None:
            try:
                steps.db.transact(settle.complete, held, DONE)
            except LeaseLost:
                return

        def stop(job_id: UUID = lease.job_id, held: Any = lease) -> None:
            if steps.db.transact(signals.request_stop, job_id) is actors.State.RUNNING:
                try:
                    steps.db.transact(
                        settle.end_held, held, settle.Settlement(actors.State.CANCELLED, error_code="cancelled")
                    )
                except LeaseLost:
                    return

        def poll(job_id: UUID = lease.job_id, seen: list[str] = seen, over: threading.Event = over) -> None:
            while not over.is_set():
                seen.append(steps.row(job_id)["status"])

        poller = threading.Thread(target=poll)
        poller.start()
        at_once([complete, stop])
        over.set()
        poller.join()
        row = steps.row(lease.job_id)
        assert [kind for kind in steps.events(lease.job_id) if kind in OVER] == [row["status"]]
        assert (row["result"] is not None, row["error_code"]) == (
            (True, None) if row["status"] == "completed" else (False, "cancelled")
        )
        assert len({state for state in seen if state in OVER}) <= 1, "no poller saw two ends"
        ends[row["status"]] += 1
    assert steps.count("callkeeper.job_signals", "consumed_at is null") == 0
    assert steps.violations() == []
    return ends


def test_b28_a_stop_that_races_a_completion_leaves_one_outcome(steps: Steps) -> None:
    assert sum(race(steps, 30).values()) == 30


@pytest.mark.slow
def test_b28_a_thousand_stops_that_race_a_completion(steps: Steps) -> None:
    ends = race(steps, 1_000)
    assert min(ends.values()) > 10, f"both must win sometimes: {ends}"


@pytest.mark.slow
def test_b28_five_hundred_stops_against_completions_across_processes(fleet: Fleet) -> None:
    """The same between a worker process and this one: each job is stopped at about the moment it completes."""
    fleet.spawn(threads=8, modules=MODULES)
    dice = random.Random(28)

    def stop_at_its_end(_: int) -> Any:
        job_id = fleet.submit("book", chapters=4, pause=0.02)
        until(lambda: fleet.status(job_id) != "queued", what="a start", within=60)
        time.sleep(dice.uniform(0, 0.1))
        fleet.stop(job_id)
        return job_id

    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(stop_at_its_end, range(500)))
    ends = fleet.until_done(within=120)
    assert sum(ends.values()) == 500
    for job_id in ids:
        job = fleet.job(job_id)
        assert [kind for kind in fleet.events(job_id) if kind in OVER] == [job["status"]]
        assert (job["result"] is None) is (job["status"] == "cancelled")
    assert min(ends.get("completed", 0), ends.get("cancelled", 0)) > 10, f"both must win sometimes: {ends}"
    assert not fleet.rows("select 1 from callkeeper.job_signals where consumed_at is null")
    fleet.check()


def test_b29_a_stop_is_used_up_and_a_later_try_knows_nothing_of_it(office: Fleet) -> None:
    first = office.submit("book", key="again", chapters=1_000, pause=0.02)
    until(lambda: "app.chapter_done" in office.events(first), what="its start")
    office.stop(first)
    office.until_status(first, "cancelled")
    assert office.rows("select 1 from callkeeper.job_signals where consumed_at is null") == []
    second = office.submit("book", key="again", chapters=2)
    office.until_status(second, "completed")
    assert second != first
    office.check()


def test_b30_stopped_and_then_its_worker_dies_it_is_cancelled(fleet: Fleet) -> None:
    dying = fleet.spawn()
    never = str(fleet.folder / "never")
    ids = [fleet.chore(job_type=job_type, gate=never, deaf=True) for job_type in ("chore", "chore-again")]
    until(lambda: len(fleet.started()) == 2, what="the starts")
    assert [fleet.stop(job_id) for job_id in ids] == ["running"] * 2
    dying.kill()
    fleet.spawn()
    for job_id in ids:
        fleet.until_status(job_id, "cancelled")
    assert len(fleet.started()) == 2, "nobody starts what nobody wants"
    fleet.check()


def test_b31_another_worker_times_out_what_a_hung_one_holds(fleet: Fleet) -> None:
    """A lease so long that only the deadline can end it: held by a worker that is stopped dead."""
    fleet.env |= {"CALLKEEPER_LEASE": "120", "CALLKEEPER_BEAT": "1"}
    hanging = fleet.spawn(modules=MODULES)
    job_id = fleet.submit("hung", gate=str(fleet.folder / "never"))
    until(lambda: "call_started" in fleet.events(job_id), what="the start")
    hanging.freeze()
    fleet.spawn(modules=MODULES)
    fleet.until_status(job_id, "timed_out")
    job, log = fleet.job(job_id), fleet.events(job_id)
    assert (job["error_code"], log[-1]) == ("deadline_exceeded", "timed_out")
    hanging.thaw()
    (fleet.folder / "never").touch()
    until(lambda: "lease.lost" in hanging.text(), what="the hung one giving up")
    assert (fleet.job(job_id), fleet.events(job_id)) == (job, log)
    fleet.check()


def test_b31_a_hung_attempt_is_followed_by_another_where_that_does_no_harm(fleet: Fleet) -> None:
    fleet.env |= {"CALLKEEPER_LEASE": "120", "CALLKEEPER_BEAT": "0.5"}
    fleet.spawn(modules=MODULES)
    gate = str(fleet.folder / "never")
    again, once = fleet.submit("hung-attempt", gate=gate), fleet.submit("hung-once", gate=gate)
    fleet.until_status(again, "completed")
    fleet.until_status(once, "timed_out")
    assert (fleet.job(again)["attempt"], fleet.job(again)["result"]) == (2, {"attempt": 2})
    assert fleet.job(once)["error_code"] == "attempt_deadline_exceeded"
    (fleet.folder / "never").touch()
    fleet.check()


def test_b31_a_timeout_error_of_the_apps_code_is_a_failure(office: Fleet) -> None:
    job_id = office.submit("hung", raises=True)
    office.until_status(job_id, "failed")
    job = office.job(job_id)
    assert (job["error_code"], "kettle" in job["error_message"]) == ("handler_error", True)


def test_b31_without_a_deadline_of_its_own_an_attempt_has_none(steps: Steps) -> None:
    assert steps.row(steps.running().job_id)["attempt_deadline_at"] is None


def test_b32_a_worker_told_to_end_loses_nothing_and_leaves_nothing_open(fleet: Fleet) -> None:
    going = fleet.spawn(threads=4, grace=1)
    gate = fleet.folder / "gate"
    short, safe = fleet.chore(seconds=0.3), fleet.chore(job_type="chore-again", gate=str(gate), deaf=True)
    until(lambda: len(fleet.started()) == 2, what="both at work")
    going.terminate()
    going.wait(20)
    assert fleet.status(short) == "completed"
    left = "select 1 from pg_stat_activity where datname = current_database() and application_name ~ 'callkeeper'"
    until(lambda: not fleet.rows(left + " and application_name <> 'callkeeper cli'"), what="its connections closed")
    gate.touch()
    fleet.spawn()
    fleet.until_status(safe, "completed")
    assert {"recovered", "requeued"} & set(fleet.events(safe)), "handed over, on record"
    fleet.check()
