"""What a run is follows from its jobs: releases, quality, endings, exactly one settlement, whoever ends last."""

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from actors import handler
from store import budgets, calls, gates, jobs, passes, resume, run_watch, runs, settle, signals
from store import submit as store_submit
from store.errors import AccountNotFound, IdempotencyConflict, InsufficientCredits
from store.models import Settlement, StepWarning
from store.states import State
from tests.runs.kit import diamond, new_run, step, submit
from tests.store.steps import Steps, at_once, new_job, pid_of, wait_until_blocked


def test_a_dependant_is_released_in_the_settlement_of_its_last_dependency(steps: Steps) -> None:
    run = submit(steps, diamond())
    assert run.ready() == {"scene:1", "scene:2", "avatar"}
    run.complete("scene:1")
    assert run.ready() == {"scene:2", "avatar"}
    run.complete("scene:2")
    assert run.ready() == {"avatar", "join"}
    run.complete("join")
    assert run.ready() == {"avatar"}
    run.complete("avatar")
    assert run.ready() == {"final"}
    assert steps.events(run.jobs["final"]) == ["queued", "released"]
    run.complete("final")
    assert run.status == "completed"
    assert run.events() == ["submitted", "completed"]
    assert run.read()["quality"] == "standard"
    assert run.mails() == []
    assert steps.violations() == []


def test_a_release_sends_one_message_and_a_blocked_job_has_none(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b", needs=["a"])])
    sent = "select message -> 'args' ->> 0 as job from dramatiq.queue"
    assert [row["job"] for row in steps.all(sent)] == [str(run.jobs["a"])]
    assert steps.db.once(runs.jobs_of, run.id) == run.jobs
    run.complete("a")
    assert sorted(row["job"] for row in steps.all(sent)) == sorted(str(job) for job in run.jobs.values())


def test_a_blocked_job_cannot_be_claimed_whatever_wakes_it(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b", needs=["a"])])
    steps.by_hand("update callkeeper.jobs set available_at = now() where step = 'b'")
    assert steps.db.once(jobs.claim_queued, run.jobs["b"], owner="w", term=timedelta(minutes=1)) is None
    assert steps.db.once(passes.send_again, [run.jobs["b"]]) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(["a", "b", "c"])))
def test_the_order_of_endings_does_not_matter(steps: Steps, order: tuple[str, ...]) -> None:
    run = submit(steps, [step("a"), step("b", optional=True), step("c")])
    for name in order:
        run.fail(name) if name == "b" else run.complete(name)
    read = run.read()
    assert (read["status"], read["quality"]) == ("completed", "degraded")
    assert [(one["code"], one["details"]) for one in read["warnings"]] == [
        ("step_failed", {"step": "b", "code": "task_failed"})
    ]
    assert steps.violations() == []


def test_an_optional_step_that_fails_degrades_and_its_dependants_run(steps: Steps) -> None:
    run = submit(steps, diamond())
    run.fail("avatar", "content_policy")
    for name in ("scene:1", "scene:2", "join", "final"):
        run.complete(name)
    read = run.read()
    assert (read["status"], read["quality"], read["failed_nodes"]) == ("completed", "degraded", [])
    assert run.mails() == []


def test_a_required_step_that_fails_ends_the_run_and_what_rests_is_refunded(steps: Steps) -> None:
    account = steps.account(subscription=100)
    run = submit(steps, diamond(account_id=account, price=10), account_id=account)
    assert steps.pools(account)["reserved"] == (50, 0)
    run.complete("scene:1")
    run.fail("scene:2", "task_failed")
    assert run.status == "failed"
    assert run.states() == {
        "scene:1": "completed", "scene:2": "failed", "avatar": "cancelled", "join": "cancelled", "final": "cancelled",
    }  # fmt: skip
    assert steps.pools(account) == {
        "granted": (100, 0), "balance": (90, 0), "reserved": (0, 0), "committed": (10, 0),
    }  # fmt: skip
    read = run.read()
    assert (read["failure_code"], read["failed_nodes"]) == ("task_failed", ["scene:2"])
    assert run.events() == ["submitted", "ending", "failed"]
    assert [mail["key"] for mail in run.mails()] == [f"render-failed-email:{run.id}"]
    assert steps.violations() == []


