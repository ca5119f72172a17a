"""The emergency stop: exact under any number of claimers, latched when it is reached, opened by a person with a reason."""

from datetime import timedelta

import pytest

from store import call_ledger, emergency_stop, metrics
from store.errors import (
    EmergencyStopInvalid,
    SpendingInsufficient,
    SpendingRefused,
    SpendingReserved,
    SpendingStopped,
)
from store.models import CallState
from tests.budgets.spending import DAY, Money, spend
from tests.store.steps import at_once


def test_it_is_off_until_it_is_set_and_costs_nothing_then(money: Money) -> None:
    assert money.db.once(emergency_stop.read) is None
    money.begin(money.held(), spend(2**40))


def test_t25_reached_it_latches_with_one_alert_and_only_a_reasoned_release_opens_it(money: Money) -> None:
    money.stop(1000)
    job = money.held()
    state = money.begin(job, spend(900))
    assert money.finish(job, state, cost=1000), "it cost more than was set aside"
    later = [money.held() for _ in range(6)]
    refusals = at_once([lambda job=job: money.ask(job, spend(1)) for job in later])  # type: ignore[misc]
    assert all(isinstance(refusal, SpendingStopped) and not refusal.retryable for refusal in refusals)
    assert money.alerts() == {"emergency_stop": 1}
    money.db.transact(emergency_stop.look)
    assert money.alerts() == {"emergency_stop": 1}
    with pytest.raises(EmergencyStopInvalid, match="1000 of 1000 micro-USD are used"):
        money.db.transact(emergency_stop.release, by="ann", why="looked into it")
    money.by_hand("update callkeeper.spending_hours set hour = hour - interval '2 days'")
    assert isinstance(money.ask(later[0], spend(1)), SpendingStopped), "time alone does not open it"
    for by, why in (("ann", " "), ("", "because")):
        with pytest.raises(EmergencyStopInvalid, match="is empty"):
            money.db.transact(emergency_stop.release, by=by, why=why)
    assert money.db.transact(emergency_stop.release, by="ann", why="looked into it")
    assert not money.db.transact(emergency_stop.release, by="ann", why="again")
    assert money.alerts() == {}
    assert isinstance(money.ask(later[0], spend(1)), CallState)
    told = [(row["what"], row["by"], row["why"], row["used"]) for row in money.db.once(emergency_stop.history)]
    assert told == [
        ("released", "ann", "looked into it", 0), ("stopped", "callkeeper", "", 1000), ("set", "test", "", None),
    ]  # fmt: skip


def test_a_refused_call_left_nothing_and_its_job_is_still_held(money: Money) -> None:
    money.stop(10)
    job = money.held()
    assert isinstance(money.ask(job, spend(11)), SpendingInsufficient)
    assert money.count("callkeeper.call_ledger") == 0
    assert money.row(job.job_id)["provider_call_started_at"] is None
    money.begin(job, spend(10))


def test_what_is_set_aside_by_others_is_waited_for_and_what_never_fits_is_not(money: Money) -> None:
    money.stop(1000)
    job = money.held()
    state = money.begin(job, spend(800))
    other = money.held()
    waits = money.ask(other, spend(300))
    assert isinstance(waits, SpendingReserved)
    assert waits.retryable
    assert waits.retry_after
    refused = money.ask(other, spend(1001))
    assert isinstance(refused, SpendingInsufficient)
    assert not refused.retryable
    assert money.seen().latched_at is None
    money.finish(job, state, cost=100)
    assert isinstance(money.ask(other, spend(300)), CallState)
    assert money.violations() == []


def test_the_next_call_of_a_job_is_asked_as_well(money: Money) -> None:
    money.stop(1000)
    job = money.held()
    money.finish(job, money.begin(job, spend(600)), cost=600)
    assert isinstance(money.ask(job, spend(600), next_call=True), SpendingRefused)
    assert money.begin(job, spend(400), next_call=True).generation == 2


def test_many_at_once_never_reserve_and_spend_more_than_it_allows(money: Money) -> None:
    """Twenty-four begin at once and book at once, some more than once; what was let in fits."""
    money.stop(1000, warn_at=100)
    held = [money.held() for _ in range(24)]

    def call(number: int) -> bool:
        begun = money.ask(held[number], spend(100))
        if not isinstance(begun, CallState):
            return False
        stop = money.seen()
        assert stop.used + stop.reserved <= 1000
        money.finish(held[number], begun, cost=None if number % 2 else 90)
        return True

    let_in = at_once([lambda number=number: call(number) for number in range(24)])  # type: ignore[misc]
    assert 10 <= sum(let_in) <= 11
    assert 900 <= money.seen().used <= 1000
    assert money.violations() == []


