"""Priced calls with real workers, real kills and a provider that does not stop when we hang up."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from store import budgets, emergency_stop
from tests.budgets import priced
from tests.budgets.spending import DAY
from tests.chaos.harness import ROOT, Fleet, until
from tests.chaos.test_deadlines import until_passed

MODULES = ("tests.chaos.kit", "tests.budgets.priced")


@pytest.fixture
def shop(fleet: Fleet) -> Iterator[Fleet]:
    """A fleet without what earlier tests spent."""
    yield fleet
    fleet.do("delete from callkeeper.emergency_stop")
    fleet.do("delete from callkeeper.budgets")


def rows(fleet: Fleet, job_id: UUID) -> list[Mapping[str, Any]]:
    return fleet.rows("select * from callkeeper.call_ledger where job_id = :id order by generation", id=job_id)


def priced_by_tokens(row: Mapping[str, Any]) -> bool:
    """What the provider counted, at the frozen price, and nothing guessed."""
    micro = row["input_tokens"] * priced.PRICE["input"] + row["output_tokens"] * priced.PRICE["output"]
    return row["cost"] == -(-micro // 10**6) > 0 and not row["estimated"]


def slow_first(fleet: Fleet, seconds: float) -> None:
    fleet.sandbox.script({"rules": [{"when": {"route": "message", "nth": [1]}, "do": {"reply_delay": seconds}}]})


def slots(fleet: Fleet) -> int:
    return int(fleet.one("select count(*) as n from callkeeper.slots")["n"])


def command(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "actors.cli", *words],
        cwd=ROOT,
        env=fleet.env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_t10_a_stray_call_counts_until_it_ends_and_only_books_what_it_cost(shop: Fleet) -> None:
    """The deadline passes, the job may run again; the first answer comes late, and then there is room."""
    shop.db.once(budgets.set_budget, "concurrency", "kind", "anthropic-sync", at_most=1, per=None, by="test")
    slow_first(shop, 9)
    # It beats once a minute, so it learns of nothing while it waits; the other one only looks after what is late.
    shop.spawn(modules=MODULES, env={"CALLKEEPER_BEAT": "60", "CALLKEEPER_LEASE": "200"})
    shop.spawn(modules=MODULES, queues=("maintenance",))
    job_id = shop.submit("priced-words", prompt="stray.")
    until(lambda: shop.creates("stray.") == 1, what="the first call")
    until(lambda: shop.job(job_id)["parked_on"], what="the slot's giving back, and no room for the next call")
    assert (shop.job(job_id)["attempt"], shop.creates("stray."), slots(shop)) == (2, 1, 1)
    assert [row["status"] for row in rows(shop, job_id)] == ["open"]
    shop.until_status(job_id, "completed", within=30)
    first, second = rows(shop, job_id)
    assert (first["status"], second["status"]) == ("ok", "ok")
    assert first["finished_at"] < second["started_at"], "one at a time, by the provider's count as by ours"
    assert priced_by_tokens(first)
    assert priced_by_tokens(second)
    assert shop.job(job_id)["epoch"] == second["epoch"] == 2, "the late answer wrote nothing to the job"
    assert shop.stale_writes(), "and was refused"
    assert slots(shop) == 0
    shop.check()


def test_t26_a_killed_worker_s_call_is_an_estimate_and_stops_nothing(shop: Fleet) -> None:
    shop.db.once(emergency_stop.set_stop, amount=2 * priced.RESERVE, per=DAY, warn_at=100, by="test")
    slow_first(shop, 60)
    dead = shop.spawn(modules=MODULES)
    lost = shop.submit("priced-words-once", prompt="lost.")
    until(lambda: shop.creates("lost.") == 1, what="the call")
    dead.kill()
    shop.spawn(modules=MODULES)
    shop.until_status(lost, "failed")
    (row,) = rows(shop, lost)
    assert row["status"] == "open", "the provider may be at it still"
    shop.do("update callkeeper.call_ledger set until = now() where job_id = :id", id=lost)
    until_passed(shop, "book_lost_calls")
    (row,) = rows(shop, lost)
    assert (row["status"], row["cost"], row["estimated"]) == ("unknown", priced.RESERVE, True)
    other = shop.submit("priced-words-once", prompt="goes on.")
    shop.until_status(other, "completed")
    assert all(priced_by_tokens(row) for row in rows(shop, other))
    shop.check()


def test_t25_a_stop_that_is_reached_fails_what_has_a_price_until_it_is_released(shop: Fleet) -> None:
    shop.db.once(emergency_stop.set_stop, amount=2 * priced.RESERVE, per=DAY, by="test")
    shop.spawn(modules=MODULES)
    first = shop.submit("priced-words-once", prompt="the last one.")
    shop.until_status(first, "completed")
    shop.do("update callkeeper.spending_hours set cost = cost + 20000")
    refused = [shop.submit("priced-words-once", prompt="refused.") for _ in range(5)]
    free = shop.words("without a price.")
    for job_id in refused:
        shop.until_status(job_id, "failed")
        assert shop.job(job_id)["error_code"] == "emergency_stop"
        assert (shop.charged(job_id), rows(shop, job_id)) == (("refunded", 0), [])
    shop.until_status(free, "completed")
    assert (shop.creates("refused."), shop.alerts()["emergency_stop"]) == (0, 1)
    told = command(shop, "emergency-stop", "release", "--why", "it has to go on")
    assert (told.returncode, "are used in its window" in told.stderr) == (4, True), told.stderr
    shop.do("update callkeeper.spending_hours set cost = cost - 20000")
    released = command(shop, "emergency-stop", "release", "--by", "ann", "--why", "a test, and it is over")
    assert released.returncode == 0, released.stderr
    again = shop.submit("priced-words-once", prompt="again.")
    shop.until_status(again, "completed")
    assert shop.db.once(emergency_stop.history)[0]["why"] == "a test, and it is over"
    shop.check()


def test_a_call_that_waits_for_others_reservations_goes_back_and_runs_when_they_end(shop: Fleet) -> None:
    """And a stop hangs up on the call, whose reserve is ours."""
    shop.db.once(emergency_stop.set_stop, amount=priced.RESERVE * 3 // 2, per=DAY, warn_at=100, by="test")
    slow_first(shop, 60)
    first = shop.spawn(modules=MODULES)
    ahead = shop.submit("priced-words-once", prompt="ahead.")
    until(lambda: shop.creates("ahead.") == 1, what="the call that sets most of it aside")
    waits = shop.submit("priced-words-once", prompt="waits.")
    until(lambda: "requeued" in shop.events(waits), what="its going back")
    assert (shop.job(waits)["attempt"], rows(shop, waits), shop.creates("waits.")) == (1, [], 0)
    chore = shop.chore()
    shop.until_status(chore, "completed")
    shop.stop(ahead)
    shop.until_status(ahead, "cancelled")
    assert [(row["status"], row["error"]) for row in rows(shop, ahead)] == [("open", "cancelled")], "we hung up"
    shop.do("update callkeeper.call_ledger set until = now() where job_id = :id", id=ahead)
    shop.do("update callkeeper.emergency_stop set amount = amount * 2")
    until_passed(shop, "book_lost_calls")
    assert [(row["status"], row["estimated"]) for row in rows(shop, ahead)] == [("aborted", True)]
    shop.until_status(waits, "completed", within=40)
    assert shop.job(waits)["attempt"] == 1
    assert first.alive
    shop.check()
