"""Registered effects: owed by the settlement, whoever settles; delivered at least once, in order, under a stable key."""

import pytest

from actors import Ended, effects, on_cancelled, on_completed, on_failed
from store import settle
from store.models import Settlement
from store.states import State
from tests.passes.conftest import Stand
from tests.store.steps import LAPSED

SEEN: list[tuple[str, Ended]] = []
BROKEN: set[str] = set()


def _say(word: str, ended: Ended) -> None:
    if word in BROKEN:
        raise ValueError(f"{word} is broken")
    SEEN.append((word, ended))


@on_failed("chore-of-passes")
def give_back_the_slot(ended: Ended) -> None:
    _say("first", ended)


@on_failed("chore-of-passes")
def tell_the_requester(ended: Ended) -> None:
    _say("second", ended)


@on_completed("chore-of-passes")
def publish(ended: Ended) -> None:
    _say("published", ended)


@on_cancelled("chore-of-passes")
def forget(ended: Ended) -> None:
    _say("forgotten", ended)


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()
    BROKEN.clear()


def end(stand: Stand, state: State) -> object:
    lease = stand.steps.claim(stand.submit("chore-of-passes")).lease
    if state is State.COMPLETED:
        stand.rt.db.transact(settle.complete, lease, Settlement(state, result={}))
    else:
        stand.rt.db.transact(settle.end_held, lease, Settlement(state, error_code="x"))
    return lease.job_id


def deliver_all(stand: Stand) -> None:
    for _ in range(20):
        stand.steps.by_hand(
            "update callkeeper.consequences set available_at = now() where delivered_at is null and dead_at is null"
        )
        if not stand.deliver():
            owed = "delivered_at is null and dead_at is null"
            if not stand.steps.count("callkeeper.consequences", owed):
                return


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State.COMPLETED, ["published"]),
        (State.FAILED, ["first", "second"]),
        (State.TIMED_OUT, ["first", "second"]),
        (State.CANCELLED, ["forgotten"]),
    ],
)
def test_each_outcome_owes_its_own_effects_in_order(stand: Stand, state: State, words: list[str]) -> None:
    job = end(stand, state)
    deliver_all(stand)
    assert [word for word, _ in SEEN] == words
    told = SEEN[0][1]
    assert (told.job_id, told.status, told.user_id, told.visibility) == (str(job), str(state), "ann", "public")
    assert told.key.startswith(f"effect:{job}:chore-of-passes.")


def test_the_pass_owes_what_a_worker_owes(stand: Stand) -> None:
    """The business effect is in the settlement that the pass makes: none is lost between the two."""
    lease = stand.steps.claim(stand.submit("chore-of-passes"), term=LAPSED).lease
    stand.steps.start_call(lease, kind="local")
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now()")
    stand.pass_()
    assert stand.end(lease.job_id) == ("failed", "worker_lost")
    assert stand.steps.count("callkeeper.consequences") == 2, "written with the settlement, before any delivery"
    deliver_all(stand)
    assert [word for word, _ in SEEN] == ["first", "second"]


def test_a_settlement_that_rolls_back_owes_nothing(stand: Stand) -> None:
    lease = stand.steps.claim(stand.submit("chore-of-passes")).lease
    connection = stand.rt.db.engine.connect()
    with connection.begin() as transaction:
        settle.end_held(connection, lease, Settlement(State.FAILED, error_code="x"))
        transaction.rollback()
    connection.close()
    assert stand.steps.count("callkeeper.consequences") == 0
    assert stand.job(lease.job_id)["status"] == "running"
    stand.rt.db.transact(settle.end_held, lease, Settlement(State.FAILED, error_code="x"))


def test_one_that_fails_is_tried_again_under_the_same_key_and_its_successor_waits(stand: Stand) -> None:
    BROKEN.add("first")
    end(stand, State.FAILED)
    stand.deliver()
    stand.deliver()
    assert SEEN == []
    BROKEN.clear()
    deliver_all(stand)
    assert [word for word, _ in SEEN] == ["first", "second"]
    attempts = stand.steps.all("select attempts from callkeeper.consequences order by key")
    assert sorted(row["attempts"] for row in attempts) == [1, 2]


def test_one_that_never_works_is_put_aside_with_an_alert_and_the_next_one_runs(stand: Stand) -> None:
    BROKEN.add("first")
    end(stand, State.FAILED)
    deliver_all(stand)
    dead = stand.steps.one("select effect, attempts, last_error from callkeeper.consequences where dead_at is not null")
    assert (dead["effect"], dead["attempts"]) == ("app:chore-of-passes.failed.give_back_the_slot", 12)
    assert stand.alerts() == {"undelivered:consequences": 1}
    assert [word for word, _ in SEEN] == ["second"]


def test_a_worker_that_lacks_an_effects_module_leaves_it_to_another(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    end(stand, State.COMPLETED)
    with monkeypatch.context() as without:
        without.delitem(effects.EFFECTS, "chore-of-passes.completed.publish")
        stand.deliver()
    row = stand.steps.one("select delivered_at, last_error from callkeeper.consequences")
    assert row["delivered_at"] is None
    assert "CALLKEEPER_MODULES" in row["last_error"]
    deliver_all(stand)
    assert [word for word, _ in SEEN] == ["published"]


def test_effects_are_those_of_the_submit(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = stand.steps.claim(stand.submit("chore-of-passes")).lease
    monkeypatch.setitem(effects._OWED, ("chore-of-passes", "completed"), [])
    stand.rt.db.transact(settle.complete, lease, Settlement(State.COMPLETED, result={}))
    deliver_all(stand)
    assert [word for word, _ in SEEN] == ["published"]


def test_two_effects_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="already registered"):
        on_failed("chore-of-passes", name="chore-of-passes.completed.publish")(lambda ended: None)
