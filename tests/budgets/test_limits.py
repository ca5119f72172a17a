"""Limits at the start of a job: exact, whoever asks at the same time; what is full is parked, and comes back."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

from actors import admission as turns
from store import admission, budgets, outbox, settle, shutdown
from store.admission import Parked, Refused
from store.errors import BudgetInvalid
from store.models import ClaimedJob, Settlement
from store.states import State
from tests.budgets.steps import Starts
from tests.store.steps import AT_ONCE, DONE, FAILED, KIND, at_once

HOUR = timedelta(hours=1)
SCOPED = [
    ("global", ""),
    ("kind", KIND),
    ("account", "replicate/default"),
    ("user", "ann"),
    ("user", "*"),
    ("app", "shop"),
    ("app", "*"),
]


def mine(starts: Starts, **changes: Any) -> UUID:
    return starts.submit(**{"provider_kind": KIND, "user_id": "ann", "app": "shop", **changes})


@pytest.mark.parametrize(("scope", "name"), SCOPED)
def test_no_more_than_the_limit_at_once_in_any_scope(starts: Starts, scope: str, name: str) -> None:
    starts.budget("concurrency", scope, name, at_most=2)
    jobs = [mine(starts) for _ in range(4)]
    first, second = starts.start(jobs[0]), starts.start(jobs[1])
    assert first
    assert second
    assert starts.start(jobs[2]) is None
    assert starts.parked() == set(jobs) - {first.lease.job_id, second.lease.job_id}
    assert starts.release() == 0, "there is no room yet"
    starts.db.transact(settle.complete, first.lease, DONE)
    assert starts.release() == 1
    assert starts.release() == 0, "the one on its way takes the room that there is"
    third = starts.start(jobs[2])
    assert third is not None
    assert third.lease.job_id == jobs[2], "first come, first served"
    assert starts.violations() == []


@pytest.mark.parametrize(
    ("scope", "name"), [("kind", "heygen-avatar"), ("account", "replicate/other"), ("user", "bob"), ("app", "desk")]
)
def test_a_limit_speaks_of_its_own_only(starts: Starts, scope: str, name: str) -> None:
    starts.budget("concurrency", scope, name, at_most=1)
    jobs = [mine(starts) for _ in range(3)]
    assert all(starts.start(job_id) for job_id in jobs)


def test_everybody_has_a_limit_of_their_own_and_one_s_own_row_goes_first(starts: Starts) -> None:
    starts.budget("concurrency", "user", "*", at_most=1)
    starts.budget("concurrency", "user", "bob", at_most=2)
    messages = [mine(starts, user_id=user) for user in ("ann", "bob", "cid") for _ in range(3)]
    started = [starts.start(message) for message in messages]
    users = sorted(job.user_id or "" for job in started if job)
    assert users == ["ann", "bob", "bob", "cid"]


def test_a_full_tenant_is_passed(starts: Starts) -> None:
    starts.budget("concurrency", "user", "*", at_most=1)
    flood = [mine(starts) for _ in range(50)]
    assert starts.start(flood[0])
    single = mine(starts, user_id="bob")
    started = starts.start(flood[1])
    assert started is not None
    assert started.lease.job_id == single
    assert len(starts.parked()) == 49, "in one step, with a message left for each other"


def test_an_account_is_shared_by_all_kinds_of_a_vendor(starts: Starts) -> None:
    starts.budget("concurrency", "account", "replicate/default", at_most=1)
    one, two = mine(starts), mine(starts, provider_kind="replicate-training")
    assert starts.start(one)
    assert starts.start(two) is None
    other = mine(starts)
    assert isinstance(starts.asked(other, **{KIND: "second"}), ClaimedJob), "another account here"


def test_waiting_for_a_provider_takes_a_slot_and_so_does_a_cancellation_that_is_owed(starts: Starts) -> None:
    starts.budget("concurrency", "kind", KIND, at_most=1)
    waiting = starts.waiting(provider_kind=KIND)
    nxt = mine(starts)
    assert starts.start(nxt) is None
    stopped = Settlement(State.CANCELLED, error_code="cancelled")
    starts.db.transact(settle.cancel_at_rest, waiting, stopped)
    assert starts.release() == 0, "the provider has not been told yet: its task still runs"
    (owed,) = starts.db.once(outbox.claim, "consequences", at_most=5, term=HOUR)
    assert starts.db.once(outbox.mark_delivered, "consequences", [owed]) == 1
    assert starts.release() == 1
    assert starts.start(nxt)


@pytest.mark.parametrize("limit", [1, 3])
def test_sixteen_claimers_at_once_never_exceed_it(starts: Starts, limit: int) -> None:
    starts.budget("concurrency", "global", at_most=limit)
    starts.budget("concurrency", "user", "*", at_most=limit)
    jobs = [mine(starts) for _ in range(20)]
    started = at_once([lambda job_id=job_id: starts.start(job_id) for job_id in jobs[:16]])  # type: ignore[misc]
    assert len([job for job in started if job]) == limit == starts.slots()
    assert starts.violations() == []


def test_a_lost_worker_s_slot_is_its_job_s(starts: Starts) -> None:
    from store import jobs as store_jobs

    starts.budget("concurrency", "global", at_most=1)
    lost, other = mine(starts), mine(starts, user_id="bob")
    claimed = starts.start(lost)
    assert claimed
    starts.by_hand("update callkeeper.jobs set lease_until = now() - interval '1 s' where status = 'running'")
    assert starts.start(other) is None, "until the rescue has decided, its work may go on"
    assert starts.db.once(
        store_jobs.requeue_lost, claimed.lease.job_id, epoch=claimed.lease.epoch, expected_attempt=1, call_started=False
    )
    assert starts.slots() == 0
    assert starts.release() == 1


def test_limits_change_while_everything_runs(starts: Starts) -> None:
    jobs = [mine(starts) for _ in range(6)]
    assert starts.unlimited(jobs[0])
    starts.budget("concurrency", "global", at_most=2)
    assert starts.unlimited(jobs[1]) is None, "who has not heard of the limit starts nothing"
    assert starts.start(jobs[1])
    assert starts.start(jobs[2]) is None
    starts.budget("concurrency", "global", at_most=3)
    assert starts.release() == 1
    assert starts.start(jobs[2])
    starts.budget("concurrency", "global", at_most=1)
    assert starts.release() == 0
    assert starts.violations() == [], "what was started before is not against it"
    assert starts.db.once(budgets.remove_budget, "concurrency", "global", "", by="test")
    assert starts.release() == 3
    assert starts.unlimited(jobs[3])


def test_a_rate_lets_so_many_start_in_any_window(starts: Starts) -> None:
    starts.budget("rate", "account", "replicate/default", at_most=2, per=timedelta(seconds=60))
    jobs = [mine(starts) for _ in range(4)]
    assert [bool(starts.start(job_id)) for job_id in jobs[:3]] == [True, True, False]
    assert starts.release() == 0
    event = starts.one("select data from callkeeper.job_events where kind = 'parked' limit 1")["data"]
    assert event["budget"] == "rate account:replicate/default"
    assert 0 < event["opens_in"] <= 60
    starts.by_hand("update callkeeper.budgets set recent = array[now() - interval '61 s', now() - interval '59 s']")
    assert starts.release() == 1
    assert starts.start(jobs[2])
    assert starts.start(jobs[3]) is None
    assert starts.one("select cardinality(recent) as n from callkeeper.budgets")["n"] == 2


def test_spending_counts_reservations_then_charges(starts: Starts) -> None:
    account = starts.account(topup=1000)
    starts.budget("spend", "user", "*", at_most=10, per=HOUR)
    priced = {"account_id": account, "price": 6}
    first, second, free = mine(starts, **priced), mine(starts, **priced), mine(starts, price=0)
    claimed = starts.start(first)
    assert claimed
    started = starts.start(second)
    assert started is not None
    assert started.lease.job_id == free, "what costs nothing is not held up"
    assert starts.parked() == {second}
    assert starts.release() == 0
    starts.db.transact(settle.end_held, claimed.lease, FAILED)
    assert starts.release() == 1, "what was refunded is not spent"
    again = starts.start(second)
    assert again
    starts.db.transact(settle.complete, again.lease, Settlement(State.COMPLETED, result={}, cost=5))
    third = mine(starts, **priced)
    assert starts.start(third) is None, "5 are spent and 6 are wanted"
    assert starts.start(mine(starts, account_id=account, price=5)), "5 are left"
    assert starts.violations() == []


def test_what_is_spent_is_parked_until_its_window_ends_and_no_deadline_runs_on(starts: Starts) -> None:
    account = starts.account(topup=1000)
    starts.budget("spend", "user", "ann", at_most=10, per=timedelta(days=7))
    claimed = starts.start(mine(starts, account_id=account, price=10))
    assert claimed
    starts.db.transact(settle.complete, claimed.lease, DONE)
    spent = mine(starts, account_id=account, price=1)
    before = starts.row(spent)
    assert starts.start(spent) is None
    after = starts.row(spent)
    (parked,) = starts.all("select data from callkeeper.job_events where kind = 'parked' and job_id = :id", id=spent)
    assert parked["data"]["budget"] == "spend user:ann"
    assert 0 < parked["data"]["opens_in"] <= 7 * 86400
    assert after["queue_deadline_at"] > before["queue_deadline_at"]
    assert after["deadline_at"] > after["queue_deadline_at"]
    starts.by_hand("update callkeeper.spending set started_at = started_at - interval '8 days'")
    assert starts.release() == 1
    assert starts.start(spent)


def test_a_second_start_is_not_paid_for_again(starts: Starts) -> None:
    from store import jobs as store_jobs

    account = starts.account(topup=100)
    starts.budget("spend", "user", "*", at_most=10, per=HOUR)
    job_id = mine(starts, account_id=account, price=10)
    claimed = starts.start(job_id)
    assert claimed
    starts.db.once(store_jobs.requeue, claimed.lease, delay=AT_ONCE, why="shutdown")
    assert starts.start(job_id)
    assert starts.count("callkeeper.spending") == 1


def test_what_is_paid_for_is_not_parked_with_what_cannot_be_paid(starts: Starts) -> None:
    account = starts.account(topup=100)
    starts.budget("spend", "user", "*", at_most=10, per=HOUR)
    paid = mine(starts, account_id=account, price=10)
    claimed = starts.start(paid)
    assert claimed
    starts.db.once(shutdown.hand_over, [claimed.lease])
    other = mine(starts, account_id=account, price=10)
    starts.by_hand("update callkeeper.jobs set turn = 1000 where id = :id", id=paid)
    assert isinstance(starts.asked(other), Parked)
    assert starts.parked() == {other}
    started = starts.start(paid)
    assert started
    assert started.lease.job_id == paid


@pytest.mark.parametrize("limit", [1, 4])
def test_many_at_once_never_spend_more_than_the_limit(starts: Starts, limit: int) -> None:
    """Twenty admissions at the same time: reserved and charged together stay below the limit."""
    account = starts.account(topup=10_000)
    starts.budget("spend", "user", "*", at_most=limit * 5, per=HOUR)
    jobs = [mine(starts, account_id=account, price=5) for _ in range(20)]
    started = at_once([lambda job_id=job_id: starts.start(job_id) for job_id in jobs[:20]])  # type: ignore[misc]
    assert len([job for job in started if job]) == limit
    assert starts.violations() == []


@pytest.mark.parametrize(
    ("measure", "scope", "name", "at_most", "per"),
    [("concurrency", "global", "", 0, None), ("rate", "kind", KIND, 0, HOUR), ("spend", "user", "*", 4, HOUR)],
)
def test_what_can_never_fit_is_refused_at_its_turn(
    starts: Starts, measure: str, scope: str, name: str, at_most: int, per: timedelta | None
) -> None:
    job_id = mine(starts, account_id=starts.account(topup=100), price=5)
    starts.budget(measure, scope, name, at_most=at_most, per=per)
    refused = starts.asked(job_id)
    assert isinstance(refused, Refused)
    assert (refused.job_id, refused.limit) == (job_id, at_most)


def test_only_what_is_queued_ends_because_it_never_fits(starts: Starts) -> None:
    running, queued = starts.running().job_id, starts.submit()
    assert not starts.db.transact(settle.end_queued, running, FAILED)
    assert starts.db.transact(settle.end_queued, queued, FAILED)
    assert starts.row(running)["status"] == "running"


def test_what_is_parked_can_be_stopped_and_is_settled_once(starts: Starts) -> None:
    starts.budget("concurrency", "global", at_most=1)
    one, two = mine(starts), mine(starts)
    assert starts.start(one)
    assert starts.start(two) is None
    assert starts.db.transact(settle.cancel_at_rest, two, Settlement(State.CANCELLED, error_code="cancelled"))
    assert starts.parked() == set()
    assert starts.violations() == []


def test_parking_takes_what_was_delayed_into_the_line(starts: Starts) -> None:
    starts.budget("concurrency", "global", at_most=1)
    first = starts.start(mine(starts))
    later = mine(starts, delay=timedelta(hours=1))
    starts.by_hand("update callkeeper.jobs set available_at = now() where id = :id", id=later)
    assert starts.start(later) is None
    assert starts.row(later)["turn"] is not None
    assert first
    starts.db.transact(settle.complete, first.lease, DONE)
    assert starts.release() == 1


def test_what_is_parked_takes_turns_too(starts: Starts) -> None:
    starts.budget("concurrency", "kind", KIND, at_most=1)
    flood = [mine(starts) for _ in range(30)]
    running = starts.start(flood[0])
    assert starts.start(flood[1]) is None
    single = mine(starts, user_id="bob")
    assert starts.start(single) is None
    assert running
    starts.db.transact(settle.complete, running.lease, DONE)
    order = []
    for _ in range(3):
        assert starts.release() == 1
        job = starts.start(flood[2])
        assert job
        order.append(job.user_id)
        starts.db.transact(settle.complete, job.lease, DONE)
    assert "bob" in order[:2]


def test_who_changed_what_is_on_record(starts: Starts) -> None:
    starts.budget("concurrency", "user", "ann", at_most=2, by="eve")
    starts.budget("concurrency", "user", "ann", at_most=5, by="kim")
    assert starts.db.once(budgets.remove_budget, "concurrency", "user", "ann", by="kim")
    assert not starts.db.once(budgets.remove_budget, "concurrency", "user", "ann", by="kim")
    noted = [(row["changed_by"], row["was"], row["at_most"]) for row in starts.db.once(budgets.changes)]
    assert noted == [("kim", 5, None), ("kim", 2, 5), ("eve", None, 2)]


def test_what_each_has_given_out_can_be_seen(starts: Starts) -> None:
    starts.budget("concurrency", "kind", KIND, at_most=1)
    starts.budget("rate", "account", "replicate/default", at_most=10, per=HOUR)
    starts.budget("concurrency", "user", "*", at_most=9)
    starts.start(mine(starts))
    starts.start(mine(starts))
    seen = {(row.measure, row.target): (row.used, row.at_most, row.parked) for row in starts.db.once(budgets.budgets)}
    assert seen == {
        ("concurrency", f"kind:{KIND}"): (1, 1, 1),
        ("rate", "account:replicate/default"): (1, 10, 0),
        ("concurrency", "user:*"): (None, 9, 0),
    }


@pytest.mark.parametrize(
    ("measure", "scope", "name", "at_most", "per"),
    [
        ("colour", "global", "", 1, None),
        ("spend", "kind", "x", 1, HOUR),
        ("concurrency", "global", "x", 1, None),
        ("concurrency", "user", "", 1, None),
        ("rate", "global", "", 1, None),
        ("concurrency", "global", "", 1, HOUR),
        ("concurrency", "global", "", -1, None),
        ("weight", "user", "ann", 0, None),
        ("rate", "global", "", 1001, HOUR),
        ("rate", "global", "", 1, timedelta(milliseconds=10)),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(
    starts: Starts, measure: str, scope: str, name: str, at_most: int, per: timedelta | None
) -> None:
    with pytest.raises(BudgetInvalid):
        starts.budget(measure, scope, name, at_most=at_most, per=per)
    assert starts.count("callkeeper.budgets") == 0


def test_a_lapsed_limit_on_a_window_is_not_kept_for_ever(starts: Starts) -> None:
    starts.budget("rate", "global", at_most=3, per=timedelta(seconds=1))
    for _ in range(3):
        starts.start(mine(starts))
    assert starts.one("select cardinality(recent) as n from callkeeper.budgets")["n"] == 3
    starts.budget("rate", "global", at_most=2, per=timedelta(seconds=1))
    with starts.db.engine.connect() as connection:
        connection.execute(sa.text("select pg_sleep(1.1)"))  # the window is real time, and passes in the database
    assert starts.start(mine(starts))
    assert starts.one("select cardinality(recent) as n from callkeeper.budgets")["n"] == 2


def test_a_start_that_does_not_come_about_is_not_counted(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    starts.budget("rate", "kind", KIND, at_most=1, per=HOUR)
    job = mine(starts)
    monkeypatch.setattr(admission, "claim_queued", lambda *_, **__: None)
    assert starts.asked(job) is None
    monkeypatch.undo()
    started = starts.start(job)
    assert started is not None, "the one start of this hour was still to be had"


def test_none_is_forgotten_behind_full_budgets_that_stay_full(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    """More full budgets than one look takes: the next look goes on behind them, and begins anew after the last."""
    monkeypatch.setattr(turns, "_KEYS", 5)
    starts.budget("concurrency", "user", "*", at_most=1)
    users = [f"user{number:02}" for number in range(12)]
    first = {user: mine(starts, user_id=user) for user in users}
    second = {user: mine(starts, user_id=user) for user in users}
    leases = {}
    for _ in users:
        claimed = starts.start(first["user00"])
        assert claimed is not None
        leases[claimed.user_id] = claimed.lease
    assert starts.start(second["user00"]) is None
    assert starts.parked() == set(second.values())
    here = turns.Admission(SimpleNamespace(db=starts.db, options=SimpleNamespace(accounts={})))  # type: ignore[arg-type]
    starts.db.transact(settle.complete, leases["user11"], DONE)
    assert [here.look() for _ in range(3)] == [0, 0, 1], "five, five, and the one of the last two that has room"
    starts.db.transact(settle.complete, leases["user00"], DONE)
    assert here.look() == 1, "from the start again"
    assert starts.parked() == set(second.values()) - {second["user11"], second["user00"]}
