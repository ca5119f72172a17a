"""Behaviours 33 to 40: the log, who follows it, and how they come back."""

import asyncio
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

import actors
from actors import Followers, Frame, JobNotFound, mailbox
from store import follow, milestones
from tests.behaviours.conftest import MODULES
from tests.behaviours.kit import ODD
from tests.chaos.harness import Fleet, until
from tests.store.steps import Steps, at_once


def all_of(followers: Followers, job_id: Any, **options: Any) -> list[Frame]:
    return list(followers.follow(job_id, **options))


def test_b33_appenders_count_without_gaps_and_readers_never_look_back(steps: Steps) -> None:
    lease = steps.running(mode="local")
    over = threading.Event()
    seen: list[int] = []

    def append(number: int) -> None:
        for _ in range(20):
            steps.db.once(milestones.record, lease, f"writer_{number}", {})

    def read() -> None:
        """A cursor that takes what is there: nothing may ever appear below it."""
        while not (over.is_set() and len(seen) == 162):
            (page,) = steps.db.once(follow.read, [follow.Cursor(lease.job_id, seen[-1] if seen else 0, 7)])
            assert page is not None
            seen.extend(seq for seq, _, _ in page.frames)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    at_once([lambda number=number: append(number) for number in range(8)])
    over.set()
    reader.join(20)
    assert seen == list(range(1, 163))
    assert steps.row(lease.job_id)["event_seq"] == 162


def test_b34_ten_thousand_tokens_leave_no_row_and_every_milestone_does(office: Fleet, followers: Followers) -> None:
    gate = office.folder / "gate-34"
    job_id = office.submit("book", chapters=10, tokens=1_000, gate=str(gate))
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(all_of, followers, job_id, tokens=True)
        until(lambda: office.rows("select 1 from callkeeper.followed where ephemeral_until > now()"), what="its mark")
        gate.touch()
        frames = told.result(30)
    assert office.events(job_id).count("app.chapter_done") == 10
    assert office.one("select event_seq as n from callkeeper.jobs")["n"] == 14
    assert not office.rows("select 1 from callkeeper.job_events where kind in ('token', 'progress')")
    assert [frame.seq for frame in frames if frame.seq] == list(range(1, 15))
    text = {}
    for frame in frames:
        assert len(frame.bytes) < 8_000
        if frame.kind == "token":
            text |= {frame.data["from"] + place: letter for place, letter in enumerate(frame.data["text"])}
    assert text, "whoever is there hears something of it"
    assert all(letter == "é "[place % 2] for place, letter in text.items())
    lasts = [frame.after for frame in frames]
    assert lasts == sorted(lasts), "each is shown between its milestone and the next"


def test_b35_whoever_leaves_after_any_frame_and_returns_misses_and_repeats_nothing(
    office: Fleet, followers: Followers
) -> None:
    job_id = office.submit("book", chapters=8)
    office.until_status(job_id, "completed")
    whole = [frame.bytes for frame in all_of(followers, job_id)]
    for cut in range(len(whole) + 1):
        frames = followers.follow(job_id)
        seen = [next(frames) for _ in range(cut)]
        frames.close()  # type: ignore[attr-defined]  # a generator, which is how a reader goes away
        after = seen[-1].after if seen else 0
        assert [frame.bytes for frame in [*seen, *followers.follow(job_id, after=after)]] == whole


def test_b36_the_bytes_are_the_same_live_and_replayed(office: Fleet, followers: Followers) -> None:
    gate = office.folder / "gate-36"
    job_id = office.submit("book", chapters=3, gate=str(gate))
    with ThreadPoolExecutor(1) as pool:
        live = pool.submit(all_of, followers, job_id)
        until(lambda: office.rows("select 1 from callkeeper.followed"), what="its mark")
        gate.touch()
        frames = live.result(30)
    assert [frame.bytes for frame in frames] == [frame.bytes for frame in all_of(followers, job_id)]
    told = next(frame for frame in frames if frame.kind == "app.chapter_done")
    assert json.dumps(ODD, ensure_ascii=False, separators=(",", ":"))[:-1].encode() in told.bytes, (
        "its own order, and \\u0000"
    )
    assert list(told.data) == [*ODD, "chapter"]
    assert told.data["a"] == ODD["a"]
    stored = office.one("select data from callkeeper.job_events where kind = 'app.chapter_done' limit 1")["data"]
    assert stored["a"][1]["b"] == "nul \N{REPLACEMENT CHARACTER} end", "what its JSON column cannot hold"


def test_b37_it_is_followed_to_its_end_from_anywhere_whatever_dies(fleet: Fleet) -> None:
    replicas = [Followers(fleet.url) for _ in range(3)]
    gate = fleet.folder / "gate"
    job_id = fleet.submit("book", chapters=5, gate=str(gate))
    try:
        with ThreadPoolExecutor(6) as pool:
            readers = [pool.submit(all_of, replicas[0], job_id)]
            until(lambda: fleet.rows("select 1 from callkeeper.followed"), what="the first reader's mark")
            dying = fleet.spawn(modules=MODULES)
            until(lambda: "call_started" in fleet.events(job_id), what="the start")
            readers.append(pool.submit(all_of, replicas[1], job_id))
            dying.kill()
            fleet.do(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'callkeeper follow'"
            )
            gate.touch()
            fleet.spawn(modules=MODULES)
            readers.append(pool.submit(all_of, replicas[1], job_id, after=2))
            fleet.until_status(job_id, "completed")
            readers.append(pool.submit(all_of, replicas[2], job_id))
            read = [[frame.bytes for frame in reader.result(30)] for reader in readers]
    finally:
        for replica in replicas:
            replica.close()
    assert read[0] == read[1] == read[3]
    assert read[2] == read[0][2:]
    assert json.loads(read[0][-1])["kind"] == "completed"


