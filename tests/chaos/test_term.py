"""SIGTERM: stop claiming, give back what has not started, finish what may finish, leave the rest to recovery at once."""

import time
from pathlib import Path

import pytest

from tests.chaos.harness import Fleet, Worker, until

LAG = 6.0  # seconds a worker may take beyond its grace: noticing the signal, ending its threads, the interpreter's end


def exits(worker: Worker, *, within: float) -> float:
    """Wait for its orderly end (exit code 0); seconds it took."""
    begun = time.monotonic()
    assert worker.wait(within) == 0
    return time.monotonic() - begun


@pytest.mark.slow
def test_an_idle_worker_goes_at_once(fleet: Fleet) -> None:
    worker = fleet.spawn()
    worker.terminate()
    exits(worker, within=LAG)
    assert fleet.rows("select 1 from dramatiq.queue where state = 'consumed'") == []


def test_what_was_not_started_is_taken_by_another_worker_at_once(fleet: Fleet) -> None:
    """One thread busy, a backlog behind it: SIGTERM frees the backlog, and no attempt is spent."""
    gate = fleet.folder / "gate"
    busy = fleet.chore(gate=str(gate))
    backlog = [fleet.chore() for _ in range(12)]
    leaving = fleet.spawn(threads=1, grace=20, ready=False)
    until(
        lambda: fleet.rows("select 1 from dramatiq.queue where state = 'consumed' offset 1"),
        what="a prefetched message",
    )
    until(fleet.started, what="the start of the first")
    leaving.until_ready().terminate()
    until(lambda: "process.draining" in leaving.text(), what="the end of claiming")
    fleet.spawn(threads=4)
    # While the leaving one is still busy; what it held comes back without waiting for its end.
    until(lambda: all(fleet.status(job_id) == "completed" for job_id in backlog), within=8, what="the backlog's end")
    assert fleet.status(busy) == "running"
    gate.touch()
    exits(leaving, within=LAG)
    assert fleet.status(busy) == "completed"
    assert all(fleet.job(job_id)["attempt"] == 1 for job_id in [busy, *backlog])
    assert len(fleet.started()) == 1 + len(backlog)
    fleet.check()


def test_what_may_finish_within_the_grace_finishes(fleet: Fleet) -> None:
    """A create in flight is checkpointed and then let go; a sync call is kept alive beyond its lease and settled."""
    fleet.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [
                {"name": "create", "when": {"route": "create"}, "do": {"reply_delay": 1.5}},
                {"name": "message", "when": {"route": "message"}, "do": {"reply_delay": 4}},
            ],
        }
    )
    worker = fleet.spawn(grace=10)
    sent, asked = fleet.picture("being sent."), fleet.words("takes a while.")
    until(lambda: fleet.creates("being sent.") and fleet.creates("takes a while."), what="both requests")
    worker.terminate()
    exits(worker, within=4 + LAG)
    job = fleet.job(sent)
    assert (job["status"], job["attempt"], fleet.events(sent)[-1]) == ("waiting", 1, "call_accepted")
    (line,) = fleet.sandbox.bill(containing="being sent.")
    assert job["provider_task_id"] == line["task_id"]
    assert (fleet.status(asked), fleet.job(asked)["epoch"]) == ("completed", 1)
    # And whoever comes next only polls.
    fleet.sandbox.finish(line["task_id"])
    fleet.spawn()
    fleet.until_status(sent, "completed")
    assert fleet.sandbox.totals()["all"] == 2
    fleet.check()


def test_what_outlasts_the_grace_is_left_to_recovery_now_and_not_after_its_term(fleet: Fleet) -> None:
    fleet.sandbox.script({"rules": [{"when": {"route": "message", "nth": [1, 2]}, "do": {"reply_delay": 60}}]})
    # A lease so long that a recovery in time cannot be its end.
    fleet.env |= {"CALLKEEPER_LEASE": "60", "CALLKEEPER_BEAT": "1"}
    gate = str(fleet.folder / "gate")
    worker = fleet.spawn(threads=6, grace=1)
    ends = {
        fleet.words("outlasts a."): ("failed", "reconcile_no_recovery", 1),
        fleet.words("outlasts b.", job_type="words-again"): ("completed", None, 1),
        fleet.chore(gate=gate): ("failed", "worker_lost", 1),
        fleet.chore(job_type="chore-again", gate=gate): ("completed", None, 1),
        fleet.chore(job_type="chore-again", gate=gate, deaf=True): ("completed", None, 1),
    }
    until(lambda: fleet.sandbox.totals()["all"] == 2 and len(fleet.started()) == 3, what="all of them at work")
    worker.terminate()
    exits(worker, within=1 + LAG)
    Path(gate).touch()
    fleet.spawn()
    until(lambda: all(fleet.status(job_id) == end[0] for job_id, end in ends.items()), within=6, what="their recovery")
    for job_id, end in ends.items():
        job = fleet.job(job_id)
        assert (job["status"], job["error_code"], job["attempt"]) == end
    assert fleet.sandbox.totals()["all"] == 3
    fleet.check()


def test_a_second_sigterm_ends_it_now_and_loses_nothing(fleet: Fleet) -> None:
    worker = fleet.spawn(grace=60)
    job_id = fleet.chore(job_type="chore-again", gate=str(fleet.folder / "gate"))
    until(fleet.started, what="the start")
    worker.terminate()
    until(lambda: "process.draining" in worker.text(), what="the first one being heard")
    worker.terminate()
    worker.wait(LAG)
    (fleet.folder / "gate").touch()
    fleet.spawn()
    fleet.until_status(job_id, "completed")
    assert fleet.job(job_id)["attempt"] == 2
    fleet.check()


@pytest.mark.slow
def test_sigterm_under_load_loses_nothing(fleet: Fleet) -> None:
    """A rolling restart: each worker is told to go while there is work, and no attempt is spent for it."""
    fleet.sandbox.script({"defaults": {"run_seconds": [0, 0.5], "latency": [0.0, 0.05]}})
    old = [fleet.spawn(), fleet.spawn()]
    jobs = [fleet.picture(f"rolling {number}.") for number in range(40)]
    jobs += [fleet.words(f"rolling {number}.") for number in range(20)]
    for worker in old:
        worker.terminate()
        fleet.spawn()
        exits(worker, within=10 + LAG)
    assert fleet.until_done() == {"completed": len(jobs)}
    assert fleet.sandbox.totals()["all"] == len(jobs)
    assert {fleet.job(job_id)["attempt"] for job_id in jobs} == {1}
    fleet.check()