def test_a_failing_run_waits_for_what_runs_and_tells_it_to_stop(steps: Steps) -> None:
    run = submit(steps, diamond())
    held = run.claim("scene:1").lease
    run.fail("scene:2")
    assert (run.status, run.read()["ending"]) == ("running", "failed")
    assert steps.db.once(signals.is_stopping, held.job_id)
    assert run.mails() == []
    steps.db.transact(settle.end_held, held, Settlement(State.CANCELLED, error_code="cancelled"))
    assert run.status == "failed"
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_what_completes_while_the_run_is_failing_keeps_its_result_and_its_charge(steps: Steps) -> None:
    account = steps.account(subscription=100)
    run = submit(steps, diamond(account_id=account, price=10), account_id=account)
    held = run.claim("scene:1").lease
    run.fail("scene:2")
    run.complete("scene:1", held)
    assert (run.status, run.states()["scene:1"]) == ("failed", "completed")
    assert steps.pools(account)["committed"] == (10, 0)
    assert steps.violations() == []


def test_an_attempt_that_fails_ends_nothing(steps: Steps) -> None:
    run = submit(steps, diamond())
    claimed = run.claim("scene:1")
    assert steps.db.once(
        jobs.requeue_counted, claimed.lease, expected_attempt=1, delay=timedelta(0), why="provider_unavailable"
    )
    assert (run.status, run.read()["ending"]) == ("running", None)
    assert run.events() == ["submitted"]


