"""Never a second bill, while workers die all the time: short here, long with `-m slow` or `python -m bench.bill`."""

import pytest

from bench.bill import Bill, Load, run
from tests.chaos.harness import Fleet

SHORT = Load(jobs=60, seconds=14, kill_every=(2.0, 3.0), seed=3)


def check(bill: Bill, load: Load, *, kills: int) -> None:
    print(bill)
    assert bill.kills >= kills, "workers really died"
    assert min(bill.hung, bill.answered_502) >= 2, "creates were really lost"
    assert bill.jobs == load.jobs
    assert bill.billed_twice == 0
    assert bill.open == 0
    assert bill.completed + bill.failed == bill.jobs
    assert bill.failed == bill.refunded_without_result
    assert bill.violations == 0
    assert bill.holds, bill


def test_short(fleet: Fleet) -> None:
    check(run(fleet, SHORT), SHORT, kills=3)
    fleet.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_long(fleet: Fleet, seed: int) -> None:
    load = Load(jobs=200, seconds=60, seed=seed)
    check(run(fleet, load), load, kills=12)
    fleet.check()


@pytest.mark.slow
def test_long_with_calls_that_cannot_be_found(fleet: Fleet) -> None:
    """Half of the jobs are synchronous: those that were lost are failed and refunded, and never repeated."""
    load = Load(jobs=200, seconds=60, sync_share=0.5, seed=5)
    bill = run(fleet, load)
    check(bill, load, kills=12)
    assert set(bill.errors) <= {"reconcile_no_recovery", "worker_lost"}
    fleet.check()
