"""Provider accounts closed for a while: one row for the fleet, and clocks that stand still where they should."""

from datetime import timedelta
from uuid import UUID

import pytest

from store import gates, jobs, settle
from store.models import Settlement
from store.states import State
from tests.store.steps import DONE, KIND, Steps

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
LATE = Settlement(State.TIMED_OUT, error_code="deadline_exceeded")


def close(steps: Steps, span: timedelta, *, reason: str = "outage", stops: bool = True, account: str = "main") -> None:
    steps.db.once(gates.close, KIND, account, reason=reason, span=span, stops_clocks=stops)


def deadline(steps: Steps, job: UUID) -> float:
    row = steps.one(
        "select extract(epoch from deadline_at) + extract(epoch from queue_deadline_at) as at from callkeeper.jobs"
        " where id = :id",
        id=job,
    )
    return float(row["at"])


def backdate(steps: Steps, span: str) -> None:
    steps.by_hand(f"update callkeeper.provider_gates set closed_at = closed_at - interval '{span}'")


def test_an_account_is_open_until_it_is_closed_and_after(steps: Steps) -> None:
    assert steps.db.once(gates.closed, KIND, "main") is None
    close(steps, HOUR)
    shut = steps.db.once(gates.closed, KIND, "main")
    assert shut is not None
    assert shut.reason == "outage"
    assert 3590 < shut.seconds <= 3600
    assert steps.db.once(gates.closed, KIND, "other") is None
    assert steps.db.once(gates.closed, "kie-veo", "main") is None
    steps.by_hand("update callkeeper.provider_gates set closed_until = now()")
    assert steps.db.once(gates.closed, KIND, "main") is None


def test_closing_again_only_lengthens_and_keeps_the_graver_reason(steps: Steps) -> None:
    close(steps, HOUR)
    close(steps, SECOND, reason="rate_limited", stops=False)
    shut = steps.db.once(gates.closed, KIND, "main")
    assert shut is not None
    assert (shut.reason, shut.seconds > 3000) == ("outage", True)
    row = steps.one("select * from callkeeper.provider_gates")
    assert row["stops_clocks"]


def test_reopening_gives_back_what_was_lost_to_the_open_jobs_of_that_kind(steps: Steps) -> None:
    queued, waiting = steps.submit(provider_kind=KIND), steps.waiting()
    other = steps.submit(provider_kind="kie-veo")
    done = steps.running(provider_kind=KIND)
    steps.db.transact(settle.complete, done, DONE)
    close(steps, HOUR)
    everyone = (queued, waiting, other, done.job_id)
    steps.by_hand("update callkeeper.jobs set created_at = created_at - interval '2 hours' where finished_at is null")
    backdate(steps, "90 minutes")
    before = {job: deadline(steps, job) for job in everyone}
    assert steps.db.once(gates.reopen, KIND, "main") == 2
    moved = {job: deadline(steps, job) - before[job] for job in everyone}
    assert moved[queued] == pytest.approx(2 * 5400, abs=20)
    assert moved[waiting] == pytest.approx(2 * 5400, abs=20)
    assert (moved[other], moved[done.job_id]) == (0, 0)
    assert steps.db.once(gates.closed, KIND, "main") is None
    assert steps.db.once(gates.reopen, KIND, "main") is None
    assert {job: deadline(steps, job) - before[job] for job in everyone} == moved


def test_a_job_younger_than_the_trouble_gets_back_its_own_time_only(steps: Steps) -> None:
    close(steps, HOUR)
    backdate(steps, "90 minutes")
    job = steps.submit(provider_kind=KIND)
    before = deadline(steps, job)
    steps.db.once(gates.reopen, KIND, "main")
    assert deadline(steps, job) - before < 10


def test_a_rate_limit_stops_no_clock(steps: Steps) -> None:
    job = steps.submit(provider_kind=KIND)
    close(steps, HOUR, reason="rate_limited", stops=False)
    backdate(steps, "90 minutes")
    steps.db.once(gates.count_failure, KIND, "main")
    before = deadline(steps, job)
    assert steps.db.once(gates.reopen, KIND, "main") is None
    assert deadline(steps, job) == before


def test_a_clock_that_stands_still_is_never_late(steps: Steps) -> None:
    job, other = steps.submit(provider_kind=KIND), steps.submit(provider_kind="kie-veo")
    steps.by_hand("update callkeeper.jobs set queue_deadline_at = now(), deadline_at = now()")
    close(steps, HOUR)
    assert not steps.db.transact(settle.end_overdue, job, epoch=0, outcome=LATE)
    assert steps.db.transact(settle.end_overdue, other, epoch=0, outcome=LATE)
    steps.by_hand("update callkeeper.provider_gates set stops_clocks = false")
    assert steps.db.transact(settle.end_overdue, job, epoch=0, outcome=LATE)
    assert steps.violations() == []


def test_a_job_whose_clock_stands_still_may_start_however_late(steps: Steps) -> None:
    """Otherwise nobody would ever ask the provider again, and the gate would never open."""
    job, other = steps.submit(provider_kind=KIND), steps.submit(provider_kind="kie-veo")
    steps.by_hand("update callkeeper.jobs set queue_deadline_at = now()")
    close(steps, HOUR)
    assert steps.claim(job).lease.job_id == job
    assert steps.db.once(jobs.claim_queued, other, owner="w", term=HOUR) is None


def test_failures_count_up_and_an_answer_clears_them(steps: Steps) -> None:
    assert [steps.db.once(gates.count_failure, KIND, "main") for _ in range(3)] == [1, 2, 3]
    assert steps.db.once(gates.count_failure, KIND, "other") == 1
    assert steps.db.once(gates.troubled) == {(KIND, "main"), (KIND, "other")}
    steps.db.once(gates.reopen, KIND, "main")
    assert steps.db.once(gates.troubled) == {(KIND, "other")}
    assert steps.db.once(gates.count_failure, KIND, "main") == 1
