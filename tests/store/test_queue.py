"""The broker's statements: a message is one consumer's at a time, and only that consumer may finish it."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from store import jobs, queue
from store.engine import libpq_url
from tests.store.steps import AT_ONCE, FAR, Steps, at_once


class Consumer:
    """One connection, as the broker's consumers have."""

    def __init__(self, url: str) -> None:
        self.worker = uuid4()
        self.connection = psycopg.connect(url, autocommit=True)

    def claim(self, name: str = "calls", limit: int = 100) -> list[UUID]:
        values = {"queue": name, "limit": limit, "worker": self.worker}
        return [row[0] for row in self.connection.execute(queue.CLAIM, values).fetchall()]

    def run(self, statement: str, messages: list[UUID], **values: Any) -> int:
        return self.connection.execute(statement, {"messages": messages, "worker": self.worker, **values}).rowcount

    def send(self, *, delay: timedelta = AT_ONCE, message_id: UUID | None = None, name: str = "calls") -> UUID:
        message_id = message_id or uuid4()
        values = {"message_id": message_id, "queue": name, "message": Jsonb({"args": []}), "delay": delay}
        self.connection.execute(queue.SEND, values)
        return message_id

    def tick(self, schedule: str) -> bool:
        values = {"schedule": schedule, "message_id": uuid4(), "queue": "maintenance", "message": Jsonb({"args": []})}
        return self.connection.execute(queue.SEND_TICK, values).fetchone() is not None


@pytest.fixture
def consumers(steps: Steps) -> Iterator[list[Consumer]]:
    url = libpq_url(steps.db.engine.url.render_as_string(hide_password=False))
    made = [Consumer(url) for _ in range(4)]
    yield made
    for consumer in made:
        consumer.connection.close()


def states(steps: Steps) -> dict[UUID, str]:
    return {row["message_id"]: row["state"] for row in steps.all("select message_id, state from dramatiq.queue")}


def test_consumers_at_once_never_get_the_same_message(consumers: list[Consumer]) -> None:
    sent = {consumers[0].send() for _ in range(80)}
    barrier = threading.Barrier(4)

    def claim(consumer: Consumer) -> list[UUID]:
        barrier.wait()
        return [message for _ in range(5) for message in consumer.claim(limit=4)]

    got = [one for batch in at_once([lambda c=c: claim(c) for c in consumers]) for one in batch]
    assert len(got) == len(set(got)) == 80
    assert set(got) == sent


def test_only_due_messages_of_that_queue_are_claimed_and_only_once(consumers: list[Consumer]) -> None:
    one, other = consumers[:2]
    due = one.send()
    one.send(delay=FAR)
    one.send(name="large")
    assert one.claim() == [due]
    assert other.claim() == [] == one.claim()


def test_a_locked_message_is_skipped(steps: Steps, consumers: list[Consumer]) -> None:
    one, other = consumers[:2]
    locked, free = one.send(), one.send()
    other.connection.execute("set lock_timeout = 300")
    with one.connection.transaction():
        one.connection.execute("select from dramatiq.queue where message_id = %s for update", [locked])
        assert other.claim() == [free]
    assert other.claim() == [locked]


@pytest.mark.parametrize("how", ["ACK", "HAND_BACK", "REJECT"])
def test_only_its_consumer_may_finish_a_message(steps: Steps, consumers: list[Consumer], how: str) -> None:
    one, other = consumers[:2]
    values = {"delay": AT_ONCE} if how == "HAND_BACK" else {}
    statement = getattr(queue, how)
    message = one.send()
    assert one.run(statement, [message], **values) == 0, "nobody has claimed it"
    assert one.claim() == [message]
    before = states(steps)
    assert other.run(statement, [message], **values) == 0
    assert states(steps) == before
    assert one.run(statement, [message], **values) == 1
    left = {"ACK": {}, "HAND_BACK": {message: "queued"}, "REJECT": {message: "rejected"}}[how]
    assert states(steps) == left


@pytest.mark.parametrize("how", ["ACK", "HAND_BACK", "REJECT"])
def test_a_message_that_is_not_consumed_is_not_finished(steps: Steps, consumers: list[Consumer], how: str) -> None:
    """The worker's mark alone is not enough: here it was left on a message that is queued again."""
    one = consumers[0]
    message = one.send()
    steps.by_hand("update dramatiq.queue set worker_id = :worker", worker=one.worker)
    values = {"delay": AT_ONCE} if how == "HAND_BACK" else {}
    assert one.run(getattr(queue, how), [message], **values) == 0
    assert states(steps) == {message: "queued"}


def test_a_message_handed_back_comes_again_after_its_delay(steps: Steps, consumers: list[Consumer]) -> None:
    one, other = consumers[:2]
    message = one.send()
    one.claim()
    one.run(queue.HAND_BACK, [message], delay=FAR)
    assert other.claim() == []
    steps.by_hand("update dramatiq.queue set available_at = now()")
    assert other.claim() == [message]


def test_a_message_sent_twice_is_there_once(steps: Steps, consumers: list[Consumer]) -> None:
    message = consumers[0].send()
    consumers[0].send(message_id=message)
    assert list(states(steps)) == [message]


def test_a_tick_fires_once_however_many_schedulers_run(steps: Steps, consumers: list[Consumer]) -> None:
    barrier = threading.Barrier(4)

    def tick(consumer: Consumer) -> bool:
        barrier.wait()
        return consumer.tick("sweep")

    fired = at_once([lambda c=c: tick(c) for c in consumers])
    # The minute may turn while they race; then both minutes fire, each once.
    minutes = steps.count("callkeeper.ticks")
    assert sum(fired) == minutes == len(states(steps)) <= 2
    assert consumers[0].tick("watchdog"), "another schedule has ticks of its own"


def test_wake_and_submit_tell_the_listener(steps: Steps, consumers: list[Consumer]) -> None:
    listener = consumers[0].connection
    listener.execute('listen "dramatiq.calls.enqueue"')
    job_id = steps.submit()
    assert [note.payload for note in listener.notifies(timeout=5, stop_after=1)] == [""]
    steps.db.once(jobs.requeue, steps.claim(job_id).lease, delay=AT_ONCE, why="x")
    assert [note.channel for note in listener.notifies(timeout=5, stop_after=1)] == ["dramatiq.calls.enqueue"]
