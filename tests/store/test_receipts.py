"""Task ids learned too late: what they stand for runs on for nobody, so its cancel is owed, by whichever way they came."""

import queue
from collections.abc import Callable
from typing import Any

import pytest

from store import calls, inbox, outbox, receipts, settle, watches
from store.models import CallState, Lease
from tests.store.steps import DONE, FAILED, FAR, TERM, Steps, at_once, pid_of, wait_until_blocked


def watched(steps: Steps) -> list[str]:
    rows = steps.all("select provider_task_id from callkeeper.upstream_watches order by provider_task_id")
    return [row["provider_task_id"] for row in rows]


def owed(steps: Steps) -> list[str]:
    return [one.body["task_id"] for one in steps.db.once(outbox.claim, "consequences", term=TERM)]


def given_up(steps: Steps, **changes: Any) -> tuple[Lease, CallState]:
    """A call whose outcome was never learned, and the job it failed."""
    lease = steps.running(**changes)
    call = steps.start_call(lease)
    steps.db.transact(settle.end_held, lease, FAILED)
    return lease, call


def called_back(steps: Steps, lease: Lease, call: CallState, task: str, *, generation: int | None = None) -> None:
    named = {"job_id": lease.job_id, "generation": call.generation if generation is None else generation}
    assert steps.db.once(inbox.receive, str(call.kind), f"delivery of {task}", task, **named)
    (delivery,) = steps.all("select id from callkeeper.webhook_deliveries where provider_task_id = :task", task=task)
    steps.db.once(inbox.apply, delivery["id"])


def answered(steps: Steps, lease: Lease, call: CallState, task: str) -> None:
    steps.db.once(receipts.keep_receipt, lease.job_id, call, task)


LEARNED: dict[str, Callable[..., None]] = {"by its answer": answered, "by its callback": called_back}
learned = pytest.mark.parametrize("learn", LEARNED.values(), ids=LEARNED)


@learned
def test_a_task_learned_after_the_end_is_to_be_cancelled_once(steps: Steps, learn: Callable[..., None]) -> None:
    lease, call = given_up(steps)
    learn(steps, lease, call, "late")
    for _ in range(2):
        answered(steps, lease, call, "late")
    (one,) = steps.db.once(outbox.claim, "consequences", term=TERM)
    assert (one.effect, one.key) == ("cancel_upstream", f"cancel-upstream:{lease.job_id}:late")
    assert one.body == {"kind": call.kind, "task_id": "late", "handle": {"account": "default"}}
    assert watched(steps) == ["late"]
    assert steps.violations() == []


@learned
def test_a_task_learned_before_the_end_and_never_adopted_is_to_be_cancelled(
    steps: Steps, learn: Callable[..., None]
) -> None:
    lease = steps.running()
    call = steps.start_call(lease)
    learn(steps, lease, call, "unadopted")
    assert owed(steps) == []
    steps.db.transact(settle.end_held, lease, FAILED)
    assert owed(steps) == watched(steps) == ["unadopted"]


@learned
def test_the_jobs_own_task_is_no_orphan(steps: Steps, learn: Callable[..., None]) -> None:
    for end in (
        lambda lease: steps.db.transact(settle.complete, lease, DONE),
        lambda lease: steps.db.transact(settle.end_held, lease, FAILED),
    ):
        lease = steps.took_result()
        row = steps.row(lease.job_id)
        call = CallState(row["provider_kind"], None, row["call_key"], row["call_generation"], {}, None)
        end(lease)
        steps.by_hand("delete from callkeeper.call_receipts where job_id = :id", id=lease.job_id)
        learn(steps, lease, call, row["provider_task_id"])
    assert owed(steps) == watched(steps) == []


ENDS: dict[str, Callable[[Steps, Lease], None]] = {
    "completed": lambda steps, lease: steps.db.transact(settle.complete, lease, DONE),
    "failed": lambda steps, lease: steps.db.transact(settle.end_held, lease, FAILED),
    "abandoned": lambda steps, lease: steps.db.transact(settle.end_held, lease, FAILED, upstream_ended=False),
}


