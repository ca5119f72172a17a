"""Deadlines of jobs and attempts: ended by whoever looks, refused where they have not passed."""

from datetime import timedelta
from uuid import UUID

import pytest

from store import deadlines, gates, jobs, settle
from store.deadlines import Overdue
from store.models import Settlement
from store.states import State
from tests.store.steps import AT_ONCE, KIND, TERM, Steps

SHORT = timedelta(milliseconds=1)
LATE = Settlement(State.TIMED_OUT, error_code="attempt_deadline_exceeded")


def late_attempt(steps: Steps, **changes: object) -> UUID:
    """Running, its attempt past its deadline, the job itself far from its own."""
    options = {"mode": "local", "attempt_limit": SHORT, "max_attempts": 2, **changes}
    lease = steps.running(**options)
    steps.by_hand(
        "update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second' where id = :id", id=lease.job_id
    )
    return lease.job_id


def seen(job_id: UUID, *, epoch: int = 1, attempt: int = 1, whole_job: bool = False) -> Overdue:
    return Overdue(job_id, epoch, attempt, whole_job)


def test_an_attempts_deadline_begins_with_each_claim_and_goes_with_it(steps: Steps) -> None:
    limit = timedelta(seconds=50)
    lease = steps.running(mode="local", attempt_limit=limit)
    row = steps.one(
        "select attempt_deadline_at - started_at as left, next_check_at - started_at as look from callkeeper.jobs"
    )
    assert abs(row["left"] - limit) < timedelta(seconds=1)
    assert abs(row["look"] - limit) < timedelta(seconds=1), "the pass looks when it is over"
    steps.db.once(jobs.requeue, lease, delay=AT_ONCE, why="x")
    assert steps.row(lease.job_id)["attempt_deadline_at"] is None
    steps.claim(lease.job_id)
    assert steps.row(lease.job_id)["attempt_deadline_at"] is not None


def test_what_is_late_is_found_whoever_holds_it(steps: Steps) -> None:
    steps.running(mode="local", attempt_limit=TERM)
    waits = steps.waiting(attempt_limit=SHORT)
    steps.by_hand("update callkeeper.jobs set attempt_deadline_at = now() where id = :id", id=waits)
    one = late_attempt(steps)
    whole = steps.running(mode="local").job_id
    steps.by_hand("update callkeeper.jobs set deadline_at = now() - interval '1 second' where id = :id", id=whole)
    assert {(late.job_id, late.whole_job) for late in steps.db.once(deadlines.overdue)} == {(one, False), (whole, True)}
    assert steps.violations() == []


def test_an_attempt_that_may_not_be_repeated_ends_the_job(steps: Steps) -> None:
    lease = steps.calling(mode="local", attempt_limit=SHORT)
    steps.by_hand("update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second'")
    assert not steps.db.once(deadlines.requeue_overdue, seen(lease.job_id))
    assert steps.db.transact(settle.end_overdue, lease.job_id, epoch=1, outcome=LATE)
    row = steps.row(lease.job_id)
    assert (row["status"], row["error_code"]) == ("timed_out", "attempt_deadline_exceeded")


def test_a_call_that_waits_is_timed_out_by_its_attempts_deadline(steps: Steps) -> None:
    job_id = steps.waiting(attempt_limit=TERM)
    assert not steps.db.transact(settle.end_overdue, job_id, epoch=1, outcome=LATE), "not before it has passed"
    steps.by_hand("update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second'")
    assert steps.db.transact(settle.end_overdue, job_id, epoch=1, outcome=LATE)
    assert steps.row(job_id)["status"] == "timed_out"


SPOILED = {
    "another job": ("", {"id": True}),
    "another epoch": ("epoch = 2", {}),
    "not late": ("attempt_deadline_at = now() + interval '1 hour'", {}),
    "the whole job is late": ("deadline_at = now() - interval '1 second'", {}),
    "no attempt left": ("max_attempts = 1", {}),
    "another attempt": ("attempt = 2", {}),
    "a call that may not be repeated": (
        (
            "provider_call_started_at = now(), provider_kind = 'local', call_key = gen_random_uuid(),"
            " call_handle = '{}', call_generation = 1"
        ),
        {},
    ),
}


@pytest.mark.parametrize("what", SPOILED)
def test_an_attempt_is_repeated_only_where_all_of_it_holds(steps: Steps, what: str) -> None:
    spoil, other = SPOILED[what]
    job_id = late_attempt(steps)
    if spoil:
        steps.by_hand(f"update callkeeper.jobs set {spoil} where id = :id", id=job_id)
    asked = steps.submit() if other else job_id
    before = steps.row(job_id)
    assert not steps.db.once(deadlines.requeue_overdue, seen(asked))
    assert steps.row(job_id) == before


def test_what_runs_no_more_is_not_repeated(steps: Steps) -> None:
    job_id = late_attempt(steps)
    assert steps.db.once(deadlines.requeue_overdue, seen(job_id))
    assert not steps.db.once(deadlines.requeue_overdue, seen(job_id))
    assert (steps.row(job_id)["attempt"], steps.events(job_id)) == (2, ["queued", "started", "requeued"])


@pytest.mark.parametrize(("retry_safe", "mode", "again"), [(True, "sync", True), (True, "async", False)])
def test_a_call_is_repeated_only_if_it_is_safe_and_leaves_nothing_upstream(
    steps: Steps, retry_safe: bool, mode: str, again: bool
) -> None:
    lease = steps.calling(mode=mode, retry_safe=retry_safe, attempt_limit=SHORT)
    steps.by_hand("update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second'")
    assert steps.db.once(deadlines.requeue_overdue, seen(lease.job_id)) is again


@pytest.mark.parametrize(
    ("mode", "called", "again"), [("sync", True, False), ("sync", False, True), ("local", True, True)]
)
def test_a_paid_call_that_was_late_is_made_once_more(steps: Steps, mode: str, called: bool, again: bool) -> None:
    begin = steps.calling if called else steps.running
    lease = begin(mode=mode, retry_safe=True, attempt_limit=SHORT, max_attempts=5)
    late = "update callkeeper.jobs set attempt_deadline_at = now() - interval '1 second', available_at = now()"
    steps.by_hand(late)
    assert steps.db.once(deadlines.requeue_overdue, seen(lease.job_id))
    steps.start_call(steps.claim(lease.job_id).lease)
    steps.by_hand(late)
    assert steps.db.once(deadlines.requeue_overdue, seen(lease.job_id, epoch=2, attempt=2)) is again


def test_while_the_account_is_closed_no_attempt_is_late_and_then_it_has_its_time_back(steps: Steps) -> None:
    job_id = late_attempt(steps, mode="async", provider_kind=KIND)
    steps.by_hand(
        "insert into callkeeper.provider_gates (provider_kind, account, reason, closed_at, closed_until, stops_clocks)"
        f" values ('{KIND}', 'default', 'x', now() - interval '1 hour', now() + interval '1 hour', true)"
    )
    assert steps.db.once(deadlines.overdue) == []
    assert not steps.db.once(deadlines.requeue_overdue, seen(job_id))
    before = steps.row(job_id)["attempt_deadline_at"]
    assert steps.db.once(gates.reopen, KIND, "default") == 1
    assert steps.row(job_id)["attempt_deadline_at"] > before
