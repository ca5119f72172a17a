"""A run whose result is there while other steps are in flight is no success yet; and when it ends otherwise, they end with it."""

from datetime import timedelta

import pytest

from store import jobs, runs, settle, signals
from store.models import Settlement
from store.states import State
from tests.runs.kit import Run, step, submit
from tests.store.steps import FAR, Steps

PRICE = 10
STOPPED = Settlement(State.CANCELLED, error_code="cancelled")


def result_is_there(steps: Steps) -> Run:
    """The step of the result is complete, half of the other one is done."""
    account = steps.account(subscription=100)
    paid = {"account_id": account, "price": PRICE}
    plan = [step("extra", mode="async", actor="start_call", **paid), step("film", **paid)]
    run = submit(steps, plan, account_id=account)
    run.complete("film")
    assert (run.status, run.read()["ending"], run.read()["progress"]) == ("running", None, 0.5)
    return run


def past_its_deadline(steps: Steps, run: Run) -> str | None:
    steps.by_hand("update callkeeper.runs set deadline_at = now() - interval '1 second', next_check_at = now()")
    return steps.db.transact(runs.look_again, run.id)


@pytest.mark.parametrize("extra", ["queued", "retrying", "waiting"])
def test_an_apparent_success_is_corrected_and_keeps_the_progress_its_steps_earned(steps: Steps, extra: str) -> None:
    """What rests is closed, refunded and written down in the very transaction that ends the run."""
    run = result_is_there(steps)
    job = run.jobs["extra"]
    if extra != "queued":
        held = run.claim("extra").lease
        steps.db.once(jobs.report_progress, held, 0.5)
        if extra == "retrying":
            steps.db.once(
                jobs.requeue_counted, held, expected_attempt=1, delay=timedelta(0), why="provider_unavailable"
            )
        else:
            from store import calls

            steps.start_call(held)
            steps.db.once(calls.checkpoint_call, held, "t-extra", first_poll=FAR)
    assert past_its_deadline(steps, run) == "timed_out"
    assert (run.status, run.read()["failure_code"]) == ("timed_out", "run_deadline_exceeded")
    assert run.states() == {"extra": "cancelled", "film": "completed"}
    assert run.read()["progress"] == pytest.approx(0.75 if extra == "waiting" else 0.5)
    assert steps.row(job)["error_code"] == "run_ended"
    assert steps.events(job)[-1] == "cancelled"
    assert run.events() == ["submitted", "ending", "timed_out"]
    pools = steps.pools(steps.row(job)["account_id"])
    assert (pools["committed"], pools["reserved"]) == ((PRICE, 0), (0, 0)), "the film was made and is paid for"
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_what_runs_is_told_and_the_run_is_never_completed(steps: Steps) -> None:
    run = result_is_there(steps)
    held = run.claim("extra").lease
    assert past_its_deadline(steps, run) == "running"
    assert (run.status, run.read()["ending"]) == ("running", "timed_out")
    assert steps.db.once(signals.is_stopping, held.job_id)
    steps.db.transact(settle.end_held, held, STOPPED)
    assert (run.status, run.read()["progress"]) == ("timed_out", 0.5)
    assert steps.violations() == []


def test_a_required_step_that_fails_after_the_result_fails_the_run(steps: Steps) -> None:
    run = result_is_there(steps)
    run.fail("extra")
    read = run.read()
    assert (read["status"], read["failed_nodes"], read["progress"]) == ("failed", ["extra"], 0.5)
    assert steps.violations() == []


def test_what_a_run_can_do_without_is_done_once_it_has_ended(steps: Steps) -> None:
    run = submit(steps, [step("extra", optional=True), step("more"), step("film")])
    run.fail("extra")
    assert run.read()["progress"] == pytest.approx(1 / 3)
    run.fail("more")
    assert run.read()["progress"] == pytest.approx(1 / 3)