@pytest.mark.parametrize("early", [True, False], ids=["learned before the end", "learned after it"])
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_a_second_task_of_the_same_call_is_cancelled_and_watched_however_the_job_ends(
    steps: Steps, end: Callable[[Steps, Lease], None], *, early: bool
) -> None:
    lease = steps.took_result()
    row = steps.row(lease.job_id)
    call = CallState(row["provider_kind"], None, row["call_key"], row["call_generation"], {}, None)
    if early:
        answered(steps, lease, call, "twin")
    end(steps, lease)
    for _ in range(2):
        answered(steps, lease, call, "twin")
    assert "twin" in owed(steps)
    assert [task for task in watched(steps) if task != row["provider_task_id"]] == ["twin"]


@learned
@pytest.mark.parametrize("early", [True, False], ids=["learned before the end", "learned after it"])
def test_where_nothing_can_be_cancelled_it_is_only_watched(
    steps: Steps, learn: Callable[..., None], *, early: bool
) -> None:
    lease = steps.running()
    handle = {"account": "default", "cancels": False}
    call = steps.db.once(calls.mark_call_started, lease, kind="kie-standard", handle=handle, quiet=FAR)
    if early:
        learn(steps, lease, call, "left")
    steps.db.transact(settle.end_held, lease, FAILED)
    if not early:
        learn(steps, lease, call, "left")
    assert owed(steps) == []
    assert watched(steps) == ["left"]


def test_a_watch_that_is_there_already_stops_no_settlement(steps: Steps) -> None:
    lease = steps.running()
    call = steps.start_call(lease)
    answered(steps, lease, call, "twin")
    steps.by_hand(
        "insert into callkeeper.upstream_watches (job_id, provider_kind, provider_task_id, call_generation, call_handle,"
        " call_started_at) select id, provider_kind, 'twin', 1, call_handle, now() from callkeeper.jobs"
    )
    steps.db.transact(settle.end_held, lease, FAILED)
    assert watched(steps) == owed(steps) == ["twin"]


@pytest.mark.parametrize("kept", [True, False])
def test_what_becomes_of_a_second_task_explains_nothing_about_the_first(steps: Steps, *, kept: bool) -> None:
    lease = steps.took_result()
    row = steps.row(lease.job_id)
    call = CallState(row["provider_kind"], None, row["call_key"], row["call_generation"], {}, None)
    answered(steps, lease, call, "twin")
    steps.db.transact(settle.end_held, lease, FAILED, upstream_ended=False)
    steps.by_hand("update callkeeper.upstream_watches set check_at = now()")
    looks = {one.task_id: one for one in steps.db.once(watches.claim)}

    def explained(task: str) -> int:
        if kept:
            assert steps.db.once(watches.keep_standalone, looks[task], [])
        else:
            assert steps.db.once(watches.end, looks[task], "cancelled", resolution="the provider says so")
        return steps.count("callkeeper.unexplained_spend", "resolved_at is not null")

    assert explained("twin") == 0
    assert explained(row["provider_task_id"]) == 1


def test_a_task_of_an_earlier_call_is_none_of_this_ones(steps: Steps) -> None:
    lease = steps.running(retry_safe=True)
    first = steps.start_call(lease)
    steps.by_hand(
        "update callkeeper.jobs set call_generation = 2, call_key = gen_random_uuid() where id = :id", id=lease.job_id
    )
    answered(steps, lease, first, "of the first call")
    called_back(steps, lease, first, "of the first call, too")
    steps.db.transact(settle.end_held, lease, FAILED)
    assert owed(steps) == []
    answered(steps, lease, first, "of the first call, late")
    assert owed(steps) == []


def test_a_synchronous_call_leaves_nothing_to_cancel(steps: Steps) -> None:
    answered(steps, *given_up(steps, mode="sync"), "msg_1")
    assert owed(steps) == []


def test_an_ending_under_way_is_waited_for(steps: Steps) -> None:
    """Neither could see the other's work: so whoever comes second waits, and then sees it."""
    lease = steps.running()
    call = steps.start_call(lease)
    pids: queue.Queue[int] = queue.Queue()

    def learn() -> None:
        with steps.db.engine.begin() as connection:
            pids.put(pid_of(connection))
            receipts.keep_receipt(connection, lease.job_id, call, "while it ends")

    with steps.db.engine.connect() as ending:
        settle.end_held(ending, lease, FAILED)

        def end() -> None:
            wait_until_blocked(steps.db.engine, pids.get(timeout=10))
            ending.commit()

        at_once([learn, end])
    assert owed(steps) == watched(steps) == ["while it ends"]
