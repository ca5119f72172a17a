"""What counts, and what does not: failed looks up to a cap; outages, rate limits and revoked keys never."""

from pathlib import Path

import pytest

from providers.registry import get_kind
from tests.passes.conftest import Stand, reply
from tests.passes.kit import POSTER

CAP = 18


def _away(stand: Stand, status: int = 503) -> None:
    stand.sandbox.script({"rules": [reply(status, {"detail": "Service unavailable", "status": status})]})


def test_ninety_minutes_of_outage_fail_and_refund_nothing_and_all_complete_after_it(stand: Stand) -> None:
    """Nineteen passes over an hour and a half; the job's own deadline goes by meanwhile, and its clock stands still."""
    jobs = [stand.waiting(runs=10_000) for _ in range(4)]
    stand.finish(jobs[0])
    _away(stand)
    for _ in range(19):
        stand.tick(minutes=5)
        assert {stand.job(job)["status"] for job in jobs} == {"waiting"}
    rows = [stand.job(job) for job in jobs]
    assert {row["reconcile_attempts"] for row in rows} == {0}, "nothing was learned about the jobs"
    assert all(row["reconcile_deferrals"] > 0 for row in rows)
    assert all(row["reconcile_last_error"].startswith("provider_unavailable") for row in rows)
    assert stand.credits(jobs[0]) == ("reserved", 0)
    assert "replicate-prediction:outage" in stand.alerts()
    for job in jobs[1:]:
        stand.finish(job)
    stand.sandbox.script({})
    stand.later(minutes=1)  # the breaker's wait
    for _ in range(3):
        stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where status = 'waiting'")
        stand.pass_()
    assert {stand.end(job) for job in jobs} == {("completed", None)}
    assert {stand.credits(job) for job in jobs} == {("committed", POSTER)}


def test_a_provider_that_is_gone_altogether_is_an_outage_too(stand: Stand) -> None:
    jobs = [stand.waiting() for _ in range(2)]
    stand.sandbox.stop()
    try:
        for _ in range(6):
            stand.tick(minutes=5)
        assert {stand.job(job)["status"] for job in jobs} == {"waiting"}
    finally:
        stand.sandbox.start()
    for job in jobs:
        stand.finish(job)
    stand.later(minutes=1)
    for _ in range(3):
        stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where status = 'waiting'")
        stand.pass_()
    assert {stand.end(job) for job in jobs} == {("completed", None)}


@pytest.mark.parametrize("status", [401, 403, 402])
def test_a_revoked_key_fails_nothing_and_calls_an_operator_once(stand: Stand, status: int) -> None:
    jobs = [stand.waiting() for _ in range(5)]
    stand.sandbox.script({"rules": [reply(status, {"detail": "Unauthenticated", "title": "x", "status": status})]})
    for _ in range(5):
        stand.tick(minutes=5)
    assert {stand.job(job)["status"] for job in jobs} == {"waiting"}
    assert {stand.job(job)["reconcile_attempts"] for job in jobs} == {0}
    about_keys = [subject for subject in stand.alerts() if subject.startswith("replicate-prediction:")]
    assert len(about_keys) == 1, "one alert for the kind, not one a job"
    assert stand.spend() == []


def test_a_closed_account_is_not_asked(stand: Stand) -> None:
    jobs = [stand.waiting() for _ in range(5)]
    stand.rt.gates._close("replicate-prediction", "default", "outage", 600, stops_clocks=True)
    before = stand.polls()
    counts = stand.pass_()
    assert counts["deferred"] == len(jobs)
    assert stand.polls() == before
    assert all(stand.job(job)["reconcile_deferrals"] == 0 for job in jobs), "no look, no count"


def test_a_rate_limit_while_looking_defers_and_counts_no_failure(stand: Stand) -> None:
    job = stand.waiting()
    stand.sandbox.script({"rules": [reply(429, {"detail": "Request was throttled.", "status": 429})]})
    stand.pass_()
    row = stand.job(job)
    assert (row["status"], row["reconcile_attempts"], row["reconcile_deferrals"]) == ("waiting", 0, 1)


def _break_storage(stand: Stand) -> Path:
    """The folder for files is a file."""
    folder = Path(stand.rt.options.media_url) / "media"
    if folder.exists():
        folder.rename(folder.with_name(f"kept-{len(list(folder.parent.iterdir()))}"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("in the way")
    return folder


def test_a_result_that_cannot_be_kept_is_given_up_at_the_cap_refunded_and_told(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    in_the_way = _break_storage(stand)
    try:
        for look in range(1, CAP):
            stand.stale(job)
            stand.pass_()
            row = stand.job(job)
            assert (row["status"], row["reconcile_attempts"]) == ("waiting", look), look
        assert row["reconcile_last_error"].startswith("media_store_failed")
        stand.stale(job)
        counts = stand.pass_()
    finally:
        in_the_way.unlink()
    assert stand.end(job) == ("failed", "reconcile_exhausted")
    assert stand.credits(job) == ("refunded", 0)
    assert (counts["swept"], counts["alerted"]) == (1, 1)
    assert stand.alerts() == {"reconcile_exhausted:replicate-prediction": 1}
    assert stand.spend() == [job], "it was paid for upstream"
    assert stand.history(job) == [("succeeded", "put_back")] * CAP + [("exhausted", "failed")]


def test_the_cap_is_a_setting(stand: Stand) -> None:
    stand.rt.options = stand.rt.options.model_copy(update={"reconcile_attempts": 2})
    job = stand.waiting()
    stand.finish(job, download="gone")
    for _ in range(2):
        stand.stale(job)
        stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_exhausted")


def test_an_expired_address_counts_an_attempt_and_is_never_a_completion(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job, download="gone")
    stand.pass_()
    assert stand.job(job)["status"] == "waiting"
    assert stand.job(job)["reconcile_attempts"] == 1
    stand.sandbox.script({})
    stand.stale(job)
    stand.pass_()
    assert stand.end(job) == ("completed", None)
    assert stand.credits(job) == ("committed", POSTER)


def test_at_the_cap_but_with_its_clock_standing_still_a_job_waits_on(stand: Stand) -> None:
    job = stand.waiting()
    stand.steps.by_hand("update callkeeper.jobs set reconcile_attempts = 18 where id = :id", id=job)
    stand.rt.gates._close("replicate-prediction", "default", "outage", 600, stops_clocks=True)
    stand.pass_()
    assert stand.job(job)["status"] == "waiting"


def test_honest_work_is_bounded_by_its_kinds_longest_run(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    longest = get_kind("replicate-prediction").max_run.total_seconds() / 60 + 30
    for _ in range(int(longest // 5) - 1):
        stand.tick(minutes=5)
        assert stand.job(job)["status"] == "waiting"
    stand.tick(minutes=11)
    assert stand.end(job) == ("timed_out", "deadline_exceeded")
    assert stand.credits(job) == ("refunded", 0)
    owed = stand.steps.all("select effect from callkeeper.consequences where job_id = :id", id=job)
    assert [row["effect"] for row in owed] == ["cancel_upstream"]
