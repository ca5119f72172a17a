"""The settlement: everything that ends with a job ends at once, whoever raced it and whatever words it brought."""

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from store import calls, jobs, outbox, receipts, settle, signals
from store.errors import LeaseLost
from store.models import NewAsset, Settlement
from store.states import State
from tests.store.steps import DONE, FAILED, FAR, TERM, Steps, at_once, pid_of, wait_until_blocked

CANCELLED = Settlement(State.CANCELLED, error_code="cancelled")


@pytest.mark.parametrize(
    ("cost", "charged", "left"),
    [
        (None, (5, 3), (0, 7)),  # no cost: the whole reservation
        (0, (0, 0), (5, 10)),
        (3, (3, 0), (2, 10)),  # top-up was drawn last and comes back first
        (5, (5, 0), (0, 10)),
        (6, (5, 1), (0, 9)),
        (8, (5, 3), (0, 7)),
        (9, (5, 3), (0, 7)),  # never above the reservation
    ],
)
def test_cost_is_charged_and_the_surplus_returned_last_drawn_first(
    steps: Steps, cost: int | None, charged: tuple[int, int], left: tuple[int, int]
) -> None:
    account = steps.account(subscription=5, topup=10)
    lease = steps.running(account_id=account, price=8)
    assert steps.pools(account) == {"granted": (5, 10), "balance": (0, 7), "reserved": (5, 3), "committed": (0, 0)}
    steps.db.transact(settle.complete, lease, Settlement(State.COMPLETED, result={}, cost=cost))
    assert steps.pools(account) == {"granted": (5, 10), "balance": left, "reserved": (0, 0), "committed": charged}
    usage = steps.one("select * from callkeeper.usage_logs where job_id = :id", id=lease.job_id)
    assert (usage["status"], usage["cost"]) == ("committed", cost)
    assert (usage["committed_subscription"], usage["committed_topup"]) == charged
    assert steps.count("callkeeper.alerts") == (cost == 9)
    assert steps.violations() == []


def test_a_cost_above_the_reservation_raises_one_alert_that_counts(steps: Steps) -> None:
    account = steps.account(topup=100)
    for cost in (7, 8):
        lease = steps.running(account_id=account, price=6)
        steps.db.transact(settle.complete, lease, Settlement(State.COMPLETED, result={}, cost=cost))
    alert = steps.one("select * from callkeeper.alerts")
    assert (alert["subject"], alert["times"], alert["details"]["cost"]) == ("cost-above-reservation:picture", 2, 8)


@pytest.mark.parametrize("state", [State.FAILED, State.TIMED_OUT, State.CANCELLED])
def test_whatever_did_not_complete_is_refunded_exactly(steps: Steps, state: State) -> None:
    account = steps.account(subscription=5, topup=10)
    before = steps.pools(account)
    lease = steps.running(account_id=account, price=8)
    steps.db.transact(settle.end_held, lease, Settlement(state, error_code="made_to", cost=30))
    assert steps.pools(account) == before
    assert steps.count("callkeeper.alerts") == 0
    assert steps.violations() == []


def test_everything_that_ends_with_a_job_is_written_with_it(steps: Steps) -> None:
    lease = steps.took_result(user_id="u")
    steps.db.transact(signals.request_stop, lease.job_id)
    files = [NewAsset(f"media/{n}", "image/png", 10, f"{n}" * 64) for n in (1, 2)]
    result = {"media": [{"n": 1}, {"n": 2}]}
    done = Settlement(State.COMPLETED, result=result, assets=files, details={"took": 3})
    steps.db.transact(settle.complete, lease, done)
    row = steps.row(lease.job_id)
    assert (row["status"], row["result"], row["error_code"], row["progress"]) == ("completed", result, None, 1.0)
    assert (row["lease_token"], row["next_poll_at"], row["next_check_at"]) == (None, None, None)
    assert row["finished_at"] is not None
    event = steps.one(
        "select * from callkeeper.job_events where job_id = :id and seq = :seq", id=row["id"], seq=row["event_seq"]
    )
    assert (event["kind"], event["data"], event["epoch"]) == ("completed", {"took": 3}, row["epoch"])
    notice = steps.one("select * from callkeeper.notices")
    assert (notice["key"], notice["user_id"], notice["body"]["status"]) == (f"job-ended:{row['id']}", "u", "completed")
    keys = steps.all("select object_key from callkeeper.assets order by position")
    assert [one["object_key"] for one in keys] == ["media/1", "media/2"]
    assert steps.count("callkeeper.job_signals", "consumed_at is null") == 0
    assert steps.count("callkeeper.job_signals") == 1
    assert steps.violations() == []


