"""An app, its own tables, its own transactions, and Callkeeper beside them: from submit to the file in the store."""

import asyncio
import hashlib
import time
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import actors
from tests.chaos.harness import Fleet, until
from tests.chaos.kit import PICTURE, WORDS

ORDERS = "create table orders (id int primary key, job_id uuid references callkeeper.jobs (id) on delete cascade)"


class Refused(Exception):
    """The app changes its mind in the middle of a transaction."""


def file_of(fleet: Fleet, asset: dict[str, Any]) -> bytes:
    return (fleet.folder / "media" / asset["object_key"]).read_bytes()


def test_both_kinds_come_home_with_their_results(crew: Fleet) -> None:
    crew.sandbox.script({"defaults": {"run_seconds": 0.3}})
    still, film, talk = crew.picture("a red fox."), crew.picture("a film.", video=True), crew.words("say hello.")
    assert crew.until_done() == {"completed": 3}
    found = {}
    for job_id, starts in ((still, b"\x89PNG\r\n"), (film, b"ftyp")):
        with crew.db.engine.connect() as connection:
            job = actors.job(connection, job_id)
        (asset,) = job["assets"]
        body = file_of(crew, asset)
        assert starts in body[:12]
        assert (asset["size_bytes"], asset["sha256"]) == (len(body), hashlib.sha256(body).hexdigest())
        assert job["result"]["media"] == [{name: asset[name] for name in asset if name != "partial"}]
        assert asset["partial"] is False
        assert f"/{job_id}/{job['call_generation']}/" in asset["object_key"]
        assert (job["credits"], job["charged"]) == ("committed", PICTURE)
        found[job_id] = asset["object_key"]
    assert found[still] != found[film]
    with crew.db.engine.connect() as connection:
        job = actors.job(connection, talk)
    assert job["result"]["text"].startswith("sandbox reply")
    assert job["result"]["usage"]["output_tokens"] > 0
    assert (job["credits"], job["charged"]) == ("committed", WORDS)
    assert crew.sandbox.totals() == {"replicate": 2, "anthropic": 1, "all": 3}
    crew.check()


def test_the_job_lives_and_dies_with_the_apps_transaction(crew: Fleet) -> None:
    crew.do(ORDERS)

    def order(number: int, *, keep: bool) -> UUID:
        with crew.db.engine.begin() as connection:
            asked = {"prompt": f"order {number}."}
            job_id = actors.submit(connection, "picture", asked, account_id=crew.account).job_id
            connection.execute(sa.text("insert into orders values (:n, :job)"), {"n": number, "job": job_id})
            if not keep:
                raise Refused
            return job_id

    with pytest.raises(Refused):
        order(1, keep=False)
    kept = order(2, keep=True)
    crew.until_status(kept, "completed")
    assert [row["id"] for row in crew.rows("select id from callkeeper.jobs")] == [kept]
    assert crew.rows("select id, job_id from orders") == [{"id": 2, "job_id": kept}]
    assert (crew.creates("order 1."), crew.creates("order 2.")) == (0, 1)
    assert crew.rows("select 1 from callkeeper.usage_logs where status = 'reserved'") == []
    crew.check()


def test_a_session_and_an_async_session_do_as_well(crew: Fleet) -> None:

    async def from_async() -> UUID:
        engine = create_async_engine(crew.url)
        try:
            async with AsyncSession(engine) as session, session.begin():
                submitted = await session.run_sync(
                    actors.submit, "words", {"prompt": "async."}, account_id=crew.account
                )
                return submitted.job_id
        finally:
            await engine.dispose()

    with Session(crew.db.engine) as session, session.begin():
        plain = actors.submit(session, "words", {"prompt": "plain."}, account_id=crew.account).job_id
    jobs = [plain, asyncio.run(from_async())]
    assert crew.until_done() == {"completed": 2}
    assert {row["id"] for row in crew.rows("select id from callkeeper.jobs")} == set(jobs)
    crew.check()


def test_the_same_key_buys_once_and_a_failed_one_is_free_again(crew: Fleet) -> None:
    crew.sandbox.script({"rules": [{"when": {"route": "create", "nth": [1]}, "do": {"fail": "out of memory"}}]})
    first = crew.picture("keyed.", key="order-1")
    crew.until_status(first, "failed")
    second = crew.picture("keyed.", key="order-1")
    assert second != first
    crew.until_status(second, "completed")
    assert crew.picture("keyed.", key="order-1") == second
    with pytest.raises(actors.IdempotencyConflict):
        crew.picture("another thing.", key="order-1")
    assert crew.creates("keyed.") == 2, "one that failed, one that completed"
    crew.check()


def test_followed_live_it_ends_by_itself(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"run_seconds": 1}})
    job_id = fleet.picture("followed.")
    fleet.spawn(ready=False)
    events = list(actors.follow(fleet.db.engine, job_id))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    kinds = [event.kind for event in events]
    assert kinds[:4] == ["queued", "started", "call_started", "call_accepted"]
    assert kinds[-1] == "completed"
    assert list(actors.follow(fleet.db.engine, job_id, after=len(events) - 1)) == events[-1:]
    fleet.check()


def test_a_delayed_job_waits_in_its_row(crew: Fleet) -> None:
    with crew.db.engine.begin() as connection:
        job_id = actors.submit(
            connection, "picture", {"prompt": "later."}, account_id=crew.account, delay=timedelta(seconds=1.5)
        ).job_id
    crew.until_status(job_id, "completed")
    row = crew.one(
        "select extract(epoch from started_at - created_at) as s from callkeeper.jobs where id = :id", id=job_id
    )
    assert 1.5 <= row["s"] < 1.5 + 2
    crew.check()


def test_forty_calls_on_two_workers(fleet: Fleet) -> None:
    """The demo's load without its kills: each bought once, each settled once, and the work is shared."""
    fleet.sandbox.script({"defaults": {"run_seconds": [0.1, 1], "latency": [0.01, 0.05]}})
    workers = [fleet.spawn(), fleet.spawn()]
    begun = time.monotonic()
    for number in range(20):
        fleet.picture(f"forty {number}.")
        fleet.words(f"forty {number}.")
    assert fleet.until_done() == {"completed": 40}
    print(f"forty calls: {time.monotonic() - begun:.1f} s")
    assert fleet.sandbox.totals() == {"replicate": 20, "anthropic": 20, "all": 40}
    until(lambda: not fleet.rows("select 1 from dramatiq.queue"), what="all messages handled")
    assert all("call.accepted" in worker.text() or "job.completed" in worker.text() for worker in workers)
    fleet.check()
