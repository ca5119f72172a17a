"""Drift, repaired first: what is known but not settled, a job without a message; and the one protocol of all probes."""

import asyncio
from collections.abc import Mapping

import pytest

from actors.classify import Act, after_look
from actors.probe import MAX_HOPS, Found, Verdict, follow, lease_verdict, message_verdict, verdict_of
from providers.errors import Fate, ProviderError, Remedy
from tests.passes.conftest import Stand
from tests.store.steps import LAPSED


def test_a_result_known_but_not_settled_is_brought_home(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.steps.by_hand("update callkeeper.jobs set result_known_at = now() where id = :id", id=job)
    stand.pass_()
    assert stand.end(job) == ("completed", None)
    assert stand.creates() == 1


def test_an_importer_that_died_gives_the_result_back(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.steps.by_hand(
        "update callkeeper.jobs set result_known_at = now(), status = 'running', next_poll_at = null, lease_owner = 'w',"
        " lease_token = gen_random_uuid(), lease_until = now() - interval '1 second' where id = :id",
        id=job,
    )
    stand.pass_()
    assert stand.end(job) == ("completed", None), "released, stale, looked at: all in one pass"
    assert "recovered" in stand.steps.events(job)


def test_a_queued_job_without_a_message_is_woken_and_it_is_on_record(stand: Stand) -> None:
    job = stand.submit()
    stand.steps.by_hand("delete from dramatiq.queue")
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where id = :id", id=job)
    assert stand.pass_()["recovered"] == 1
    assert stand.steps.count("dramatiq.queue", "message -> 'args' ->> 0 = :id", id=str(job)) == 1
    assert stand.history(job) == [("missing", "woken")]
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where id = :id", id=job)
    assert stand.pass_()["recovered"] == 0, "it has one"
    stand.steps.by_hand("delete from callkeeper.jobs", "delete from callkeeper.accounts")


def test_unstarted_work_of_a_dead_worker_is_queued_again_and_past_its_attempts_failed(stand: Stand) -> None:
    job = stand.submit()
    for attempt in (2, 3):
        stand.steps.claim(job, term=LAPSED)
        stand.steps.by_hand("update callkeeper.jobs set next_check_at = now()")
        stand.pass_()
        assert (stand.job(job)["status"], stand.job(job)["attempt"]) == ("queued", attempt)
    stand.steps.claim(job, term=LAPSED)
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now()")
    stand.pass_()
    assert stand.end(job) == ("failed", "worker_lost")
    assert stand.credits(job) == ("refunded", 0)


def test_a_row_that_somebody_asks_about_right_now_is_left_to_them(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.steps.by_hand("update callkeeper.jobs set next_poll_at = now()")
    stand.steps.poll(job)
    before = stand.polls()
    stand.pass_()
    assert (stand.job(job)["status"], stand.polls()) == ("waiting", before)
    stand.stale(job)
    stand.steps.by_hand("update callkeeper.jobs set poll_token = null")
    stand.pass_()


# The protocol.


class Scripted:
    """A probe that has been told what is where."""

    def __init__(self, answers: Mapping[str, Verdict]) -> None:
        self.answers, self.asked = answers, 0

    async def look(self, at: str) -> Verdict:
        self.asked += 1
        return self.answers[at]


def chain(length: int, end: Verdict) -> Scripted:
    links = {str(n): Verdict(Found.CONTINUED, continued_as=str(n + 1)) for n in range(length)}
    return Scripted({**links, str(length): end})


@pytest.mark.parametrize("hops", range(MAX_HOPS + 1))
def test_a_continuation_is_followed_for_five_hops(hops: int) -> None:
    probe = chain(hops, Verdict(Found.SUCCEEDED))
    assert asyncio.run(follow(probe, "0")).found is Found.SUCCEEDED
    assert probe.asked == hops + 1, "one question a hop"


def test_a_sixth_hop_is_not_taken_and_proves_nothing() -> None:
    probe = chain(MAX_HOPS + 1, Verdict(Found.FAILED, "x"))
    verdict = asyncio.run(follow(probe, "0"))
    assert (verdict.found, verdict.code) == (Found.UNSURE, "continues_too_far")
    assert probe.asked == MAX_HOPS + 1


def test_a_loop_is_refused() -> None:
    links = {"a": Verdict(Found.CONTINUED, continued_as="b"), "b": Verdict(Found.CONTINUED, continued_as="a")}
    probe = Scripted(links)
    verdict = asyncio.run(follow(probe, "a"))
    assert (verdict.found, verdict.code) == (Found.UNSURE, "continues_in_a_loop")
    assert probe.asked == 2


def test_what_a_verdict_means() -> None:
    assert after_look(Verdict(Found.RUNNING), misses=2).act is Act.POLL_AGAIN
    assert after_look(Verdict(Found.SUCCEEDED), misses=2).act is Act.IMPORT
    assert after_look(Verdict(Found.FAILED, "x"), misses=0).act is Act.FAIL
    assert after_look(Verdict(Found.MISSING, "x"), misses=2, young=True).missed is None
    assert after_look(Verdict(Found.MISSING, "x"), misses=1).missed is True
    assert after_look(Verdict(Found.MISSING, "x"), misses=2).act is Act.FAIL
    assert after_look(Verdict(Found.UNSURE, "x"), misses=2).missed is None
    assert lease_verdict(lapsed=True).found is Found.MISSING
    assert lease_verdict(lapsed=False).found is Found.RUNNING
    assert message_verdict(sent=False).found is Found.MISSING
    assert message_verdict(sent=True).found is Found.RUNNING


@pytest.mark.parametrize(
    ("fate", "remedy", "useless"),
    [
        (Fate.AMBIGUOUS, Remedy.RETRY, False),
        (Fate.NOT_SENT, Remedy.RETRY, False),
        (Fate.REJECTED, Remedy.THROTTLED, False),
        (Fate.REJECTED, Remedy.OPERATOR, False),
        (Fate.REJECTED, Remedy.CUSTOMER, True),
        (Fate.REJECTED, Remedy.NOBODY, True),
    ],
)
def test_only_a_refusal_that_will_not_change_counts_as_a_failed_look(fate: Fate, remedy: Remedy, useless: bool) -> None:
    verdict = verdict_of(ProviderError("some_code", "words", fate=fate, remedy=remedy))
    assert (verdict.found, verdict.useless) == (Found.UNSURE, useless)