def test_a_settlement_that_cannot_be_written_leaves_nothing(steps: Steps) -> None:
    account = steps.account(topup=9)
    lease = steps.running(account_id=account, price=4)
    before = (steps.row(lease.job_id), steps.pools(account), steps.events(lease.job_id))
    half = NewAsset("media/half", "image/png", 0, "a" * 64)
    broken = Settlement(State.COMPLETED, result={"media": [{}]}, assets=[half])
    with pytest.raises(IntegrityError, match="assets_are_whole"):
        steps.db.transact(settle.complete, lease, broken)
    assert (steps.row(lease.job_id), steps.pools(account), steps.events(lease.job_id)) == before
    assert steps.count("callkeeper.notices") == 0


def test_a_stop_that_committed_while_the_settlement_waited_is_consumed(steps: Steps) -> None:
    """The settlement's first statement waits for the stop's row lock; its second must see the stop's signal."""
    lease = steps.running()
    engine = steps.db.engine
    with engine.connect() as stopper, engine.connect() as worker:
        assert signals.request_stop(stopper, lease.job_id) is State.RUNNING
        pid = pid_of(worker)
        settling = threading.Thread(target=lambda: (settle.complete(worker, lease, DONE), worker.commit()))
        settling.start()
        wait_until_blocked(engine, pid)
        stopper.commit()
        settling.join()
    assert steps.row(lease.job_id)["status"] == "completed"
    assert steps.count("callkeeper.job_signals", "consumed_at is null") == 0
    assert steps.count("callkeeper.job_signals") == 1
    assert steps.violations() == []


def test_a_stop_that_waited_for_the_settlement_leaves_no_signal(steps: Steps) -> None:
    lease = steps.running()
    engine = steps.db.engine
    heard: list[Any] = []
    with engine.connect() as stopper, engine.connect() as worker:
        settle.complete(worker, lease, DONE)
        pid = pid_of(stopper)
        stopping = threading.Thread(
            target=lambda: (heard.append(signals.request_stop(stopper, lease.job_id)), stopper.commit())
        )
        stopping.start()
        wait_until_blocked(engine, pid)
        worker.commit()
        stopping.join()
    assert heard == [State.COMPLETED]
    assert steps.count("callkeeper.job_signals") == 0


def test_a_refund_by_hand_while_the_settlement_waited_is_not_paid_twice(steps: Steps) -> None:
    account = steps.account(topup=9)
    lease = steps.running(account_id=account, price=4)
    engine = steps.db.engine
    with engine.connect() as hand, engine.connect() as worker:
        hand.execute(sa.text("update callkeeper.usage_logs set status = 'refunded', settled_at = now()"))
        hand.execute(sa.text("update callkeeper.accounts set balance_topup = 9, reserved_topup = 0"))
        pid = pid_of(worker)
        settling = threading.Thread(target=lambda: (settle.complete(worker, lease, DONE), worker.commit()))
        settling.start()
        wait_until_blocked(engine, pid)
        hand.commit()
        settling.join()
    assert steps.row(lease.job_id)["status"] == "completed"
    assert steps.pools(account)["balance"] == (0, 9)
    assert steps.one("select status from callkeeper.usage_logs")["status"] == "refunded"


def owes_cancel(steps: Steps) -> list[Any]:
    return steps.db.once(outbox.claim, "consequences", term=TERM)


def test_an_upstream_cancel_is_owed_for_a_task_that_may_still_run(steps: Steps) -> None:
    job_id = steps.waiting(task="still-running")
    assert steps.db.transact(signals.request_stop, job_id) is State.CANCELLED
    (owed,) = owes_cancel(steps)
    assert (owed.key, owed.effect) == (f"cancel-upstream:{job_id}:still-running", "cancel_upstream")
    assert owed.body == {"kind": "replicate-prediction", "task_id": "still-running", "handle": {"account": "default"}}


