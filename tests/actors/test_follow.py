"""Following a job ends by itself, whenever it is begun: before, during or after the work."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

import actors
from actors import JobNotFound, State, follow
from store import jobs, settle
from store.engine import Database
from store.models import ClaimedJob, Settlement

REQUEST = {"model": "acme/draw", "input": {"prompt": "x"}}
WHOLE = ["queued", "started", "completed"]


@pytest.fixture
def job_id(engine: sa.Engine) -> UUID:
    with engine.begin() as connection:
        return actors.submit(connection, "replicate-prediction", REQUEST).job_id


def start(engine: sa.Engine, job_id: UUID) -> ClaimedJob:
    claimed = Database(engine).once(jobs.claim_queued, job_id, owner="test", term=timedelta(minutes=1))
    assert claimed is not None
    return claimed


def finish(engine: sa.Engine, claimed: ClaimedJob) -> None:
    Database(engine).transact(settle.complete, claimed.lease, Settlement(State.COMPLETED, result={"text": "done"}))


def kinds(engine: sa.Engine, job_id: UUID, **options: int) -> list[str]:
    return [event["kind"] for event in follow(engine, job_id, every=0.02, **options)]


def test_from_before_it_starts(engine: sa.Engine, job_id: UUID) -> None:
    with ThreadPoolExecutor(1) as pool:
        events = follow(engine, job_id, every=0.02)
        assert next(events)["kind"] == "queued"
        rest = pool.submit(lambda: [event["kind"] for event in events])
        finish(engine, start(engine, job_id))
        assert rest.result(10) == WHOLE[1:]


def test_while_it_runs(engine: sa.Engine, job_id: UUID) -> None:
    claimed = start(engine, job_id)
    with ThreadPoolExecutor(1) as pool:
        events = follow(engine, job_id, every=0.02)
        assert [next(events)["kind"], next(events)["kind"]] == WHOLE[:2]
        rest = pool.submit(lambda: [event["kind"] for event in events])
        finish(engine, claimed)
        assert rest.result(10) == WHOLE[2:]


def test_after_its_end(engine: sa.Engine, job_id: UUID) -> None:
    finish(engine, start(engine, job_id))
    assert kinds(engine, job_id) == WHOLE
    assert kinds(engine, job_id, after=1) == WHOLE[1:], "resumed from the last seq seen"


def test_resumed_after_the_last_event_it_ends_at_once(engine: sa.Engine, job_id: UUID) -> None:
    """A reader whose connection broke behind the terminal event asks for what comes after it: nothing does."""
    finish(engine, start(engine, job_id))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(kinds, engine, job_id, after=3).result(5) == []


def test_a_job_that_is_not_there(engine: sa.Engine) -> None:
    with pytest.raises(JobNotFound):
        next(follow(engine, uuid4()))
