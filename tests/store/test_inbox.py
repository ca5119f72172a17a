"""Callbacks kept: once each, turned into a poll, and believed in nothing but which task they are about."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from store import inbox, polls
from store.models import PollNote
from tests.store.steps import FAR, KIND, Steps


def receive(
    steps: Steps, task: str, *, delivery: str = "d1", job: UUID | None = None, generation: int | None = 1
) -> int:
    assert steps.db.once(inbox.receive, KIND, delivery, task, job_id=job, generation=generation if job else None)
    row = steps.one("select id from callkeeper.webhook_deliveries where delivery_id = :d", d=delivery)
    return int(row["id"])


def due(steps: Steps, job: UUID) -> bool:
    return bool(steps.one("select next_poll_at <= now() as due from callkeeper.jobs where id = :id", id=job)["due"])


def receipts(steps: Steps) -> list[tuple[Any, ...]]:
    return [
        (row["job_id"], row["provider_task_id"], row["source"])
        for row in steps.all("select job_id, provider_task_id, source from callkeeper.call_receipts order by id")
    ]


def asleep(steps: Steps, job: UUID) -> UUID:
    """A waiting job whose next poll is far away."""
    found = steps.poll(job)
    steps.db.once(polls.record_polls, [PollNote(found, next_in=FAR)])
    return job


def test_a_delivery_is_kept_once_and_wakes_one_actor(steps: Steps) -> None:
    receive(steps, "t")
    assert not steps.db.once(inbox.receive, KIND, "d1", "t")
    assert not steps.db.once(inbox.receive, KIND, "d1", "another")
    assert steps.db.once(inbox.receive, "another-kind", "d1", "t")
    bodies = [row["message"] for row in steps.all("select message from dramatiq.queue")]
    assert [(body["actor_name"], body["queue_name"]) for body in bodies] == [("apply_callback", "results")] * 2


def test_a_known_task_is_polled_now_and_a_delivery_applied_once(steps: Steps) -> None:
    job, other = asleep(steps, steps.waiting(task="t")), asleep(steps, steps.waiting(task="o"))
    delivery = receive(steps, "t")
    assert steps.db.once(inbox.apply, delivery) == "polled"
    assert (due(steps, job), due(steps, other)) == (True, False)
    asleep(steps, job)
    assert steps.db.once(inbox.apply, delivery) is None
    assert not due(steps, job)


def test_a_call_whose_id_was_lost_is_named_by_its_callback(steps: Steps) -> None:
    job = asleep(steps, steps.ambiguous())
    assert steps.db.once(inbox.apply, receive(steps, "named", job=job)) == "polled"
    assert due(steps, job)
    assert receipts(steps) == [(job, "named", "callback")]


@pytest.mark.parametrize("wrong", ["generation", "kind", "settled"])
def test_a_token_names_one_call_and_no_other(steps: Steps, wrong: str) -> None:
    job = asleep(steps, steps.waiting(task="mine") if wrong == "settled" else steps.ambiguous())
    before = receipts(steps)
    delivery = receive(steps, "named", job=job, generation=2 if wrong == "generation" else 1)
    if wrong == "kind":
        steps.by_hand("update callkeeper.webhook_deliveries set provider_kind = 'kie-veo'")
    assert steps.db.once(inbox.apply, delivery) == "unknown_task"
    assert (receipts(steps), due(steps, job)) == (before, False)


def test_a_task_that_has_its_job_is_not_given_to_another(steps: Steps) -> None:
    owner, lost = steps.waiting(task="taken"), asleep(steps, steps.ambiguous())
    steps.db.once(inbox.apply, receive(steps, "taken", job=lost))
    assert [entry for entry in receipts(steps) if entry[0] == lost] == []
    assert receipts(steps) == [(owner, "taken", "create")]


def test_a_callback_before_its_create_came_home_waits_for_it(steps: Steps) -> None:
    lease = steps.calling()
    assert steps.db.once(inbox.apply, receive(steps, "early", job=lease.job_id)) == "known"
    from store import calls

    steps.db.once(calls.checkpoint_call, lease, "early", first_poll=timedelta(0))
    assert receipts(steps) == [(lease.job_id, "early", "callback")]
    assert steps.violations() == []
