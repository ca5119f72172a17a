"""A priced call's row: written with the intent, closed once with its cost, counted by the hour, a slot while it may run."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from actors.pricing import Booking, booking_of, booking_of_error, cost_of, tokens_in
from providers.contract import Failed, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from store import call_ledger, calls, deadlines, jobs, settle
from store.deadlines import Overdue
from store.engine import Database
from store.errors import LeaseLost
from store.models import CallState, Lease
from tests.budgets.spending import Money, spend
from tests.budgets.steps import Starts
from tests.store.steps import AT_ONCE, DONE, FAR, at_once

PRICE = {"input": 3_000_000, "output": 15_000_000}


def test_the_row_is_written_with_the_intent(money: Money) -> None:
    job = money.held(user_id="ann", app="shop")
    state = money.begin(job, spend(500))
    row = money.row_of(job)
    told = {name: row[name] for name in ("generation", "epoch", "user_id", "app", "provider_kind", "account", "status")}
    assert told == {
        "generation": 1, "epoch": 1, "user_id": "ann", "app": "shop", "provider_kind": "anthropic-sync",
        "account": "default", "status": "open",
    }  # fmt: skip
    assert (row["reserved"], row["cost"], row["price"]) == (500, None, PRICE)
    assert row["until"] - row["started_at"] == timedelta(minutes=1)
    assert row["started_at"] == state.started_at
    assert money.db.transact(settle.complete, job, DONE) is None
    assert money.row_of(job)["status"] == "open", "an end of the job is no end of the call"


def test_it_begins_as_any_call_does(money: Money) -> None:
    job = money.held()
    money.begin(job, spend(1))
    with pytest.raises(LeaseLost):
        money.begin(job, spend(1))
    lost = Lease(job.job_id, job.epoch + 1, job.token, job.owner)
    with pytest.raises(LeaseLost):
        money.begin(lost, spend(1))
    assert money.count("callkeeper.call_ledger") == 1


def test_the_next_call_of_a_held_job_is_a_row_of_its_own(money: Money) -> None:
    job = money.held()
    with pytest.raises(LeaseLost):
        money.begin(job, spend(1), next_call=True)
    first = money.begin(job, spend(100))
    assert money.finish(job, first, cost=40)
    second = money.begin(job, spend(100), next_call=True)
    assert isinstance(first, CallState)
    assert (first.generation, second.generation) == (1, 2)
    assert first.key != second.key
    assert money.finish(job, second, cost=2)
    assert money.spent() == 42
    kinds = [row["kind"] for row in money.all("select kind from callkeeper.job_events order by seq")]
    assert kinds == ["queued", "started", "call_started", "call_started"]
    assert money.violations() == []


def test_an_asynchronous_call_has_no_next_one(money: Money) -> None:
    job = money.held(mode="async")
    money.begin(job, spend(1))
    with pytest.raises(LeaseLost):
        money.begin(job, spend(1), next_call=True)


@pytest.mark.parametrize(
    ("booked", "row"),
    [
        ({"status": "ok", "cost": 7, "input_tokens": 1, "output_tokens": 2}, ("ok", 7, False)),
        ({"status": "ok", "cost": None}, ("ok", 500, True)),
        ({"status": "failed", "cost": 0}, ("failed", 0, False)),
        ({"status": "failed", "cost": 3, "estimated": True}, ("failed", 3, True)),
    ],
)
def test_a_cost_is_booked_once_whoever_holds_the_job(
    money: Money, booked: dict[str, Any], row: tuple[str, int, bool]
) -> None:
    job = money.held()
    state = money.begin(job, spend(500))
    money.db.once(jobs.requeue, job, delay=AT_ONCE, why="x")
    once = [lambda: money.finish(job, state, **booked) for _ in range(6)]
    assert sorted(at_once(once)) == [False] * 5 + [True]
    closed = money.row_of(job)
    assert (closed["status"], closed["cost"], closed["estimated"]) == row
    assert money.spent() == row[1], "counted once"
    assert money.violations() == []


def test_a_booking_of_no_call_is_none(money: Money) -> None:
    job = money.held()
    state = money.begin(job, spend(5))
    assert not money.db.once(call_ledger.finish, job.job_id, state.generation + 1, status="ok", cost=1)
    assert money.row_of(job)["status"] == "open"


def test_t26_a_lost_call_is_charged_at_its_reserve_and_flagged(money: Money) -> None:
    lost, hung_up, running = money.held(), money.held(), money.held()
    for job in (lost, hung_up, running):
        money.begin(job, spend(500))
    assert money.db.once(call_ledger.note_abort, hung_up.job_id, 1, why="lease_lost")
    money.age(lost, hung_up)
    assert money.db.once(call_ledger.close_overdue) == 2
    assert money.db.once(call_ledger.close_overdue) == 0
    told = [(row["status"], row["cost"], row["estimated"]) for row in map(money.row_of, (lost, hung_up, running))]
    assert told == [("unknown", 500, True), ("aborted", 500, True), ("open", None, False)]
    assert money.spent() == 1000
    assert not money.finish(lost, money.first, cost=3), "a late booking changes nothing"
    assert not money.db.once(call_ledger.note_abort, lost.job_id, 1, why="late")
    assert money.violations() == []


def test_lost_calls_are_closed_once_by_two_at_once(money: Money) -> None:
    """One has closed some and not committed; another one waits for nothing, and takes the rest."""
    apart = {
        job.job_id.bytes[-1] % 8: job for job in (money.held() for _ in range(40))
    }  # each counts in a part of its own
    held = list(apart.values())[:3]
    for job in held:
        money.begin(job, spend(10))
    money.age(*held)
    with money.db.engine.begin() as first:
        assert call_ledger.close_overdue(first, at_most=2) == 2
        assert Database(money.db.engine, patience=0).once(call_ledger.close_overdue) == 1
    assert money.db.once(call_ledger.close_overdue) == 0
    assert money.spent() == 30


def test_without_a_stop_a_call_costs_one_statement_to_begin_and_one_to_book(money: Money) -> None:
    job, said = money.held(), []
    listener = lambda _c, _cursor, statement, *_: said.append(statement)  # noqa: E731
    event.listen(money.db.engine, "before_cursor_execute", listener)
    money.finish(job, money.begin(job, spend(10)), cost=1)
    event.remove(money.db.engine, "before_cursor_execute", listener)
    assert len(said) == 2, said


def test_a_call_left_open_too_long_is_a_violation(money: Money) -> None:
    job = money.held()
    money.begin(job, spend(1))
    money.by_hand(
        "update callkeeper.call_ledger set started_at = now() - interval '1 h', until = now() - interval '6 min'"
    )
    assert [(row["invariant"], row["job_id"]) for row in money.violations()] == [(4, job.job_id)]


def test_t10_a_stray_call_takes_a_slot_until_it_ends(starts: Starts, money: Money) -> None:
    """The deadline passes during the call: the job is free to run again, and its first call still counts."""
    starts.budget("concurrency", "kind", "anthropic-sync", at_most=1)
    job = money.held(retry_safe=True, attempt_limit=FAR)
    state = money.begin(job, spend(500))
    assert starts.slots() == 1, "a call that its job is at counts once"
    starts.by_hand("update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second'")
    assert starts.db.once(deadlines.requeue_overdue, Overdue(job.job_id, 1, 1, whole_job=False))
    assert starts.slots() == 1, "the stray one"
    assert starts.start(job.job_id) is None, "there is no room for its second"
    assert starts.parked() == {job.job_id}
    assert starts.release() == 0
    assert money.finish(job, state, cost=20), "a late answer books what it cost"
    with pytest.raises(LeaseLost):
        starts.db.transact(settle.complete, job, DONE)
    assert starts.release() == 1
    assert starts.start(job.job_id) is not None
    assert starts.slots() == 1
    assert starts.violations() == []


def test_a_stray_call_and_the_next_one_are_two(starts: Starts, money: Money) -> None:
    job = money.held(retry_safe=True)
    money.begin(job, spend(5))
    money.db.once(jobs.requeue, job, delay=AT_ONCE, why="x")
    again = starts.claim(job.job_id)
    assert starts.slots() == 2, "before its second call, too"
    money.begin(again.lease, spend(5))
    assert starts.slots() == 2
    money.by_hand("update callkeeper.call_ledger set until = started_at where generation = 1")
    assert starts.slots() == 1, "what can run no longer takes none, booked or not"


def test_a_call_without_a_price_has_no_row(money: Money) -> None:
    job = money.held()
    money.db.once(calls.mark_call_started, job, kind="anthropic-sync", handle={}, quiet=FAR)
    assert money.count("callkeeper.call_ledger") == 0


@pytest.mark.parametrize(
    "change",
    [
        "status = 'ok'", "status = 'lost'", "cost = 1", "finished_at = now()", "reserved = -1", "price = '{}'",
        "price = '{\"input\": 1.5, \"output\": 1}'", "error = repeat('x', 501)", "until = started_at - interval '1 s'",
        "status = 'unknown', cost = 1, finished_at = now()",
    ],
)  # fmt: skip
def test_no_half_row_can_be_stored(money: Money, change: str) -> None:
    money.begin(money.held(), spend(1))
    with pytest.raises(IntegrityError):
        money.by_hand(f"update callkeeper.call_ledger set {change}")


def test_costs_are_rounded_up() -> None:
    assert cost_of(PRICE, input_tokens=0, output_tokens=0) == 0
    assert cost_of({"input": 1, "output": 1}, input_tokens=1, output_tokens=0) == 1
    assert cost_of(PRICE, input_tokens=1_000, output_tokens=10) == 3_150
    assert cost_of({"input": 1, "output": 1}, input_tokens=500_000, output_tokens=500_001) == 2


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 10, "output_tokens": 2}, (10, 2)),
        ({"prompt_tokens": 10, "completion_tokens": 2}, (10, 2)),
        (
            {"input_tokens": 1, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5, "output_tokens": 2},
            (10, 2),
        ),
        ({"input_tokens": 10}, None),
        ({"input_tokens": -1, "output_tokens": 2}, None),
        ({"input_tokens": "10", "output_tokens": 2}, None),
        ({"input_tokens": 10**30, "output_tokens": 2}, None),
        ({}, None),
    ],
)
def test_tokens_are_the_provider_s(usage: dict[str, Any], tokens: tuple[int, int] | None) -> None:
    assert tokens_in(usage) == tokens


def test_what_is_booked_follows_from_what_came() -> None:
    usage = {"input_tokens": 1_000_000, "output_tokens": 0}
    assert booking_of(Succeeded(text="a", usage=usage), PRICE) == Booking("ok", 3_000_000, 1_000_000, 0)
    assert booking_of(Succeeded(text="a"), PRICE) == Booking("ok", None)
    assert booking_of(Failed("output_truncated", "x", usage=usage), PRICE).cost == 3_000_000
    assert booking_of(Failed("output_missing", "x"), PRICE) == Booking("failed", None, error="output_missing")
    for fate, cost in ((Fate.NOT_SENT, 0), (Fate.REJECTED, 0), (Fate.AMBIGUOUS, None)):
        error = ProviderError("read_timeout", "x", fate=fate, remedy=Remedy.RETRY)
        assert booking_of_error(error) == Booking("failed", cost, error="read_timeout")


def test_what_was_spent_is_added_up_for_whoever_asks_in_sql(money: Money) -> None:
    for user, cost in (("ann", 30), ("ann", None), ("bob", 5)):
        job = money.held(user_id=user)
        money.finish(job, money.begin(job, spend(90)), cost=cost, input_tokens=2, output_tokens=1)
    money.begin(money.held(user_id="bob"), spend(40))
    told = money.all(
        "select user_id, calls, open, cost, reserved, estimated_share, input_tokens, output_tokens"
        " from callkeeper_audit.paid_calls order by user_id"
    )
    assert [tuple(row.values()) for row in told] == [
        ("ann", 2, 0, 120, 0, Decimal("0.7500"), 4, 2), ("bob", 2, 1, 5, 40, Decimal(0), 2, 1),
    ]  # fmt: skip
