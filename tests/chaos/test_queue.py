"""The queue itself: a large backlog, and messages that nobody here can handle."""

import json
from uuid import UUID, uuid4

import pytest

from tests.chaos.harness import Fleet, until

FILL = """
insert into dramatiq.queue (message_id, queue_name, state, message)
select id, 'calls', 'queued', jsonb_build_object(
  'queue_name', 'calls', 'actor_name', 'start_call', 'args', jsonb_build_array(gen_random_uuid()), 'kwargs', '{}'::jsonb,
  'options', '{}'::jsonb, 'message_id', id, 'message_timestamp', 0)
from (select gen_random_uuid() as id from generate_series(1, :count)) made
"""
LEFT = "select count(*) as n from dramatiq.queue"


@pytest.mark.parametrize("backlog", [5_000, pytest.param(50_000, marks=pytest.mark.slow)])
def test_a_backlog_drains_on_one_process_with_flat_memory(fleet: Fleet, backlog: int) -> None:
    """Wake-ups for jobs that are not there any more: each is looked at, none is kept."""
    worker = fleet.spawn(threads=4)
    fleet.do(FILL, count=500)
    until(lambda: fleet.one(LEFT)["n"] == 0, within=60, what="the warm-up's end")
    before = worker.child.memory_info().rss
    assert fleet.do(FILL, count=backlog) == backlog
    job_id = fleet.picture("behind the backlog.")
    most = before
    while fleet.one(LEFT)["n"]:
        most = max(most, worker.child.memory_info().rss)
        left = fleet.one(LEFT)["n"]
        until(lambda left=left: fleet.one(LEFT)["n"] < left or not left, within=20, what="the backlog getting smaller")
    assert most - before < 24 * 2**20, f"{(most - before) / 2**20:.1f} MB more"
    fleet.until_status(job_id, "completed")
    locks = fleet.one("select count(*) as n from pg_locks where locktype = 'advisory'")["n"]
    assert locks == 0
    fleet.check()


def put(fleet: Fleet, body: dict[str, object], *, queue: str = "calls") -> str:
    message_id = str(uuid4())
    whole = {
        "queue_name": queue, "actor_name": "start_call", "args": [], "kwargs": {}, "options": {},
        "message_id": message_id, "message_timestamp": 0, **body,
    }  # fmt: skip
    fleet.do(
        "insert into dramatiq.queue (message_id, queue_name, state, message)"
        " values (:id, :queue, 'queued', cast(:body as jsonb))",
        id=message_id, queue=queue, body=json.dumps(whole),
    )  # fmt: skip
    return message_id


def state(fleet: Fleet, message_id: str) -> str | None:
    found = fleet.rows("select state from dramatiq.queue where message_id = :id", id=message_id)
    return found[0]["state"] if found else None


def test_a_message_for_an_unknown_actor_goes_back_and_is_not_lost(fleet: Fleet) -> None:
    stranger = put(fleet, {"actor_name": "of_another_release"})
    worker = fleet.spawn()
    until(lambda: "queue.unknown_actor" in worker.text(), what="the message being met")
    until(lambda: state(fleet, stranger) == "queued", what="the message going back")
    row = fleet.one("select available_at > now() as later from dramatiq.queue where message_id = :id", id=stranger)
    assert row["later"], "not at once, or it would be met forever"
    job_id = fleet.picture("past the stranger.")
    fleet.until_status(job_id, "completed")
    assert state(fleet, stranger) == "queued"
    # A release that knows the actor gets it, from where it is.
    fleet.do("update dramatiq.queue set available_at = now() where message_id = :id", id=stranger)
    fleet.spawn(modules=("tests.chaos.kit", "tests.chaos.newer"))
    fleet.do("update dramatiq.queue set available_at = now() where message_id = :id and state = 'queued'", id=stranger)
    worker.kill()
    fleet.do("update dramatiq.queue set available_at = now() where message_id = :id and state = 'queued'", id=stranger)
    until(lambda: state(fleet, stranger) is None, what="the message being handled")


UNREADABLE = [{"actor_name": 7}, {"args": "text"}, {"options": None, "args": None}, {"kwargs": 1, "args": {}}]
NAMELESS = [["not a job id"], [], [None], [str(UUID(int=7)), 1]]


@pytest.mark.parametrize("body", [*UNREADABLE, *({"args": args} for args in NAMELESS)], ids=str)
def test_a_message_that_nobody_can_use_is_put_aside_and_the_queue_goes_on(crew: Fleet, body: dict[str, object]) -> None:
    broken = put(crew, body)
    job_id = crew.words("past the unusable.")
    crew.until_status(job_id, "completed")
    until(lambda: state(crew, broken) == "rejected", within=5, what="the message being put aside")
    crew.check()


def test_a_job_type_unknown_to_this_worker_is_given_back(fleet: Fleet) -> None:
    """A worker of an older release meets a newer job: no attempt is spent, an alert is raised, the right one does it."""
    job_ids = [fleet.picture("new type."), fleet.chore(), fleet.words("new type too.")]
    old = fleet.spawn(modules=())
    for job_id in job_ids:
        fleet.until_event(job_id, "requeued")
    assert fleet.sandbox.totals()["all"] == 0
    assert {subject for subject in fleet.alerts() if subject.startswith("unknown_job_type")} == {
        "unknown_job_type:picture", "unknown_job_type:chore", "unknown_job_type:words",
    }  # fmt: skip
    old.kill()
    fleet.spawn()
    assert fleet.until_done() == {"completed": 3}
    assert {fleet.job(job_id)["attempt"] for job_id in job_ids} <= {1, 2}
    fleet.check()


def test_large_work_is_done_by_workers_of_that_queue_only(fleet: Fleet) -> None:
    job_id = fleet.submit("large-picture", prompt="large.")
    small = fleet.spawn(queues=("calls", "results", "maintenance"))
    other = fleet.picture("small.")
    fleet.until_status(other, "completed")
    assert (fleet.status(job_id), fleet.creates("large.")) == ("queued", 0)
    small.kill()
    fleet.spawn(queues=("large",))
    fleet.until_status(job_id, "completed")
    assert fleet.creates("large.") == 1
    fleet.check()
