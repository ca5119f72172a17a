"""Behaviours 9 to 16: who works, and who is left in peace."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from actors.deadlines import end_overdue
from actors.recover import recover_lapsed
from store import jobs
from tests.behaviours.conftest import MODULES
from tests.chaos.harness import Fleet, until
from tests.store.steps import TERM, Steps, at_once

LEASE = {"CALLKEEPER_LEASE": "2", "CALLKEEPER_BEAT": "0.4"}
TWO_LEASES = 4.5


def test_b09_one_of_thirty_two_claimers_owns_it(steps: Steps) -> None:
    job_id = steps.submit()
    barrier = threading.Barrier(16)

    def claim() -> Any:
        with steps.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            barrier.wait()
            return [jobs.claim_queued(connection, job_id, owner="w", term=TERM) for _ in range(2)]

    claimed = [one for two in at_once([claim] * 16) for one in two]
    assert len(claimed) == 32
    assert sum(one is not None for one in claimed) == 1


def test_b10_each_runs_once_and_they_start_in_their_order(fleet: Fleet) -> None:
    ids = [fleet.chore() for _ in range(12)]
    worker = fleet.spawn(threads=1)
    assert fleet.until_done(within=90) == {"completed": 12}
    order = fleet.rows("select id from callkeeper.jobs order by started_at")
    assert [row["id"] for row in order] == ids
    worker.kill()
    many = [fleet.chore() for _ in range(30)]
    fleet.spawn(threads=8)
    assert fleet.until_done(within=90) == {"completed": 42}
    assert len(fleet.started()) == 42
    assert {fleet.job(job_id)["epoch"] for job_id in many} == {1}


def test_b11_a_death_between_claim_and_start_is_no_failure(fleet: Fleet) -> None:
    dead = fleet.spawn(env={"CRASH_AT": "after_claim"})
    job_id = fleet.chore()
    dead.until_dead()
    fleet.spawn()
    fleet.until_status(job_id, "completed")
    assert len(fleet.started()) == 1
    assert set(fleet.events(job_id)) == {"queued", "started", "recovered", "call_started", "completed"}
    fleet.check()


def test_b12_passes_and_new_processes_leave_a_running_job_alone(fleet: Fleet) -> None:
    gate = fleet.folder / "gate"
    fleet.spawn()
    job_id = fleet.chore(gate=str(gate))
    until(fleet.started, what="the start")
    beats = ("lease_until", "next_check_at")
    before = {name: value for name, value in fleet.job(job_id).items() if name not in beats}
    fleet.spawn()
    with ThreadPoolExecutor(8) as pool:
        decided = list(pool.map(lambda _: recover_lapsed(fleet.db) + end_overdue(fleet.db), range(16)))
    assert set(decided) == {0}
    assert {name: value for name, value in fleet.job(job_id).items() if name not in beats} == before
    gate.touch()
    fleet.until_status(job_id, "completed")
    fleet.check()


def test_b13_a_host_whose_clock_is_wrong_decides_nothing_by_it(fleet: Fleet) -> None:
    """Two workers, five minutes fast and five minutes slow: neither takes the other's work for lost."""
    for skew in ("300", "-300"):
        fleet.spawn(threads=2, modules=(*MODULES, "tests.behaviours.skew"), env={"SKEW": skew})
    gate = fleet.folder / "gate"
    ids = [fleet.chore(gate=str(gate)) for _ in range(4)]
    until(lambda: len(fleet.started()) == 4, what="the starts")
    first = {job_id: fleet.job(job_id)["lease_until"] for job_id in ids}
    until(lambda: all(fleet.job(job_id)["lease_until"] > first[job_id] for job_id in ids), what="a beat for each")
    gate.touch()
    assert fleet.until_done(within=90) == {"completed": 4}
    assert len({line.split()[0] for line in fleet.started()}) == 2, "both had a part of it"
    assert {fleet.job(job_id)["epoch"] for job_id in ids} == {1}
    fleet.check()


def test_b14_a_beat_costs_little_however_large_the_request(steps: Steps) -> None:
    lease = steps.running(request={"text": "x" * 250_000})
    steps.db.once(jobs.renew, [lease], term=TERM)
    position = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn as at"
    # The least of several: somebody else may write, too, and a page's first change is written whole.
    costs = []
    for _ in range(20):
        before = steps.one(position)["at"]
        steps.db.once(jobs.renew, [lease], term=TERM + timedelta(seconds=1))
        costs.append(steps.one(position)["at"] - before)
    assert 0 < min(costs) < 1_000


@pytest.mark.slow
def test_b15_b16_work_of_two_leases_is_kept_while_it_blocks_and_while_it_waits(fleet: Fleet) -> None:
    """A handler that never lets go of its process, and a request that is answered late, beside sweeping processes."""
    slow = {"when": {"route": "message"}, "do": {"reply_delay": TWO_LEASES}}
    fleet.sandbox.script({"rules": [slow]})
    fleet.env |= LEASE
    fleet.spawn()
    blocked, waiting = fleet.chore(seconds=TWO_LEASES, spin=True, deaf=True), fleet.words("late.")
    until(lambda: fleet.started() and fleet.creates("late."), what="both at work")
    fleet.spawn()
    assert fleet.until_done(within=40) == {"completed": 2}
    assert [(fleet.job(one)["epoch"], fleet.job(one)["attempt"]) for one in (blocked, waiting)] == [(1, 1)] * 2
    assert fleet.sandbox.totals()["all"] == 1
    fleet.check()
