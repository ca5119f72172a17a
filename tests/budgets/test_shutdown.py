"""Going and coming: what is held goes back before the process does; a deploy costs no attempt and loses nothing."""

import threading
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from actors import call
from store import shutdown
from store.models import Lease
from tests.budgets.steps import Starts
from tests.chaos.harness import Fleet, Worker, until

LAG = 8.0


def gone(worker: Worker) -> None:
    worker.terminate()
    assert worker.wait(LAG) == 0


@pytest.mark.parametrize("times", [3, pytest.param(10, marks=pytest.mark.slow)])
def test_clean_shutdowns_in_a_row_cost_no_attempt_and_lose_nothing(fleet: Fleet, times: int) -> None:
    """During one job of each sort that may run again; and one call at the provider, which is only polled."""
    fleet.env |= {"CALLKEEPER_LEASE": "60", "CALLKEEPER_BEAT": "1"}
    gate = fleet.folder / "gate"
    fleet.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [{"when": {"route": "message", "nth": list(range(1, times + 1))}, "do": {"reply_delay": 60}}],
        }
    )
    chore = fleet.chore(job_type="chore-again", gate=str(gate))
    asked = fleet.words("again.", job_type="words-again")
    picture = fleet.picture("polled.")
    for number in range(times):
        worker = fleet.spawn(threads=4, grace=1)
        until(lambda n=number: len(fleet.started()) == n + 1, what="the chore's start")
        until(lambda n=number: fleet.creates("again.") == n + 1, what="the call")
        fleet.until_status(picture, "waiting")
        gone(worker)
        assert fleet.status(chore) == fleet.status(asked) == "queued", "before the process was gone"
    gate.touch()
    (line,) = fleet.sandbox.bill(containing="polled.")
    fleet.sandbox.finish(line["task_id"])
    fleet.spawn()
    assert fleet.until_done() == {"completed": 3}
    for job_id in (chore, asked, picture):
        assert fleet.job(job_id)["attempt"] == 1
    assert fleet.events(chore).count("requeued") == times
    fleet.check()


def test_what_may_not_run_twice_is_left_to_recovery_and_never_sent_again(fleet: Fleet) -> None:
    fleet.env |= {"CALLKEEPER_LEASE": "60", "CALLKEEPER_BEAT": "1"}
    fleet.sandbox.script({"rules": [{"when": {"route": "message"}, "do": {"reply_delay": 60}}]})
    asked = fleet.words("once.")
    worker = fleet.spawn(grace=1)
    until(lambda: fleet.creates("once.") == 1, what="the call")
    gone(worker)
    fleet.spawn()
    fleet.until_status(asked, "failed")
    assert fleet.job(asked)["error_code"] == "reconcile_no_recovery"
    assert fleet.creates("once.") == 1
    fleet.check()


def test_told_to_go_before_it_was_ready_it_starts_nothing_and_a_later_one_does(fleet: Fleet) -> None:
    job_id = fleet.chore()
    worker = fleet.spawn(ready=False)
    assert worker.child.is_running(), "it is there, and has hardly begun"
    worker.terminate()
    worker.wait(30)
    fleet.spawn()
    fleet.until_status(job_id, "completed")
    assert (len(fleet.started()), fleet.job(job_id)["attempt"]) == (1, 1)
    fleet.check()


def test_a_database_that_is_away_does_not_hold_up_the_going(fleet: Fleet) -> None:
    """What could not be given back is recovered when its lease ends."""
    gate = fleet.folder / "gate"
    jobs = [fleet.chore(job_type="chore-again", gate=str(gate)) for _ in range(3)]
    worker = fleet.spawn(threads=4, grace=1)
    until(lambda: len(fleet.started()) == 3, what="all at work")

    with fleet.db.engine.begin() as connection:
        # It holds the lock for as long as the worker takes, and says nothing meanwhile.
        connection.exec_driver_sql("set local idle_in_transaction_session_timeout = 0")
        connection.exec_driver_sql("lock table callkeeper.jobs in access exclusive mode")
        began = time.monotonic()
        worker.terminate()
        worker.wait(45)
        assert time.monotonic() - began < 45
    Path(gate).touch()
    fleet.spawn()
    assert fleet.until_done() == {"completed": len(jobs)}
    fleet.check()


def test_only_what_is_held_is_handed_over(starts: Starts) -> None:
    held, safe, calling = starts.running(), starts.calling(retry_safe=True, mode="sync"), starts.calling()
    lost = starts.running()
    superseded = Lease(lost.job_id, lost.epoch + 1, lost.token, lost.owner)
    forged = Lease(lost.job_id, lost.epoch, held.token, lost.owner)
    assert starts.db.once(shutdown.hand_over, [held, safe, calling, superseded, forged]) == 2
    states: dict[Any, Any] = {one.job_id: starts.row(one.job_id) for one in (held, safe, calling, lost)}
    assert [states[one.job_id]["status"] for one in (held, safe, calling, lost)] == [
        "queued",
        "queued",
        "running",
        "running",
    ]
    assert {row["attempt"] for row in states.values()} == {1}
    assert starts.events(safe.job_id)[-1] == "requeued"
    assert starts.db.once(shutdown.hand_over, [held, safe]) == 0
    messages = starts.count("dramatiq.queue", "message -> 'args' ->> 0 = :id", id=str(held.job_id))
    assert messages == 2, "the one of its submit, and one for whoever comes next"
    assert starts.violations() == []


def test_an_asynchronous_call_is_never_handed_over(starts: Starts) -> None:
    lease = starts.calling(retry_safe=True)
    assert starts.db.once(shutdown.hand_over, [lease]) == 0


def test_what_is_handed_over_leaves_its_attempts_deadline_behind(starts: Starts) -> None:
    lease = starts.running(attempt_limit=timedelta(minutes=3))
    assert starts.row(lease.job_id)["attempt_deadline_at"] is not None
    assert starts.db.once(shutdown.hand_over, [lease]) == 1
    assert starts.row(lease.job_id)["attempt_deadline_at"] is None


def test_a_message_that_started_nothing_in_a_process_that_goes_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to go while it looked for one that may start: the right to start one must not end with it."""
    draining = threading.Event()

    def claim(_: Any) -> tuple[None, float]:
        draining.set()
        return None, 0.0

    rt: Any = SimpleNamespace(draining=draining, admission=SimpleNamespace(claim=claim))
    with pytest.raises(call.Draining):
        call.with_claim(rt, uuid4())