def test_a_crash_of_unknown_cost_stops_nothing(money: Money) -> None:
    money.stop(1000)
    lost = money.held()
    money.begin(lost, spend(300))
    money.age(lost)
    assert isinstance(money.ask(money.held(), spend(800)), SpendingReserved)
    assert money.db.once(call_ledger.close_overdue) == 1
    assert money.seen().used == 300
    assert isinstance(money.ask(money.held(), spend(700)), CallState), "the rest can be spent"
    assert money.seen().latched_at is None


def test_a_window_moves_by_the_hour(money: Money) -> None:
    money.stop(1000, per=timedelta(hours=3))
    job = money.held()
    money.finish(job, money.begin(job, spend(400)), cost=400)
    assert money.seen().used == 400
    money.by_hand("update callkeeper.spending_hours set hour = date_bin('1 h', now() - interval '3 h', hour)")
    assert money.seen().used == 400, "its first hour counts whole"
    money.by_hand("update callkeeper.spending_hours set hour = hour - interval '1 h'")
    assert money.seen().used == 0


def test_near_it_one_alert_is_raised_and_goes_when_it_is_far_again(money: Money) -> None:
    money.stop(1000, warn_at=50)
    job = money.held()
    money.finish(job, money.begin(job, spend(600)), cost=600)
    assert not money.db.transact(emergency_stop.look)
    assert not money.db.transact(emergency_stop.look)
    assert money.alerts() == {"emergency_stop_near": 1}
    money.by_hand("update callkeeper.spending_hours set hour = hour - interval '2 days'")
    money.db.transact(emergency_stop.look)
    assert money.alerts() == {}


def test_a_pass_latches_it_though_nobody_begins(money: Money) -> None:
    money.stop(100)
    job = money.held()
    money.finish(job, money.begin(job, spend(100)), cost=100)
    assert money.db.transact(emergency_stop.look)
    assert money.alerts() == {"emergency_stop": 1}


def test_it_is_changed_while_latched_and_stays_so(money: Money) -> None:
    money.stop(100)
    job = money.held()
    money.finish(job, money.begin(job, spend(100)), cost=100)
    money.db.transact(emergency_stop.look)
    money.stop(5000)
    assert isinstance(money.ask(money.held(), spend(1)), SpendingStopped)
    assert money.db.transact(emergency_stop.release, by="ann", why="raised")
    money.begin(money.held(), spend(1))
    with pytest.raises(EmergencyStopInvalid, match="why is empty"):
        money.db.transact(emergency_stop.remove_stop, by="ann", why="")
    assert money.db.transact(emergency_stop.remove_stop, by="ann", why="no more")
    assert not money.db.transact(emergency_stop.remove_stop, by="ann", why="no more")
    money.begin(money.held(), spend(2**50))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"amount": 0}, "amount 0"), ({"amount": 2**63}, "amount"), ({"per": timedelta(minutes=1)}, "per 0:01"),
        ({"per": timedelta(days=32)}, "per 32"), ({"warn_at": 0}, "warn-at 0"), ({"warn_at": 101}, "warn-at 101"),
    ],
)  # fmt: skip
def test_what_cannot_be_set_is_refused_by_name(money: Money, changes: dict[str, object], words: str) -> None:
    with pytest.raises(EmergencyStopInvalid, match=words):
        money.db.once(emergency_stop.set_stop, **{"amount": 1, "per": DAY, "by": "test", **changes})  # type: ignore[arg-type]


def test_more_let_in_than_it_allows_is_a_violation(money: Money) -> None:
    money.begin(money.held(), spend(500))
    money.stop(499)
    assert money.violations() == [], "it was there before the stop"
    money.by_hand("update callkeeper.emergency_stop set changed_at = now() - interval '1 minute'")
    assert [row["invariant"] for row in money.violations()] == [13]


def test_hours_that_do_not_add_up_are_a_violation(money: Money) -> None:
    job = money.held()
    money.finish(job, money.begin(job, spend(500)), cost=5)
    money.by_hand("update callkeeper.spending_hours set cost = cost + 1")
    assert [row["invariant"] for row in money.violations()] == [13]


def test_what_it_stands_at_is_measured(money: Money) -> None:
    assert not [one for one in money.db.once(metrics.samples) if one.name.startswith("emergency_stop")]
    money.stop(1000)
    job = money.held()
    money.finish(job, money.begin(job, spend(900)), cost=700)
    money.begin(job, spend(200), next_call=True)
    told = {(one.name, *one.labels.values()): one.value for one in money.db.once(metrics.samples)}
    stands = [told["emergency_stop_micro_usd", of] for of in ("amount", "used", "reserved")]
    assert stands == [1000, 700, 200]
    assert told["emergency_stop_latched",] == 0