def test_the_worst_warning_is_the_quality(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b")])
    small = StepWarning("audio_padded", "info", quality="repaired", details={"seconds": 0.3})
    run.complete("a", warnings=[small, StepWarning("note", "info", customer_visible=False)])
    assert run.read()["quality"] == "repaired"
    run.complete("b", warnings=[StepWarning("scene_looped", quality="degraded")])
    read = run.read()
    assert read["quality"] == "degraded"
    assert [one["code"] for one in read["warnings"]] == ["audio_padded", "note", "scene_looped"]
    assert {one["stage"] for one in read["warnings"]} == {"a", "b"}


def test_two_last_steps_that_end_at_once_make_one_settlement(steps: Steps) -> None:
    for _ in range(25):
        run = submit(steps, [step("a"), step("b"), step("c")])
        leases = {name: run.claim(name).lease for name in ("a", "b", "c")}
        at_once([partial(run.complete, name, lease) for name, lease in leases.items()])
        assert (run.status, run.events()) == ("completed", ["submitted", "completed"])
    assert steps.violations() == []


def test_two_last_dependencies_that_end_at_once_release_once(steps: Steps) -> None:
    for _ in range(25):
        run = submit(steps, [step("a"), step("b"), step("c", needs=["a", "b"])])
        leases = {name: run.claim(name).lease for name in ("a", "b")}
        at_once([partial(run.complete, name, lease) for name, lease in leases.items()])
        assert run.ready() == {"c"}
        assert steps.events(run.jobs["c"]) == ["queued", "released"]
        assert steps.count("dramatiq.queue", "message -> 'args' ->> 0 = cast(:id as text)", id=str(run.jobs["c"])) == 1


def test_failures_stops_and_completions_at_once_never_deadlock_and_settle_once(steps: Steps) -> None:
    before = steps.one("select deadlocks from pg_stat_database where datname = current_database()")["deadlocks"]
    for round_number in range(20):
        run = submit(steps, [*(step(f"s{n}") for n in range(4)), step("last", needs=["s0", "s1", "s2", "s3"])])
        leases = {f"s{n}": run.claim(f"s{n}").lease for n in range(3)}
        at_once(
            [
                partial(run.fail, "s0", lease=leases["s0"]),
                partial(run.complete, "s1", leases["s1"]),
                partial(run.fail, "s2", lease=leases["s2"]),
                partial(steps.db.transact, signals.request_stop, run.jobs["s3"]),
                partial(steps.db.transact, signals.request_stop, run.jobs["last"]),
                partial(steps.db.transact, runs.look_again, run.id),
            ]
        )
        read = run.read()
        assert read["status"] in {"failed", "cancelled"}, round_number
        assert run.events()[-1] == read["status"]
    after = steps.one("select deadlocks from pg_stat_database where datname = current_database()")["deadlocks"]
    assert after == before
    assert steps.violations() == []


def test_a_stopped_run_is_cancelled_and_mails_nobody(steps: Steps) -> None:
    run = submit(steps, diamond(), user_id="u1")
    held = run.claim("scene:1").lease
    assert steps.db.transact(runs.request_stop, run.id, user_id="somebody else") is None
    assert steps.db.transact(runs.request_stop, run.id, user_id="u1") == "running"
    steps.db.transact(settle.end_held, held, Settlement(State.CANCELLED, error_code="cancelled"))
    assert run.status == "cancelled"
    assert run.events() == ["submitted", "stopping", "cancelled"]
    assert run.mails() == []
    assert steps.db.transact(runs.request_stop, run.id) == "cancelled"
    assert steps.violations() == []


def test_a_stop_that_comes_after_everything_is_done_changes_nothing(steps: Steps) -> None:
    run = submit(steps, [step("a")])
    held = run.claim("a").lease
    assert steps.db.transact(runs.request_stop, run.id) == "running"
    run.complete("a", held)
    assert run.status == "completed"
    assert steps.violations() == []


def test_stopping_one_required_step_cancels_the_run(steps: Steps) -> None:
    run = submit(steps, diamond())
    steps.db.transact(signals.request_stop, run.jobs["join"])
    assert run.status == "cancelled"
    assert set(run.states().values()) == {"cancelled"}
    assert steps.violations() == []


def test_a_run_past_its_deadline_times_out(steps: Steps) -> None:
    run = submit(steps, diamond())
    steps.by_hand("update callkeeper.runs set deadline_at = now() - interval '1 second', next_check_at = now()")
    assert steps.db.once(run_watch.due) == [run.id]
    assert steps.db.transact(runs.look_again, run.id) == "timed_out"
    read = run.read()
    assert (read["status"], read["failure_code"]) == ("timed_out", "run_deadline_exceeded")
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_a_call_in_flight_is_resolved_before_its_failing_run_ends(steps: Steps) -> None:
    plan = [step("a", mode="async", actor="start_call"), step("b")]
    run = submit(steps, plan)
    held = run.claim("a").lease
    steps.start_call(held)
    steps.db.once(calls.mark_ambiguous, held, look_in=timedelta(0), why="no answer")
    run.fail("b")
    assert run.status == "running"
    due = steps.due()[0]
    assert due.stopping
    steps.db.once(calls.adopt_call, due.lease, "task-1")
    [again] = steps.due()
    ended = Settlement(State.CANCELLED, error_code="cancelled")
    steps.db.transact(settle.end_polled, again.lease, ended, upstream_ended=False)
    assert run.status == "failed"
    assert steps.count("callkeeper.consequences", "effect = 'cancel_upstream'") == 1
    assert steps.violations() == []


def test_a_plan_that_cannot_be_paid_leaves_nothing(steps: Steps) -> None:
    account = steps.account(subscription=45)
    with steps.db.engine.begin() as connection:
        plan = diamond(account_id=account, price=10)
        with pytest.raises(InsufficientCredits):
            runs.create(connection, new_run(plan, account_id=account), plan)
        assert connection.execute(sa.text("select 1")).scalar_one() == 1
    assert (steps.count("callkeeper.runs"), steps.count("callkeeper.jobs")) == (0, 0)
    assert steps.pools(account)["balance"] == (45, 0)


def test_the_same_key_is_the_same_run(steps: Steps) -> None:
    plan = diamond()
    first = steps.db.transact(runs.create, new_run(plan, idempotency_key="k", user_id="u"), plan)
    again = steps.db.transact(runs.create, new_run(plan, idempotency_key="k", user_id="u"), plan)
    assert (again.run_id, again.created, again.jobs) == (first.run_id, False, first.jobs)
    with pytest.raises(IdempotencyConflict, match="run"):
        steps.db.transact(runs.create, new_run(plan, idempotency_key="k", user_id="u", fingerprint="p2"), plan)
    other = steps.db.transact(runs.create, new_run(plan, idempotency_key="k", user_id="v"), plan)
    assert other.run_id != first.run_id


def test_racers_with_one_key_make_one_run(steps: Steps) -> None:
    plan = diamond()
    made: list[Any] = at_once(
        [lambda: steps.db.transact(runs.create, new_run(plan, idempotency_key="k"), plan) for _ in range(8)]
    )
    assert len({one.run_id for one in made}) == 1
    assert sum(one.created for one in made) == 1
    assert steps.count("callkeeper.jobs") == len(plan)


def test_a_steps_deadline_counts_from_when_it_could_run(steps: Steps) -> None:
    limit = timedelta(minutes=90)
    run = submit(steps, [step("a", run_limit=limit), step("b", needs=["a"], run_limit=limit)])
    steps.by_hand("update callkeeper.runs set deadline_at = deadline_at + interval '1 day'")
    run.complete("a")
    row = steps.row(run.jobs["b"])
    assert row["deadline_at"] - row["available_at"] == pytest.approx(limit, abs=timedelta(seconds=2))
    before = row["deadline_at"]
    run.claim("b")
    assert steps.row(run.jobs["b"])["deadline_at"] == before


def test_a_poll_that_fails_a_required_step_fails_the_run(steps: Steps) -> None:
    run = submit(steps, [step("a", mode="async", actor="start_call"), step("b", needs=["a"])])
    held = run.claim("a").lease
    steps.start_call(held)
    steps.db.once(calls.checkpoint_call, held, "task-1", first_poll=timedelta(0))
    lease = steps.poll(held.job_id)
    failed = Settlement(State.FAILED, error_code="content_policy")
    steps.db.transact(settle.end_polled, lease, failed, upstream_ended=True)
    assert (run.status, run.read()["failure_code"]) == ("failed", "content_policy")


def test_an_outage_does_not_count_towards_a_runs_deadline(steps: Steps) -> None:
    run = submit(steps, [step("a", provider_kind="replicate-prediction"), step("b", needs=["a"])])
    steps.by_hand(
        "insert into callkeeper.provider_gates (provider_kind, account, reason, closed_at, closed_until, stops_clocks)"
        " values ('replicate-prediction', 'default', 'outage', now() - interval '3 hours', now(), true)",
        "update callkeeper.runs set created_at = now() - interval '3 hours', deadline_at = now() - interval '1 hour'",
        "update callkeeper.jobs set created_at = now() - interval '3 hours'",
    )
    assert steps.db.transact(runs.look_again, run.id) == "running"
    steps.db.once(gates.reopen, "replicate-prediction", "default")
    assert steps.db.transact(runs.look_again, run.id) == "running"
    steps.by_hand("update callkeeper.runs set deadline_at = deadline_at - interval '3 hours'")
    assert steps.db.transact(runs.look_again, run.id) == "timed_out"
    assert steps.violations() == []


def test_runs_submitted_at_once_on_one_account_wait_for_each_other_and_never_in_a_circle(
    steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs refer to the account before either reserves from it."""
    account = steps.account(subscription=10)
    both, lock = threading.Barrier(2), runs.lock_payer

    def together(connection: sa.Connection, run_id: Any) -> None:
        both.wait(10)
        lock(connection, run_id)

    monkeypatch.setattr(runs, "lock_payer", together)
    plan = [step("a", account_id=account, price=2), step("b", account_id=account, price=3)]

    def create() -> Any:
        with steps.db.engine.begin() as connection:  # not through Database, which would try a deadlock again
            return runs.create(connection, new_run(plan, account_id=account), plan)

    assert len({run.run_id for run in at_once([create, create])}) == 2
    assert steps.pools(account)["reserved"] == (10, 0)
    assert steps.violations() == []


def waits_in_no_circle(steps: Steps, account: str, first: Callable[[sa.Connection], Any]) -> None:
    """`first` adds a free step and then one that is paid for; meanwhile somebody submits one paid job."""
    free_is_in, other_waits = threading.Event(), threading.Event()
    submits = store_submit.submit

    def between(connection: sa.Connection, job: Any) -> Any:
        if job.price and job.place is not None:
            free_is_in.set()
            assert other_waits.wait(10)
        return submits(connection, job)

    def other() -> None:
        assert free_is_in.wait(10)
        with steps.db.engine.connect() as connection:
            pid = pid_of(connection)
            watcher = threading.Thread(target=lambda: (wait_until_blocked(steps.db.engine, pid), other_waits.set()))
            watcher.start()
            submits(connection, new_job(account_id=account, price=1))
            connection.commit()
            watcher.join()

    def run() -> None:
        with steps.db.engine.begin() as connection:
            first(connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_submit, "submit", between)
        at_once([run, other])


@pytest.fixture
def capped(steps: Steps) -> Iterator[Steps]:
    steps.db.once(budgets.set_budget, "queued", "global", "", at_most=100, per=None, by="test")
    yield steps
    steps.by_hand("delete from callkeeper.budgets", "delete from callkeeper.budget_changes")


def test_a_run_holds_its_account_before_it_asks_what_the_queue_allows(capped: Steps) -> None:
    account = capped.account(subscription=10)
    plan = [step("a"), step("b", account_id=account, price=3)]
    new = new_run(plan, account_id=account)
    waits_in_no_circle(capped, account, lambda connection: runs.create(connection, new, plan))
    assert capped.pools(account)["reserved"] == (4, 0)
    assert capped.violations() == []


def test_so_does_a_step_that_adds_steps(capped: Steps) -> None:
    account = capped.account(subscription=10)
    run = submit(capped, [step("a")], account_id=account)
    held = run.claim("a").lease
    more = [step("b"), step("c", account_id=account, price=3)]
    added = [replace(job, place=replace(job.place, run_id=run.id)) for job in more if job.place is not None]
    outcome = Settlement(State.COMPLETED, result={}, steps=added)
    waits_in_no_circle(capped, account, lambda connection: settle.complete(connection, held, outcome))
    assert capped.pools(account)["reserved"] == (4, 0)
    assert run.states() == {"a": "completed", "b": "queued", "c": "queued"}


@pytest.mark.parametrize("first", [True, False])
def test_what_depends_on_a_step_waits_for_what_that_adds_only_if_it_says_so(steps: Steps, first: bool) -> None:
    plan = [step("a"), step("b"), step("last", needs=["a", "b"]), step("other", needs=["b"])]
    run, another = submit(steps, plan), submit(steps, plan)
    held = run.claim("a").lease
    (more,) = [step("more", needs=["a"])]
    assert more.place is not None
    added = replace(more, place=replace(more.place, run_id=run.id))
    outcome = Settlement(State.COMPLETED, result={}, steps=[added], steps_first=first)
    steps.db.transact(settle.complete, held, outcome)
    run.complete("b")
    rows = {row["step"]: row for row in steps.all(
        "select step, blocked, depends_on from callkeeper.jobs where run_id = :id", id=run.id
    )}  # fmt: skip
    assert rows["last"]["depends_on"] == ["a", "b", *(["more"] if first else [])]
    assert {name: row["blocked"] for name, row in rows.items()} == {
        "a": False, "b": False, "more": False, "other": False, "last": first,
    }  # fmt: skip
    run.complete("more")
    assert steps.all("select step from callkeeper.jobs where run_id = :id and blocked", id=run.id) == []
    same = steps.all("select depends_on from callkeeper.jobs where run_id = :id and step = 'last'", id=another.id)
    assert same == [{"depends_on": ["a", "b"]}], "another run's are its own"
    assert steps.violations() == []


def test_a_step_that_adds_what_can_never_start_fails_with_its_reason(capped: Steps) -> None:
    run = submit(capped, [step("a")])
    held = run.claim("a")
    (more,) = [step("b", provider_kind="kind-x")]
    assert more.place is not None
    added = replace(more, place=replace(more.place, run_id=run.id))
    capped.db.once(budgets.set_budget, "concurrency", "kind", "kind-x", at_most=0, per=None, by="test")
    rt: Any = SimpleNamespace(db=capped.db)
    context: Any = SimpleNamespace(assets=(), warnings=(), steps=[added], steps_first=False)
    registered: Any = SimpleNamespace(cost=None)
    handler._complete(rt, held, registered, {}, context)
    assert capped.row(run.jobs["a"])["error_code"] == "budget_never_fits"
    assert run.status == "failed"


def test_so_does_a_run_that_goes_on(capped: Steps) -> None:
    account = capped.account(subscription=10)
    plan = [step("a"), step("b", needs=["a"], account_id=account, price=3)]
    run = submit(capped, plan, account_id=account)
    run.fail("a")
    late = {"result": {"late": True}, "assets": (), "resumes": True}
    waits_in_no_circle(capped, account, lambda on: resume.come_home_late(on, run.jobs["a"], **late))
    assert run.status == "running"
    assert capped.pools(account)["reserved"] == (4, 0)


def test_a_run_on_an_unknown_account_is_refused_and_the_callers_transaction_goes_on(steps: Steps) -> None:
    plan = [step("a")]
    with steps.db.engine.begin() as connection:
        with pytest.raises(AccountNotFound, match="nobody"):
            runs.create(connection, new_run(plan, account_id="nobody"), plan)
        assert connection.execute(sa.text("select 1")).scalar_one() == 1
    assert steps.count("callkeeper.runs") == 0
