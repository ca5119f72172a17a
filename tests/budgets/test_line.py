"""Whose turn it is: users take turns whatever they submitted, weights and priorities count, nothing starves."""

from datetime import timedelta

import pytest
import sqlalchemy as sa

from store import jobs, line
from store.errors import InvalidRequest
from tests.budgets.steps import ACTORS, Starts
from tests.store.steps import AT_ONCE, at_once


def test_one_job_behind_a_flood_is_next(starts: Starts) -> None:
    flood = [starts.submit(user_id="ann") for _ in range(200)]
    starts.submit(user_id="bob")
    assert "bob" in starts.order(flood[0], 2)


def test_users_take_turns_whoever_came_first(starts: Starts) -> None:
    first = starts.submit(user_id="ann")
    for _ in range(5):
        starts.submit(user_id="ann")
    assert starts.order(first, 2) == ["ann", "ann"]
    for _ in range(6):
        starts.submit(user_id="bob")
    order = starts.order(first, 8)
    assert abs(order[:4].count("ann") - 2) <= 1, order
    assert (order.count("ann"), order.count("bob")) == (4, 4)
    assert starts.order(first, 3) == ["bob", "bob", None]


def test_a_weight_is_a_share(starts: Starts) -> None:
    starts.budget("weight", "user", "ann", at_most=3)
    for user in ("ann", "bob"):
        for _ in range(40):
            message = starts.submit(user_id=user)
    order = starts.order(message, 40)
    assert order.count("ann") == pytest.approx(30, abs=2)


def test_users_without_a_name_are_one(starts: Starts) -> None:
    flood = [starts.submit() for _ in range(20)]
    starts.submit(user_id="bob")
    assert "bob" in starts.order(flood[0], 2)


def test_a_priority_passes_what_came_before(starts: Starts) -> None:
    for _ in range(5):
        message = starts.submit(user_id="ann")
    urgent = starts.submit(user_id="ann", priority=1)
    claimed = starts.unlimited(message)
    assert claimed is not None
    assert claimed.lease.job_id == urgent


def test_a_low_priority_ages_and_is_served_though_higher_ones_keep_coming(starts: Starts) -> None:
    low = starts.submit(user_id="ann", priority=-1)
    message = starts.submit(user_id="bob")
    passed = 0
    for _ in range(60):
        starts.submit(user_id="bob")
        claimed = starts.unlimited(message)
        assert claimed is not None
        if claimed.lease.job_id == low:
            break
        passed += 1
    assert 0 < passed < 30, "it was passed, and then it was its turn"


def test_a_priority_moves_its_own_job_only(starts: Starts) -> None:
    """Somebody's urgent job does not push that user's other jobs, or the next user's, forward or back."""
    for _ in range(3):
        message = starts.submit(user_id="ann")
    starts.submit(user_id="ann", priority=5)
    starts.submit(user_id="bob")
    assert starts.order(message, 1) == ["ann"]
    assert "bob" in starts.order(message, 2)


def test_a_message_is_a_right_to_the_next_turn_not_to_its_own_job(starts: Starts) -> None:
    flood = [starts.submit(user_id="ann") for _ in range(3)]
    single = starts.submit(user_id="bob")
    started = {starts.unlimited(message).lease.job_id for message in [*flood, single]}  # type: ignore[union-attr]
    assert started == {*flood, single}
    assert starts.unlimited(single) is None


def test_a_message_of_a_job_that_is_gone_still_starts_the_next(starts: Starts) -> None:
    first, second = starts.submit(user_id="ann"), starts.submit(user_id="ann")
    starts.claim(first)
    claimed = starts.unlimited(first)
    assert claimed is not None
    assert claimed.lease.job_id == second


def test_only_what_this_process_can_run_is_taken(starts: Starts) -> None:
    starts.submit(user_id="ann", actor="start_later")
    mine = starts.submit(user_id="ann")
    claimed = starts.unlimited(mine)
    assert claimed is not None
    assert claimed.lease.job_id == mine


def test_lines_of_different_queues_do_not_mix(starts: Starts) -> None:
    starts.submit(user_id="ann", queue="large")
    calls = starts.submit(user_id="ann")
    starts.claim(calls)
    assert starts.unlimited(calls) is None


def test_many_claimers_start_each_job_once(starts: Starts) -> None:
    jobs_ = [starts.submit(user_id=f"u{number % 3}") for number in range(24)]
    started = at_once([lambda job_id=job_id: starts.unlimited(job_id) for job_id in jobs_])  # type: ignore[misc]
    taken = [job.lease.job_id for job in started if job is not None]
    assert len(set(taken)) == len(taken)
    while (more := starts.unlimited(jobs_[0])) is not None:
        taken.append(more.lease.job_id)
    assert sorted(taken) == sorted(jobs_)