def test_no_upstream_cancel_is_owed_for_what_ended_or_was_never_known(steps: Steps) -> None:
    steps.db.transact(settle.end_polled, steps.poll(steps.waiting()), FAILED, upstream_ended=True)
    steps.db.transact(settle.end_polled, steps.poll(steps.ambiguous()), CANCELLED, upstream_ended=False)
    steps.db.transact(settle.complete, steps.took_result(), DONE)
    assert steps.db.transact(signals.request_stop, steps.result_known()) is State.CANCELLED
    assert steps.db.transact(signals.request_stop, steps.submit()) is State.CANCELLED
    steps.db.transact(settle.end_held, steps.calling(mode="sync"), CANCELLED, upstream_ended=False)
    assert owes_cancel(steps) == []
    assert steps.violations() == []


def test_the_id_of_a_synchronous_answer_is_kept_once(steps: Steps) -> None:
    lease = steps.running(mode="sync")
    call = steps.start_call(lease)
    steps.db.once(receipts.keep_receipt, lease.job_id, call, "msg_1", source="response")
    steps.db.transact(settle.complete, lease, Settlement(State.COMPLETED, result={}, provider_id="msg_1"))
    assert steps.db.once(receipts.receipts_of, lease.job_id, generation=1) == ["msg_1"]
    local = steps.running(mode="local")
    steps.db.transact(settle.complete, local, Settlement(State.COMPLETED, result={}, provider_id="msg_2"))
    assert steps.count("callkeeper.call_receipts") == 1


class Rude:
    """Something a provider's error may drag along."""

    def __str__(self) -> str:
        return "not\x00 text \ud800"


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = [value]
    return value


WORDS: dict[str, dict[str, Any]] = {
    "nul": {"error_message": "a\x00b"},
    "surrogate": {"error_message": "a\ud800b"},
    "five megabytes": {"error_message": "ü" * 5_000_000},
    "four bytes a letter": {"error_message": "😀" * 5_000},
    "nul in the code": {"error_code": "a\x00b"},
    "surrogate in the code": {"error_code": "a\ud800b"},
    "a long code of long letters": {"error_code": "é" * 200},
    "no code": {"error_code": None},
    "an empty code": {"error_code": ""},
    "nul in the details": {"details": {"a\x00": "b\x00", "c": ["\ud800"]}},
    "not a number": {"details": {"a": float("nan"), "b": float("inf")}},
    "a huge number": {"details": {"a": 10**6_000}},
    "something rude": {"details": {"a": Rude()}},
    "too deep for Python": {"details": {"a": deep(50_000)}},
    "too deep for Postgres": {"details": {"a": deep(800)}},
}


@pytest.mark.parametrize("words", WORDS)
def test_a_failure_can_always_be_written(steps: Steps, words: str) -> None:
    account = steps.account(topup=5)
    lease = steps.running(account_id=account, price=5)
    plain: dict[str, Any] = {"status": State.FAILED, "error_code": "provider_failed", "error_message": "no"}
    steps.db.transact(settle.end_held, lease, Settlement(**{**plain, **WORDS[words]}))
    row = steps.row(lease.job_id)
    assert row["status"] == "failed"
    assert row["error_code"]
    assert len((row["error_message"] or "").encode()) <= 4096
    assert steps.pools(account)["balance"] == (0, 5)
    assert steps.violations() == []


def test_the_last_resort_stores_the_code_alone(fresh: Steps) -> None:
    """A constraint that no words can satisfy stands for everything we did not think of."""
    lease = fresh.running()
    fresh.by_hand("alter table callkeeper.jobs add constraint no_words check (error_message is null)")
    fresh.db.transact(settle.end_held, lease, FAILED)
    row = fresh.row(lease.job_id)
    assert (row["status"], row["error_code"], row["error_message"]) == ("failed", "provider_failed", None)
    assert fresh.events(lease.job_id)[-1] == "failed"


def test_a_success_that_cannot_be_written_is_not_made_bare(steps: Steps) -> None:
    lease = steps.running()
    with pytest.raises(IntegrityError, match="jobs_completed_has_result"):
        steps.db.transact(settle.end_held, lease, Settlement(State.COMPLETED, result=None))
    with pytest.raises(RecursionError):
        steps.db.transact(settle.end_held, lease, Settlement(State.COMPLETED, result={"a": deep(50_000)}))
    assert steps.row(lease.job_id)["status"] == "running"