def test_b38_a_slow_reader_has_every_milestone_and_an_end(office: Fleet, followers: Followers) -> None:
    job_id = office.submit("book", chapters=120, tokens=20)
    frames = followers.follow(job_id, tokens=True)
    seen = [next(frames)]
    office.until_status(job_id, "completed", within=30)
    seen += frames
    stored = [frame.seq for frame in seen if frame.seq]
    assert stored == list(range(1, 125))
    assert seen[-1].is_last
    assert mailbox.MILESTONES < 120


@pytest.mark.parametrize("after", [-1, -(10**20), 0])
def test_b39_a_cursor_from_before_the_beginning_is_the_beginning(
    office: Fleet, followers: Followers, after: int
) -> None:
    job_id = office.submit("book", chapters=1)
    assert [frame.seq for frame in all_of(followers, job_id, after=after)] == [1, 2, 3, 4, 5]


def test_b39_a_cursor_beyond_the_end_is_the_end(office: Fleet, followers: Followers) -> None:
    gate = office.folder / "gate-39"
    job_id = office.submit("book", chapters=1, gate=str(gate))
    until(lambda: "call_started" in office.events(job_id), what="the start")
    with ThreadPoolExecutor(1) as pool:
        rest = pool.submit(all_of, followers, job_id, after=10**20)
        until(lambda: office.rows("select 1 from callkeeper.followed"), what="its mark")
        until(
            lambda: (
                followers._hub is not None
                and all((cursor := box.cursor()) is not None and cursor.after == 3 for box in followers._hub._places)
            ),
            what="its look",
        )
        gate.touch()
        assert [frame.seq for frame in rest.result(20)] == [4, 5]
    assert all_of(followers, job_id, after=10**20) == []


def test_b40_somebody_elses_job_is_not_there(office: Fleet, followers: Followers) -> None:
    job_id = office.submit("book", chapters=1)
    office.until_status(job_id, "completed")
    for who, what in (("bob", job_id), ("ann", uuid4())):
        with office.db.engine.begin() as connection:
            with pytest.raises(JobNotFound):
                actors.job(connection, what, user_id=who)
            with pytest.raises(JobNotFound):
                actors.stop(connection, what, user_id=who)
        with pytest.raises(JobNotFound):
            next(followers.follow(what, user_id=who))
    assert len(followers) == 0
    with office.db.engine.begin() as connection:
        assert actors.job(connection, job_id, user_id="ann")["status"] == "completed"


def cuts(fleet: Fleet, *, readers: int, times: int, kills: int) -> None:
    """Readers that leave after a random number of frames and return elsewhere, beside one that dawdles, while workers die."""
    replicas = [Followers(fleet.url) for _ in range(3)]
    dice = random.Random(7)
    workers = [fleet.spawn(modules=MODULES)]
    jobs = [fleet.submit("book", chapters=times // readers + 5, tokens=3, pause=0.02) for _ in range(readers)]
    made = threading.Lock()
    done = [0]

    def cut(job_id: Any) -> list[bytes]:
        seen: list[bytes] = []
        after = 0
        while True:
            frames = dice.choice(replicas).follow(job_id, after=after, tokens=True)
            left = dice.randint(1, 4)
            for frame in frames:
                after = frame.after
                if frame.seq is not None:
                    seen.append(frame.bytes)
                if frame.is_last:
                    return seen
                left -= 1
                if not left:
                    break
            frames.close()  # type: ignore[attr-defined]
            with made:
                done[0] += 1

    async def dawdle(job_id: Any) -> list[bytes]:
        seen = []
        async for frame in replicas[0].follow_async(job_id, tokens=True):
            if frame.seq is not None:
                seen.append(frame.bytes)
            await asyncio.sleep(0.01)
        return seen

    try:
        with ThreadPoolExecutor(readers * 2) as pool:
            quick = {job_id: pool.submit(cut, job_id) for job_id in jobs}
            slow = pool.submit(asyncio.run, dawdle(jobs[0]))
            for _ in range(kills):
                until(lambda: fleet.rows("select 1 from callkeeper.jobs where status = 'running'"), what="work")
                time.sleep(dice.uniform(0.1, 0.6))
                workers[-1].kill()
                workers.append(fleet.spawn(modules=MODULES))
            fleet.until_done(within=240)
            for job_id, reading in quick.items():
                stored = fleet.rows(
                    "select frame from callkeeper.job_events where job_id = :id order by seq", id=job_id
                )
                assert reading.result(60) == [row["frame"].encode() for row in stored]
            assert slow.result(60) == quick[jobs[0]].result()
            assert any(fleet.job(job_id)["attempt"] > 1 for job_id in jobs), "no kill hit work"
    finally:
        for replica in replicas:
            replica.close()
    assert done[0] >= times, f"only {done[0]} cuts"
    fleet.check()


def test_b35_b36_b38_cut_thirty_times_while_a_worker_is_killed(fleet: Fleet) -> None:
    cuts(fleet, readers=3, times=30, kills=1)


@pytest.mark.slow
def test_b35_b36_b38_cut_five_hundred_times_while_workers_are_killed(fleet: Fleet) -> None:
    cuts(fleet, readers=10, times=500, kills=6)
