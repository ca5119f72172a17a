"""Which rows a pass takes, in which order, and that every open state is some pass's business."""

import time
from collections.abc import Callable
from uuid import UUID

import pytest

from actors.recover import recover_lapsed
from store import passes
from store.states import OPEN, TRANSITIONS, State
from tests.passes.conftest import Stand, reply, second
from tests.store.steps import AT_ONCE, LAPSED, Steps, at_once


def _without_kind(steps: Steps) -> UUID:
    job_id = steps.submit()
    steps.by_hand("update callkeeper.jobs set provider_kind = null where id = :id", id=job_id)
    return job_id


def _requeued(steps: Steps) -> UUID:
    from store import jobs

    lease = steps.running()
    steps.db.once(jobs.requeue, lease, delay=AT_ONCE, why="shutdown")
    return lease.job_id


def _calling(steps: Steps, **changes: str) -> UUID:
    claimed = steps.claim(steps.submit(**changes), term=LAPSED)
    steps.start_call(claimed.lease)
    return claimed.lease.job_id


def _polled(steps: Steps) -> UUID:
    job_id = steps.waiting()
    steps.poll(job_id)
    return job_id


# Every way an open job can stand still: what it is waiting for is gone. Each by the verbs that lead there.
STANDSTILLS: dict[str, Callable[[Steps], UUID]] = {
    "queued, its message lost": lambda steps: steps.submit(),
    "queued, a legacy row without a kind": _without_kind,
    "queued, its kind unknown": lambda steps: steps.submit(provider_kind="no-such-kind"),
    "queued again by a dead worker": _requeued,
    "running, nothing called": lambda steps: steps.claim(steps.submit(), term=LAPSED).lease.job_id,
    "running, a local handler": lambda steps: steps.claim(steps.submit(mode="local"), term=LAPSED).lease.job_id,
    "running, a synchronous call": lambda steps: _calling(steps, mode="sync"),
    "running, a create under way": lambda steps: _calling(steps, mode="async"),
    "waiting, its task known": lambda steps: steps.waiting(),
    "waiting, its create ambiguous": lambda steps: steps.ambiguous(),
    "waiting, its result known": lambda steps: steps.result_known(),
    "waiting, a poller died over it": _polled,
    "running, an importer died over it": lambda steps: steps.took_result().job_id,
}


@pytest.mark.parametrize("standstill", STANDSTILLS)
def test_every_reachable_open_state_is_selected(stand: Stand, standstill: str) -> None:
    """The next check of each lies ahead and no later than the deadline; when it comes, the pass has the row."""
    steps = stand.steps
    job_id = STANDSTILLS[standstill](steps)
    row = steps.one("select next_check_at <= deadline_at as bounded from callkeeper.jobs where id = :id", id=job_id)
    assert row["bounded"]
    steps.by_hand("update callkeeper.jobs set next_check_at = now() where id = :id", id=job_id)
    assert [quiet.job_id for quiet in steps.db.once(passes.look_at_quiet)] == [job_id]
    assert steps.db.once(passes.look_at_quiet) == [], "selecting it moved its next check on"
    steps.by_hand("delete from callkeeper.jobs")


def test_the_standstills_are_all_there_are() -> None:
    """Each open state is reached by a verb of the table, and each stands in the list above."""
    reached = {transition.target for transition in TRANSITIONS.values() if transition.target in OPEN}
    assert reached == set(OPEN)
    assert {name.split(",")[0].split(" ")[0] for name in STANDSTILLS} == {str(state) for state in OPEN}


def test_lapsed_leases_are_the_watchdogs_too(stand: Stand) -> None:
    job_id = stand.steps.claim(stand.steps.submit(), term=LAPSED).lease.job_id
    assert recover_lapsed(stand.rt.db) == 1
    assert stand.job(job_id)["status"] == State.QUEUED
    stand.steps.by_hand("delete from callkeeper.jobs")


