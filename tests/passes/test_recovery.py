"""A call under way whose worker and pollers are gone: what one look of the pass makes of it."""

import pytest

from tests.passes.conftest import Stand, reply
from tests.passes.kit import POSTER


def test_a_finished_task_is_brought_home_and_charged_once(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    counts = stand.pass_()
    assert stand.end(job) == ("completed", None)
    assert stand.credits(job) == ("committed", POSTER)
    assert (counts["scanned"], counts["recovered"]) == (1, 1)
    assert stand.history(job) == [("succeeded", "brought_home")]
    assert stand.creates() == 1


def test_a_failed_task_fails_the_job_and_refunds_it(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job, fail="NSFW content detected")
    stand.sandbox.script({"defaults": {"webhook": "off"}, "rules": [
        reply(200, {"id": stand.job(job)["provider_task_id"], "status": "failed", "error": "NSFW content detected"})
    ]})  # fmt: skip
    stand.pass_()
    assert stand.end(job) == ("failed", "content_policy")
    assert stand.credits(job) == ("refunded", 0)
    assert stand.history(job) == [("failed", "failed")]
    assert stand.spend() == []


def test_work_that_honestly_runs_is_left_alone_however_often_it_is_looked_at(stand: Stand) -> None:
    job = stand.waiting()
    before = stand.polls()
    for _ in range(6):
        stand.stale(job)
        stand.pass_()
    after = stand.job(job)
    assert after["status"] == "waiting"
    assert (after["reconcile_attempts"], after["reconcile_deferrals"], after["poll_misses"]) == (0, 0, 0)
    assert stand.polls() == before + 6, "one request a look"
    assert stand.history(job) == []


def test_the_job_is_halted_only_on_the_third_consecutive_miss(stand: Stand) -> None:
    job = stand.waiting()
    gone = reply(404, {"detail": "not found", "status": 404})
    for expected in (1, 2):
        stand.sandbox.script({"rules": [gone]})
        stand.stale(job)
        stand.pass_()
        assert (stand.job(job)["status"], stand.job(job)["poll_misses"]) == ("waiting", expected)
    stand.sandbox.script({})
    stand.stale(job)
    stand.pass_()
    assert stand.job(job)["poll_misses"] == 0, "seen again: the misses were not consecutive"
    stand.sandbox.script({"rules": [gone]})
    for _ in range(3):
        assert stand.job(job)["status"] == "waiting"
        stand.stale(job)
        stand.pass_()
    assert stand.end(job) == ("failed", "provider_task_lost")
    assert stand.credits(job) == ("refunded", 0)
    assert stand.history(job) == [("missing", "counted")] * 4 + [("missing", "failed")]
    assert stand.spend() == [job], "the provider may have been paid"


@pytest.mark.parametrize("state", ["young", "ended"])
def test_young_and_finished_rows_are_not_touched(stand: Stand, state: str) -> None:
    job = stand.waiting(stale=False)
    if state == "ended":
        stand.finish(job)
        stand.poll(job)
        assert stand.end(job) == ("completed", None)
    before, polls = stand.job(job), stand.polls()
    stand.pass_()
    assert stand.job(job) == before
    assert stand.polls() == polls
