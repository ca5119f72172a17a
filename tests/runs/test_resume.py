"""A failed run goes on when its sole cause comes home late: by the store's verbs, and by real workers."""

from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy.exc import IntegrityError

from store import calls, resume, run_outcomes, runs, second_tries, settle
from store.errors import InsufficientCredits
from store.models import Settlement
from store.states import State
from tests.runs.kit import Run, diamond, new_run, step, submit
from tests.store.steps import AT_ONCE, Steps, at_once

LATE = {"late": True}


def come_home(steps: Steps, run: Run, name: str) -> object:
    return steps.db.transact(resume.come_home_late, run.jobs[name], result=LATE, assets=(), resumes=True)


def failed(steps: Steps, *, account: str | None = None, price: int = 0) -> Run:
    """scene:2 failed, scene:1 is complete, the rest never ran."""
    run = submit(steps, diamond(account_id=account, price=price), account_id=account)
    run.complete("scene:1")
    run.fail("scene:2", "reconcile_no_recovery")
    assert run.status == "failed"
    return run


def test_the_sole_cause_resumes_the_run_and_what_never_ran_is_released(steps: Steps) -> None:
    account = steps.account(subscription=100)
    run = failed(steps, account=account, price=10)
    assert come_home(steps, run, "scene:2") == run.id
    assert (run.status, run.events()[-1], run.read()["round"]) == ("running", "resumed", 1)
    assert run.ready() == {"scene:2", "avatar"}
    assert run.states()["scene:1"] == "completed"
    late = run.claim("scene:2")
    assert late.price == 0
    assert late.place is not None
    found = steps.db.once(run_outcomes.find_run_recovery_asset, run_id=run.id, operation_key=late.place.operation_key)
    assert found is not None
    assert (found.late, found.cost, found.result) == (True, 0, LATE)
    run.complete("scene:2", late.lease)
    run.complete("join")
    run.complete("avatar")
    run.complete("final")
    assert run.status == "completed"
    assert steps.pools(account)["committed"] == (40, 0)
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_a_step_that_runs_again_has_the_limit_of_each_of_its_attempts(steps: Steps) -> None:
    limit = timedelta(minutes=3)
    run = submit(steps, [step("a", attempt_limit=limit), step("b", needs=["a"], attempt_limit=limit)])
    run.fail("a")
    assert come_home(steps, run, "a") == run.id
    again = steps.all("select attempt_limit from callkeeper.jobs where round = 1")
    assert [row["attempt_limit"] for row in again] == [limit, limit]


def test_it_is_not_complete_before_what_was_left_has_run(steps: Steps) -> None:
    run = failed(steps)
    come_home(steps, run, "scene:2")
    run.complete("scene:2")
    assert run.status == "running"


def test_a_run_with_several_causes_stays_failed(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b"), step("c", needs=["a", "b"])])
    held = run.claim("b").lease
    run.fail("a")
    run.fail("b", lease=held)
    assert run.read()["failed_nodes"] == ["a", "b"]
    assert come_home(steps, run, "a") is None
    assert run.status == "failed"
    assert steps.violations() == []


def test_a_cancelled_run_stays_cancelled(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b", needs=["a"])])
    held = run.claim("a").lease
    steps.db.transact(runs.request_stop, run.id)
    run.fail("a", lease=held)
    assert run.status == "cancelled"
    assert come_home(steps, run, "a") is None
    assert run.status == "cancelled"


def test_two_that_bring_it_home_at_once_resume_it_once(steps: Steps) -> None:
    for _ in range(10):
        run = failed(steps)
        came = at_once([partial(come_home, steps, run, "scene:2")] * 4)
        assert sorted(map(str, came)).count(str(run.id)) == 1
        assert run.read()["round"] == 1
    assert steps.violations() == []


def test_a_resumed_run_that_fails_again_writes_no_second_letter(steps: Steps) -> None:
    run = failed(steps)
    come_home(steps, run, "scene:2")
    run.complete("scene:2")
    run.fail("join")
    assert run.status == "failed"
    assert [mail["key"] for mail in run.mails()] == [f"render-failed-email:{run.id}"]
    assert steps.violations() == []


def test_a_run_that_cannot_be_paid_any_more_is_not_resumed(steps: Steps) -> None:
    account = steps.account(subscription=50)
    run = failed(steps, account=account, price=10)
    other = steps.submit(account_id=account, price=40)
    with pytest.raises(InsufficientCredits):
        come_home(steps, run, "scene:2")
    assert run.status == "failed"
    assert steps.row(other)["status"] == "queued"
    assert steps.violations() == []


def test_a_run_whose_key_was_used_anew_is_not_resumed(steps: Steps) -> None:
    plan = [step("a"), step("b", needs=["a"])]
    run = submit(steps, plan, idempotency_key="k")
    run.fail("a")
    again = submit(steps, plan, idempotency_key="k")
    assert again.id != run.id
    assert come_home(steps, run, "a") is None
    assert (run.status, again.status) == ("failed", "running")


def test_a_terminal_run_cannot_be_changed_but_by_resuming(steps: Steps) -> None:
    run = failed(steps)
    for change in ("quality = 'repaired'", "status = 'completed', ending = null, failure_code = null, progress = 1"):
        with pytest.raises(IntegrityError, match="resumed"):
            steps.by_hand(f"update callkeeper.runs set {change}")
    done = submit(steps, [step("a")])
    done.complete("a")
    with pytest.raises(IntegrityError, match="resumed"):
        steps.by_hand(
            "update callkeeper.runs set status = 'running', finished_at = null, round = round + 1,"
            " next_check_at = now() where id = :id",
            id=done.id,
        )
    assert run.status == "failed"


def test_the_budget_of_paid_calls_is_the_operations(steps: Steps) -> None:
    plan = [step("a", mode="async", actor="start_call", max_attempts=9), step("b")]
    run = submit(steps, plan)
    for n in range(3):
        held = run.claim("a").lease
        steps.start_call(held)
        steps.db.once(calls.checkpoint_call, held, f"{run.id}-{n}", first_poll=AT_ONCE)
        lease = steps.poll(held.job_id)
        again = steps.db.once(second_tries.recreate, lease, expected_attempt=n + 1, delay=AT_ONCE, why="task_failed")
        assert again is (n < 2)
    steps.db.transact(settle.end_polled, lease, Settlement(State.FAILED, error_code="task_failed"), upstream_ended=True)
    assert run.status == "failed"
    come_home(steps, run, "a")
    assert steps.row(run.claim("a").lease.job_id)["recreates"] == 2
    assert steps.violations() == []


def test_what_was_submitted_is_what_runs_again(steps: Steps) -> None:
    plan = [step("a", request={"x": 1}, heavy=True, watermark=True, visibility="private"), step("b", needs=["a"])]
    run = steps.db.transact(runs.create, new_run(plan), plan)
    first = steps.row(run.jobs["a"])
    made = Run(steps, run)
    made.fail("a")
    come_home(steps, made, "a")
    again = steps.row(steps.db.once(runs.jobs_of, run.run_id)["a"])
    same = (
        "job_type", "mode", "queue", "actor", "request_fingerprint", "retry_safe", "max_attempts", "run_limit",
        "user_id", "account_id", "visibility", "watermark", "heavy", "operation_key", "provider_kind", "stale_after",
    )  # fmt: skip
    assert {name: again[name] for name in same} == {name: first[name] for name in same}
    assert again["id"] != first["id"]
