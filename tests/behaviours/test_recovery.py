"""Behaviours 17 to 24: what becomes of work whose worker is gone, or comes back too late."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from actors.recover import recover_lapsed
from store import calls, jobs, milestones, settle
from store.errors import LeaseLost
from store.models import Lease
from tests.behaviours.conftest import MODULES
from tests.chaos.harness import ROOT, Fleet, until
from tests.store.steps import AT_ONCE, DONE, FAILED, LAPSED, TERM, Steps, at_once

ENDS = {"completed", "failed", "timed_out", "cancelled"}


def test_b17_a_killed_workers_job_fails_once_by_somebody_elses_hand(fleet: Fleet) -> None:
    dying, _ = fleet.spawn(), fleet.spawn(queues=("results",))
    job_id = fleet.chore(gate=str(fleet.folder / "never"))
    until(fleet.started, what="the start")
    dying.kill()
    fleet.until_status(job_id, "failed")
    assert fleet.job(job_id)["error_code"] == "worker_lost"
    assert [kind for kind in fleet.events(job_id) if kind in ENDS] == ["failed"]
    fleet.check()


def test_b18_what_may_run_again_does_and_never_beyond_its_limit(steps: Steps) -> None:
    job_id = steps.submit(mode="local", actor="run_handler", retry_safe=True, max_attempts=3)
    for attempt in (2, 3):
        lease = steps.claim(job_id, term=LAPSED).lease
        steps.start_call(lease, kind="local")
        assert sum(at_once([lambda: recover_lapsed(steps.db)] * 16)) == 1
        row = steps.row(job_id)
        assert (row["status"], row["attempt"]) == ("queued", attempt)
    steps.start_call(steps.claim(job_id, term=LAPSED).lease, kind="local")
    assert sum(at_once([lambda: recover_lapsed(steps.db)] * 16)) == 1
    row = steps.row(job_id)
    assert (row["status"], row["attempt"], row["error_code"]) == ("failed", 3, "worker_lost")
    assert steps.violations() == []


def test_b19_an_attempt_is_always_counted_so_no_job_is_stuck_for_want_of_it(steps: Steps) -> None:
    column = "select is_nullable, column_default from information_schema.columns where table_name = 'jobs'"
    assert steps.one(column + " and column_name = 'attempt'") == {"is_nullable": "NO", "column_default": "1"}
    job_id = steps.claim(steps.submit(mode="local", retry_safe=True), term=LAPSED).lease.job_id
    recover_lapsed(steps.db)
    assert (steps.row(job_id)["status"], steps.row(job_id)["attempt"]) == ("queued", 2)


@pytest.mark.slow
def test_b20_a_worker_that_slept_through_its_loss_changes_nothing(fleet: Fleet) -> None:
    sleeper = fleet.spawn(modules=MODULES)
    gate = fleet.folder / "gate"
    job_id = fleet.submit("book", gate=str(gate), chapters=2)
    until(lambda: "call_started" in fleet.events(job_id), what="the start")
    sleeper.freeze()
    gate.touch()
    fleet.spawn(modules=MODULES)
    fleet.until_status(job_id, "completed")
    settled, log = fleet.job(job_id), fleet.events(job_id)
    sleeper.thaw()
    until(lambda: "lease.lost" in sleeper.text(), what="the sleeper giving up")
    assert (fleet.job(job_id), fleet.events(job_id)) == (settled, log)
    assert log.count("app.chapter_done") == 2
    fleet.check()


STALE: dict[str, Callable[[Steps, Lease], object]] = {
    "beat": lambda steps, lease: steps.db.once(jobs.renew, [lease], term=TERM),
    "event": lambda steps, lease: steps.db.once(milestones.record, lease, "late", {}),
    "progress": lambda steps, lease: steps.db.once(jobs.report_progress, lease, 0.5),
    "intent": lambda steps, lease: steps.db.once(calls.mark_call_started, lease, kind="x", handle={}, quiet=TERM),
    "result": lambda steps, lease: steps.db.transact(settle.complete, lease, DONE),
    "status": lambda steps, lease: steps.db.transact(settle.end_held, lease, FAILED),
}


@pytest.mark.parametrize("write", STALE)
def test_b20_no_write_of_a_superseded_holder_is_accepted(steps: Steps, write: str) -> None:
    old = steps.claim(steps.submit(mode="local"), term=LAPSED).lease
    recover_lapsed(steps.db)
    new = steps.claim(old.job_id).lease
    before, log = steps.row(old.job_id), steps.events(old.job_id)
    with suppress(LeaseLost):
        assert not STALE[write](steps, old)
    assert (steps.row(old.job_id), steps.events(old.job_id)) == (before, log)
    steps.db.transact(settle.complete, new, DONE)


def test_b21_a_beat_that_races_a_requeue_undoes_nothing(steps: Steps) -> None:
    for _ in range(20):
        lease = steps.running(mode="local", retry_safe=True)
        requeue = lambda held=lease: steps.db.once(  # noqa: E731
            jobs.requeue_counted, held, expected_attempt=1, delay=AT_ONCE, why="x"
        )
        beat = lambda held=lease: steps.db.once(jobs.renew, [held], term=TERM)  # noqa: E731
        at_once([beat, requeue, beat])
        row = steps.row(lease.job_id)
        assert (row["status"], row["attempt"], row["lease_token"], row["lease_until"]) == ("queued", 2, None, None)


def test_b22_a_sweep_that_races_a_completion_leaves_one_end(steps: Steps) -> None:
    ends = []
    for head_start in (0, 0.001, 0.003, 0.01, 0.03) * 4:
        lease = steps.claim(steps.submit(mode="local"), term=LAPSED).lease
        steps.start_call(lease, kind="local")

        def complete(held: Lease = lease, late: float = head_start) -> None:
            time.sleep(late)
            with suppress(LeaseLost):
                steps.db.transact(settle.complete, held, DONE)

        at_once([complete, lambda: recover_lapsed(steps.db)])
        ends.append([kind for kind in steps.events(lease.job_id) if kind in ENDS])
        assert ends[-1] == [steps.row(lease.job_id)["status"]]
    assert {end for (end,) in ends} == {"completed", "failed"}, "both must win sometimes"
    assert steps.violations() == []


SWEEPER = """
import sys
from actors.recover import recover_lapsed
from store.engine import Database, make_engine
db = Database(make_engine(sys.argv[1], name="sweeper"))
print("ready", flush=True)
sys.stdin.readline()
recover_lapsed(db)
"""


def test_b23_a_sweep_that_is_killed_is_finished_by_the_next(fleet: Fleet) -> None:
    ids = [fleet.chore(job_type="chore-again" if number % 2 else "chore") for number in range(120)]
    for job_id in ids:
        claimed = fleet.db.once(jobs.claim_queued, job_id, owner="gone", term=TERM)
        assert claimed is not None
        fleet.db.once(calls.mark_call_started, claimed.lease, kind="local", handle={}, quiet=TERM)
        fleet.db.once(jobs.abandon, claimed.lease)
    url = fleet.db.engine.url.render_as_string(hide_password=False)
    sweeper = subprocess.Popen(
        [sys.executable, "-c", SWEEPER, url], cwd=ROOT, env=fleet.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert sweeper.stdin is not None
    assert sweeper.stdout is not None
    sweeper.stdout.readline()
    sweeper.stdin.write(b"\n")
    sweeper.stdin.flush()
    running = "select count(*) as n from callkeeper.jobs where status = 'running'"
    until(lambda: fleet.one(running)["n"] < 120, what="its first decision")
    sweeper.send_signal(signal.SIGKILL)
    sweeper.communicate()
    recover_lapsed(fleet.db)
    states = fleet.rows("select job_type, status, count(*) as n from callkeeper.jobs group by 1, 2 order by 1")
    assert [(row["job_type"], row["status"], row["n"]) for row in states] == [
        ("chore", "failed", 60),
        ("chore-again", "queued", 60),
    ]
    fleet.check()


STARTED = "select count(*) as n from callkeeper.jobs where started_at is not null"


def kills(fleet: Fleet, *, count: int, each: int) -> None:
    """Workers come and go at random instants; then they stay, and everything ends."""
    fleet.sandbox.script({"defaults": {"run_seconds": (0.0, 0.5)}})
    dice = random.Random(4)
    for round_ in range(count):
        workers = [fleet.spawn(threads=4, modules=MODULES, ready=False) for _ in range(2)]
        for number in range(each):
            fleet.picture(f"kill {round_} {number}.")
            fleet.chore(job_type="chore-again", seconds=0.05)
            fleet.submit("book", chapters=2, pause=0.02)
        enough = len(fleet.jobs) - 2 * each
        until(lambda wanted=enough: fleet.one(STARTED)["n"] > wanted, what="work")
        time.sleep(dice.uniform(0, 0.4))
        for worker in workers:
            worker.kill()
    fleet.spawn(threads=8, modules=MODULES)
    ends = fleet.until_done(within=90)
    assert set(ends) <= {"completed", "failed"}
    assert all(fleet.creates(f"kill {round_} {number}.") <= 1 for round_ in range(count) for number in range(each))
    fleet.check()


@pytest.mark.slow
def test_b24_killed_at_random_every_job_ends(fleet: Fleet) -> None:
    kills(fleet, count=1, each=6)


@pytest.mark.slow
def test_b24_killed_at_random_thirty_times_every_job_ends(fleet: Fleet) -> None:
    kills(fleet, count=30, each=12)
