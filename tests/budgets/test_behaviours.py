"""What the page of AI tasks promises about admission and recovery, where no other test says it."""

from datetime import timedelta
from typing import Any

import pytest

from store import jobs, passes
from store.errors import QueueFull
from tests.budgets.steps import Starts
from tests.store.steps import AT_ONCE


def test_t18_a_refused_key_is_not_dead(starts: Starts) -> None:
    """A full queue refuses, and the same submit passes as soon as there is room."""
    starts.budget("queued", "user", "ann", at_most=1)
    first = starts.submit(user_id="ann")
    with pytest.raises(QueueFull):
        starts.submit(user_id="ann", idempotency_key="k")
    starts.claim(first)
    assert starts.row(starts.submit(user_id="ann", idempotency_key="k"))["status"] == "queued"


def test_t19_the_age_of_a_retried_job_counts_from_when_it_could_run_again(starts: Starts) -> None:
    job_id = starts.submit(user_id="ann", queue_limit=timedelta(hours=1), run_limit=timedelta(hours=9))
    first = starts.row(job_id)["queue_deadline_at"]
    starts.by_hand(
        "update callkeeper.jobs set available_at = now() - interval '50 min',"
        " queue_deadline_at = now() + interval '10 min' where id = :id",
        id=job_id,
    )
    starts.db.once(jobs.requeue, starts.claim(job_id).lease, delay=AT_ONCE, why="throttled")
    assert starts.row(job_id)["queue_deadline_at"] >= first


def test_t20_a_thousand_lost_messages_are_sent_again_in_batches_and_nothing_that_runs_is_touched(
    starts: Starts,
) -> None:
    running = [starts.running().job_id for _ in range(5)]
    before = [starts.row(job_id) for job_id in running]
    first = starts.submit()
    starts.by_hand(
        """
        insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, max_attempts, queue_limit,
          run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, turn)
        select job_type, queue, actor, mode, request_fingerprint, price, max_attempts, queue_limit, run_limit, available_at,
          queue_deadline_at, deadline_at, now(), n
        from callkeeper.jobs, generate_series(1, 999) n where id = :id
        """,
        id=first,
    )
    starts.by_hand(
        "delete from dramatiq.queue", "update callkeeper.jobs set next_check_at = now() where status = 'queued'"
    )
    batches: list[int] = []
    while quiet := starts.db.once(passes.look_at_quiet):
        lost = [one.job_id for one in quiet if not one.message_sent]
        batches.append(starts.db.once(passes.send_again, lost))
    assert (sum(batches), max(batches)) == (1000, 200)
    assert starts.count("dramatiq.queue") == 1000
    assert [starts.row(job_id) for job_id in running] == before


def test_t20_what_is_parked_needs_no_message(starts: Starts) -> None:
    """It gets one when there is room; until then the pass leaves it alone."""
    starts.budget("concurrency", "global", at_most=1)
    one, two = starts.submit(), starts.submit()
    assert starts.start(one)
    assert starts.start(two) is None
    starts.by_hand(
        "delete from dramatiq.queue", "update callkeeper.jobs set next_check_at = now() where status = 'queued'"
    )
    (looked,) = starts.db.once(passes.look_at_quiet)
    seen: dict[str, Any] = {"id": looked.job_id, "sent": looked.message_sent}
    assert seen == {"id": two, "sent": True}


def test_t27_a_spent_window_says_when_it_ends(starts: Starts) -> None:
    account = starts.account(topup=100)
    starts.budget("spend", "user", "ann", at_most=5, per=timedelta(hours=1))
    priced: dict[str, Any] = {"user_id": "ann", "account_id": account, "price": 5}
    from store import settle
    from tests.store.steps import DONE

    claimed = starts.start(starts.submit(**priced))
    assert claimed
    starts.db.transact(settle.complete, claimed.lease, DONE)
    waits = starts.submit(**priced)
    assert starts.start(waits) is None
    (event,) = starts.all("select data from callkeeper.job_events where job_id = :id and kind = 'parked'", id=waits)
    assert 0 < event["data"]["opens_in"] <= 3600