def test_the_longest_quiet_come_first_and_batches_go_on_until_none_is_due(stand: Stand) -> None:
    jobs = [stand.steps.submit(fingerprint=str(n)) for n in range(7)]
    for age, job_id in enumerate(jobs):
        stand.steps.by_hand(
            "update callkeeper.jobs set next_check_at = now() - make_interval(secs => :age) where id = :id",
            age=age, id=job_id,
        )  # fmt: skip
    seen: list[UUID] = []
    while batch := stand.rt.db.once(passes.look_at_quiet, at_most=3):
        seen += sorted((one.job_id for one in batch), key=lambda job_id: -jobs.index(job_id))
    assert seen == jobs[::-1]
    stand.steps.by_hand("delete from callkeeper.jobs")


def test_six_hundred_healthy_rows_do_not_hide_a_stale_one(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.steps.by_hand(
        "insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, max_attempts, queue_limit,"
        " run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, status, lease_owner, lease_token,"
        " lease_until, provider_kind) select 'chore-of-passes', 'calls', 'run_handler', 'local', 'f', 0, 1, '1 h', '1 h', now(),"
        " now() + interval '1 h', now() + interval '1 h', now() - interval '1 day', 'running', 'w', gen_random_uuid(),"
        " now() + interval '1 h', 'local' from generate_series(1, 600)"
    )
    counts = stand.pass_()
    assert counts["scanned"] == 601
    assert stand.end(job) == ("completed", None)
    stand.steps.by_hand("delete from callkeeper.jobs where request_fingerprint = 'f'")


def test_a_pass_ends_with_its_time_and_what_it_did_not_reach_is_due_again(stand: Stand) -> None:
    jobs = [stand.waiting() for _ in range(3)]
    counts = stand.rt.submit(_late_pass(stand)).result()
    assert counts["scanned"] == 0
    for job in jobs:
        stand.finish(job)
    assert stand.pass_()["recovered"] == 3


def _late_pass(stand: Stand):  # type: ignore[no-untyped-def]
    from actors.reconcile import Pass

    return Pass(stand.rt).work(time.monotonic() - 1)


def test_passes_at_the_same_instant_make_one_decision_a_row(stand: Stand) -> None:
    beside = second(stand)
    try:
        for number in range(10):
            jobs = [stand.waiting(stale=False) for _ in range(3)]
            stand.stale(*jobs)
            if number % 2:
                for job in jobs:
                    stand.finish(job)
            else:
                stand.sandbox.script({"rules": [reply(404)]})
                stand.steps.by_hand("update callkeeper.jobs set poll_misses = 2 where finished_at is null")
            both = at_once([stand.pass_, lambda: _pass_on(beside)])
            assert sum(one["recovered"] + one["failed"] for one in both) == 3
            expected = ("completed", None) if number % 2 else ("failed", "provider_task_lost")
            assert {stand.end(job) for job in jobs} == {expected}
            assert all(len(stand.history(job)) == 1 for job in jobs)
    finally:
        beside.stop()


def _pass_on(rt):  # type: ignore[no-untyped-def]
    from actors.gates import Gates
    from actors.reconcile import Pass

    rt.gates = Gates(rt)
    return rt.submit(Pass(rt).work(time.monotonic() + 60)).result()


@pytest.mark.slow
def test_two_passes_at_the_same_instant_two_hundred_times(stand: Stand) -> None:
    beside = second(stand)
    try:
        for number in range(200):
            job = stand.waiting()
            if number % 2:
                stand.finish(job)
            both = at_once([stand.pass_, lambda: _pass_on(beside)])
            assert sum(one["recovered"] for one in both) == number % 2
            assert len(stand.history(job)) == number % 2
            if not number % 2:
                assert stand.job(job)["status"] == "waiting"
                stand.finish(job)
                stand.stale(job)
                stand.pass_()
    finally:
        beside.stop()