def test_a_delayed_job_stands_in_no_line_until_it_is_due(starts: Starts) -> None:
    later = starts.submit(user_id="ann", delay=timedelta(hours=1))
    now = starts.submit(user_id="bob")
    assert starts.row(later)["turn"] is None
    assert starts.order(later, 2) == ["bob", None]
    starts.by_hand("update callkeeper.jobs set available_at = now() where id = :id", id=later)
    claimed = starts.unlimited(later)
    assert claimed is not None
    assert claimed.lease.job_id == later, "its own message starts it when nobody stands in line"
    assert starts.row(now)["status"] == "running"


def test_what_is_to_be_tried_again_gets_in_line_with_a_message(starts: Starts) -> None:
    flood = [starts.submit(user_id="ann") for _ in range(10)]
    retried = starts.submit(user_id="bob")
    starts.db.once(jobs.requeue, starts.claim(retried).lease, delay=AT_ONCE, why="throttled")
    messages = starts.count("dramatiq.queue")
    assert starts.db.once(line.ripen) == 0, "not before its own message had a second"
    starts.by_hand("update callkeeper.jobs set available_at = now() - interval '2 s' where id = :id", id=retried)
    assert starts.db.once(line.ripen) == 1
    assert starts.count("dramatiq.queue") == messages + 1
    assert "bob" in starts.order(flood[0], 2)
    assert starts.db.once(line.ripen) == 0


def test_a_flood_of_delayed_jobs_gets_in_line_one_behind_the_other(starts: Starts) -> None:
    for _ in range(20):
        message = starts.submit(user_id="ann", delay=timedelta(hours=1))
    starts.by_hand("update callkeeper.jobs set available_at = now() - interval '2 s'")
    assert starts.db.once(line.ripen) == 20
    starts.submit(user_id="bob")
    assert "bob" in starts.order(message, 2)


def test_one_past_its_queue_deadline_does_not_block_the_line(starts: Starts) -> None:
    late = starts.submit(user_id="ann")
    starts.by_hand("update callkeeper.jobs set queue_deadline_at = now() - interval '1 s' where id = :id", id=late)
    starts.submit(user_id="ann")
    assert starts.order(late, 2) == ["ann", None]


def test_priorities_have_bounds() -> None:
    from actors import job_types

    with pytest.raises(InvalidRequest, match="priority"):
        job_types.prepare(
            "replicate-prediction",
            {"model": "a/b", "input": {}},
            user_id=None,
            account_id=None,
            idempotency_key=None,
            delay=AT_ONCE,
            priority=101,
        )


def test_a_message_that_met_a_held_row_is_not_spent(starts: Starts) -> None:
    job_id = starts.submit(user_id="ann")
    with starts.db.engine.connect() as dying:
        dying.execute(sa.text("select from callkeeper.jobs where id = :id for update"), {"id": job_id})
        assert starts.asked(job_id) is None
        messages = starts.count("dramatiq.queue")
        assert starts.db.once(line.pass_on, job_id, actors=ACTORS)
        assert starts.count("dramatiq.queue") == messages + 1
    assert starts.unlimited(job_id) is not None
    assert not starts.db.once(line.pass_on, job_id, actors=ACTORS), "nobody is left"


def test_who_came_while_a_claim_was_under_way_is_not_forgotten(starts: Starts) -> None:
    """The newcomer's message starts the first of that user in line, whose own message began to look before the newcomer came."""
    first = starts.submit(user_id="ann")
    newcomer = starts.submit(user_id="ann")
    claimed = starts.unlimited(newcomer)
    assert claimed is not None
    assert claimed.lease.job_id == first
    of_newcomer = {"where": "message -> 'args' ->> 0 = :id", "id": str(newcomer)}
    messages = starts.count("dramatiq.queue", **of_newcomer)
    assert starts.db.once(line.pass_on, first, actors=ACTORS)
    assert starts.count("dramatiq.queue", **of_newcomer) == messages + 1


def test_whoever_submits_and_claims_at_once_leaves_nobody_without_a_message(starts: Starts) -> None:
    """Each worker as it is: its message's claim, a second one, and the message passed on."""
    passed_on: list[bool] = []

    def worker() -> None:
        for _ in range(25):
            job_id = starts.submit(user_id="ann")
            if starts.unlimited(job_id) is None and starts.unlimited(job_id) is None:
                passed_on.append(starts.db.once(line.pass_on, job_id, actors=ACTORS))

    at_once([worker] * 8)
    left = starts.count("callkeeper.jobs", "status = 'queued'")
    assert left <= sum(passed_on)
