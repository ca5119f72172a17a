"""Following a job ends by itself, whenever it is begun; what is sent live is what is replayed."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

import actors
from actors import Followers, Frame, JobNotFound, State, hub, mailbox
from store import follow as store_follow
from store import jobs, settle
from store.engine import Database
from store.models import ClaimedJob, Settlement

REQUEST = {"model": "acme/draw", "input": {"prompt": "x"}}
WHOLE = ["queued", "started", "completed"]
AT_ONCE = timedelta(0)


@pytest.fixture
def job_id(engine: sa.Engine) -> UUID:
    return submit(engine)


@pytest.fixture
def followers(database_url: str) -> Iterator[Followers]:
    made = Followers(database_url)
    yield made
    made.close()


def submit(engine: sa.Engine, **options: Any) -> UUID:
    with engine.begin() as connection:
        return actors.submit(connection, "replicate-prediction", REQUEST, **options).job_id


def start(engine: sa.Engine, job_id: UUID) -> ClaimedJob:
    claimed = Database(engine).once(jobs.claim_queued, job_id, owner="test", term=timedelta(minutes=1))
    assert claimed is not None
    return claimed


def again(engine: sa.Engine, job_id: UUID, times: int) -> None:
    """Two milestones each time."""
    for _ in range(times):
        Database(engine).once(jobs.requeue, start(engine, job_id).lease, delay=AT_ONCE, why="again")


def finish(engine: sa.Engine, claimed: ClaimedJob) -> None:
    Database(engine).transact(settle.complete, claimed.lease, Settlement(State.COMPLETED, result={"text": "done"}))


def kinds(followers: Followers, job_id: UUID, **options: Any) -> list[str]:
    return [frame.kind for frame in followers.follow(job_id, **options)]


def until(happened: Callable[[], Any], *, within: float = 10.0) -> None:
    deadline = time.monotonic() + within
    while not happened():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def is_marked(engine: sa.Engine, job_id: UUID) -> bool:
    with engine.connect() as connection:
        text = sa.text("select count(*) from callkeeper.followed where job_id = :id")
        return bool(connection.execute(text, {"id": job_id}).scalar_one())


def test_from_before_it_starts(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    with ThreadPoolExecutor(1) as pool:
        frames = followers.follow(job_id)
        assert next(frames).kind == "queued"
        rest = pool.submit(lambda: [frame.kind for frame in frames])
        finish(engine, start(engine, job_id))
        assert rest.result(10) == WHOLE[1:]
    assert len(followers) == 0


def test_while_it_runs(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    claimed = start(engine, job_id)
    with ThreadPoolExecutor(1) as pool:
        frames = followers.follow(job_id)
        assert [next(frames).kind, next(frames).kind] == WHOLE[:2]
        rest = pool.submit(lambda: [frame.kind for frame in frames])
        finish(engine, claimed)
        assert rest.result(10) == WHOLE[2:]


def test_after_its_end(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    finish(engine, start(engine, job_id))
    assert kinds(followers, job_id) == WHOLE
    assert kinds(followers, job_id, after=1) == WHOLE[1:], "resumed from the last seq seen"


def test_resumed_after_the_last_event_it_ends_at_once(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    """A reader whose connection broke behind the terminal event asks for what comes after it: nothing does."""
    finish(engine, start(engine, job_id))
    with ThreadPoolExecutor(1) as pool:
        for after in (3, 4, 2**40):
            assert pool.submit(kinds, followers, job_id, after=after).result(5) == []


def test_a_cursor_beyond_the_end_of_an_open_job_waits_for_what_comes(
    engine: sa.Engine, followers: Followers, job_id: UUID
) -> None:
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(kinds, followers, job_id, after=1_000)
        until(lambda: is_marked(engine, job_id))
        (place,) = followers._hub._places.values()  # type: ignore[union-attr]
        until(lambda: place.box.cursor().after == 1)  # type: ignore[union-attr]
        finish(engine, start(engine, job_id))
        assert rest.result(10) == WHOLE[1:]


def test_a_job_that_is_not_there_or_somebody_elses(engine: sa.Engine, followers: Followers) -> None:
    with pytest.raises(JobNotFound):
        next(followers.follow(uuid4()))
    theirs = submit(engine, user_id="ann")
    with pytest.raises(JobNotFound):
        next(followers.follow(theirs, user_id="bob"))
    assert next(followers.follow(theirs, user_id="ann")).kind == "queued"


def test_on_an_event_loop(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    async def read() -> list[str]:
        return [frame.kind async for frame in followers.follow_async(job_id)]

    async def main() -> list[list[str]]:
        reading = [asyncio.create_task(read()) for _ in range(5)]
        await asyncio.to_thread(lambda: until(lambda: len(followers) == 5))
        claimed = await asyncio.to_thread(start, engine, job_id)
        await asyncio.to_thread(finish, engine, claimed)
        return await asyncio.wait_for(asyncio.gather(*reading), 10)

    assert asyncio.run(main()) == [WHOLE] * 5
    assert len(followers) == 0


def test_the_bytes_are_the_same_live_and_replayed(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    with ThreadPoolExecutor(1) as pool:
        live = pool.submit(lambda: list(followers.follow(job_id)))
        until(lambda: is_marked(engine, job_id))
        claimed = start(engine, job_id)
        details = {"zebra": "ñandú 🦙 \u2028", "a": [1.50, {"y": None, "b": "\x00"}]}
        outcome = Settlement(State.FAILED, error_code="x", error_message="no", details=details)
        Database(engine).transact(settle.end_held, claimed.lease, outcome)
        frames: list[Frame] = live.result(10)
    assert [frame.bytes for frame in frames] == [frame.bytes for frame in followers.follow(job_id)]
    last = json.loads(frames[-1].bytes)
    assert list(last) == ["seq", "kind", "attempt", "epoch", "at", "data"]
    assert (last["seq"], last["kind"], last["data"]["zebra"]) == (3, "failed", "ñandú 🦙 \u2028")
    assert b"\n" not in frames[-1].bytes
    assert [frame.after for frame in frames] == [frame.seq for frame in frames] == [1, 2, 3]
    assert [frame.is_last for frame in frames] == [False, False, True]


def test_a_slow_reader_misses_no_milestone_and_its_mailbox_stays_small(
    engine: sa.Engine, followers: Followers, job_id: UUID
) -> None:
    frames = followers.follow(job_id)
    seen = [next(frames)]
    again(engine, job_id, 50)
    finish(engine, start(engine, job_id))
    (box,) = followers._hub._places  # type: ignore[union-attr]  # what is bounded is inside
    for frame in frames:
        seen.append(frame)
        assert len(box._frames) <= mailbox.MILESTONES
    assert [frame.seq for frame in seen] == list(range(1, 104))


def test_a_lost_notification_costs_two_seconds(
    engine: sa.Engine, followers: Followers, job_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.Hub, "_heard", lambda *_: None)
    with ThreadPoolExecutor(1) as pool:
        frames = followers.follow(job_id)
        next(frames)
        rest = pool.submit(lambda: [(frame.kind, time.monotonic()) for frame in frames])
        finish(engine, start(engine, job_id))
        ended = time.monotonic()
        assert [kind for kind, _ in rest.result(15)] == WHOLE[1:]
        assert hub.POLL < 2
        assert rest.result()[-1][1] - ended < 6


def test_a_cut_listener_comes_back(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    frames = followers.follow(job_id)
    next(frames)
    with engine.begin() as connection:
        cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = current_database()"
        mine = " and application_name = 'callkeeper follow'"
        assert connection.execute(sa.text(cut + mine)).scalar_one() >= 1
    finish(engine, start(engine, job_id))
    assert [frame.kind for frame in frames] == WHOLE[1:]


def test_only_a_followed_job_notifies(engine: sa.Engine, job_id: UUID) -> None:
    """A NOTIFY makes commits wait for each other: nobody pays for one that nobody hears."""
    other = submit(engine)
    heard: list[str] = []
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"listen {store_follow.EVENTS}"))
        store_follow.mark(connection, {job_id: False}, term=timedelta(minutes=1))
        start(engine, other)
        finish(engine, start(engine, job_id))
        link: Any = connection.connection.driver_connection
        heard = [note.payload for note in link.notifies(timeout=5, stop_after=2)]
    assert heard == [str(job_id)] * 2


def test_marks_are_forgotten(engine: sa.Engine, job_id: UUID) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        store_follow.mark(connection, {job_id: True, uuid4(): True}, term=timedelta(seconds=-1))
        assert connection.execute(sa.text("select count(*) from callkeeper.followed")).scalar_one() == 1
        store_follow.forget(connection)
        assert connection.execute(sa.text("select count(*) from callkeeper.followed")).scalar_one() == 0


def test_two_connections_serve_any_number_of_followers(engine: sa.Engine, followers: Followers, job_id: UUID) -> None:
    ends = threading.Barrier(20)

    def read() -> list[str]:
        frames = followers.follow(job_id)
        first = next(frames).kind
        ends.wait(20)
        return [first, *(frame.kind for frame in frames)]

    with ThreadPoolExecutor(20) as pool:
        reading = [pool.submit(read) for _ in range(20)]
        until(lambda: len(followers) == 20)
        with engine.connect() as connection:
            open_now = "select count(*) from pg_stat_activity where application_name = 'callkeeper follow'"
            count = connection.execute(sa.text(open_now + " and datname = current_database()")).scalar_one()
        assert count <= 2
        finish(engine, start(engine, job_id))
        assert [one.result(20) for one in reading] == [WHOLE] * 20