def test_complete_against_stop_has_one_outcome(steps: Steps) -> None:
    """500 tries, each a real race: the holder completes while somebody stops the job and its recovery ends it."""
    account = steps.account(subscription=700, topup=300)
    outcomes: dict[str, int] = {}
    batch = 50
    for _ in range(500 // batch):
        leases = [steps.took_result(account_id=account, price=2) for _ in range(batch // 2)]
        leases += [steps.claim(steps.submit(account_id=account, price=2)).lease for _ in range(batch // 2)]
        barrier = threading.Barrier(3)
        by_lapse = Settlement(State.FAILED, error_code="worker_lost")

        def complete(leases: Any = leases, barrier: Any = barrier) -> int:
            barrier.wait()
            return sum(_tried(steps.db.transact, settle.complete, lease, DONE) for lease in leases)

        def stop(leases: Any = leases, barrier: Any = barrier) -> int:
            barrier.wait()
            for lease in leases:
                steps.db.transact(signals.request_stop, lease.job_id)
            return sum(_tried(steps.db.transact, settle.end_held, lease, CANCELLED) for lease in leases[::2])

        def lapse(leases: Any = leases, barrier: Any = barrier, outcome: Any = by_lapse) -> int:
            barrier.wait()
            ended = 0
            for lease in leases[::3]:
                steps.db.once(jobs.abandon, lease)
                ended += steps.db.transact(settle.end_lapsed, lease.job_id, epoch=lease.epoch, outcome=outcome)
            return ended

        assert sum(at_once([complete, stop, lapse])) == batch, "each job had exactly one end"
        for row in steps.all(
            "select status from callkeeper.jobs where id = any(:ids)", ids=[one.job_id for one in leases]
        ):
            outcomes[row["status"]] = outcomes.get(row["status"], 0) + 1
    assert sum(outcomes.values()) == 500
    assert set(outcomes) <= {"completed", "cancelled", "failed"}
    assert len(outcomes) > 1, "a race that one side always wins is none"
    ends = steps.count("callkeeper.job_events", "kind in ('completed', 'failed', 'cancelled', 'timed_out')")
    assert ends == 500
    committed = 2 * outcomes["completed"]
    pools = steps.pools(account)
    assert sum(pools["committed"]) == committed
    assert sum(pools["balance"]) == 1000 - committed
    assert pools["reserved"] == (0, 0)
    assert steps.violations() == []


def _tried(verb: Any, *args: Any) -> bool:
    try:
        verb(*args)
    except LeaseLost:
        return False
    return True


ENDS = ("complete", "end_held", "request_stop")


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(ENDS, 2)))
def test_a_second_end_changes_nothing(steps: Steps, first: str, second: str) -> None:
    lease = steps.took_result() if first != "request_stop" else None
    job_id = lease.job_id if lease else steps.result_known()
    ways = {
        "complete": lambda: _tried(lambda: steps.db.transact(settle.complete, lease or steps.lease_of(job_id), DONE)),
        "end_held": lambda: _tried(
            lambda: steps.db.transact(settle.end_held, lease or steps.lease_of(job_id), CANCELLED)
        ),
        "request_stop": lambda: steps.db.transact(signals.request_stop, job_id),
    }
    ways[first]()
    before = (steps.row(job_id), steps.events(job_id))
    assert before[0]["finished_at"] is not None
    ways[second]()
    assert (steps.row(job_id), steps.events(job_id)) == before
    assert steps.violations() == []


def test_a_job_past_its_deadline_ends_whoever_holds_it(steps: Steps) -> None:
    lease = steps.running(run_limit=timedelta(0))
    outcome = Settlement(State.TIMED_OUT, error_code="deadline")
    assert steps.db.transact(settle.end_overdue, lease.job_id, epoch=1, outcome=outcome)
    with pytest.raises(LeaseLost):
        steps.db.transact(settle.complete, lease, DONE)
    assert steps.db.once(jobs.renew, [lease], term=FAR) == {}


@pytest.mark.parametrize(("cancels", "word", "owed"), [(True, "cancel_owed", 1), (False, "left_running", 0)])
def test_event_says_what_becomes_of_the_call_that_was_left(steps: Steps, cancels: bool, word: str, owed: int) -> None:
    lease = steps.running()
    handle = {"account": "default", "cancels": cancels}
    steps.db.once(calls.mark_call_started, lease, kind="replicate-prediction", handle=handle, quiet=FAR)
    steps.db.once(calls.checkpoint_call, lease, "left", first_poll=FAR)
    assert steps.db.transact(signals.request_stop, lease.job_id) is State.CANCELLED
    event = steps.one("select * from callkeeper.job_events where job_id = :id and kind = 'cancelled'", id=lease.job_id)
    assert event["data"]["upstream"] == word
    assert steps.count("callkeeper.consequences") == owed
    assert steps.violations() == []
