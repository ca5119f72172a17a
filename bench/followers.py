"""A crowd of followers on one web process: who got what, how late, and what each costs in memory."""

import asyncio
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import psutil
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from bench.rig import Rig, picture, rig, until
from store import signals, tokens
from store.engine import Database
from store.states import TERMINAL

# A milestone of every job at once, as a verb would write it.
READER = "bench-0"  # whose jobs they are, and who follows them
NOTE = sa.text(
    """
    with moved as (
      update callkeeper.jobs set event_seq = event_seq + 1 where id = any(:job_ids)
      returning id, event_seq, attempt, epoch
    )
    insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
    select id, event_seq, 'note', attempt, epoch, jsonb_build_object('round', cast(:round as integer)) from moved
    """
).bindparams(sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)))


@dataclass
class Follower:
    """One connection: the numbers it was given, in order, and how late each came, in seconds."""

    job_id: UUID
    seen: list[int] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    ended: bool = False


async def follow(host: str, port: int, token: str, follower: Follower, opened: asyncio.Semaphore) -> None:
    """Read one stream until it ends. Speaks HTTP by hand: a thousand clients must cost less than what they measure."""
    async with opened:
        reader, writer = await asyncio.open_connection(host, port)
        head = f"GET /jobs/{follower.job_id}/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in answer.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"no stream: {answer.decode(errors='replace')}")
    try:
        async for event in _events(reader):
            follower.seen.append(event["seq"])
            follower.late.append(time.time() - datetime.fromisoformat(event["at"]).timestamp())
            follower.ended = event["kind"] in TERMINAL
    finally:
        writer.close()


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """The data of each event of a chunked body. A chunk here is one event or one comment."""
    while size := int(await reader.readline(), 16):
        chunk = await reader.readexactly(size)
        await reader.readexactly(2)
        for line in chunk.split(b"\n"):
            if line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))


async def crowd(
    db: Database, port: int, token: str, job_ids: Sequence[UUID], *, followers: int, rounds: int, every: float
) -> tuple[list[Follower], int]:
    """All of them, after `rounds` milestones and the end of each job; and the process's memory while all were open."""
    people = [Follower(job_ids[number % len(job_ids)]) for number in range(followers)]
    opened = asyncio.Semaphore(50)
    work = [asyncio.create_task(follow("127.0.0.1", port, token, one, opened)) for one in people]
    await _until(lambda: all(one.seen for one in people), work, "the first event of every follower")
    memory = rss_of_server(port)
    for number in range(rounds):
        await asyncio.to_thread(db.once, lambda c, n=number: c.execute(NOTE, {"job_ids": list(job_ids), "round": n}))
        await asyncio.sleep(every)
    for job_id in job_ids:
        await asyncio.to_thread(db.transact, signals.request_stop, job_id)
    await asyncio.wait_for(asyncio.gather(*work), 60)
    return people, memory


async def _until(happened: Any, work: Sequence[asyncio.Task[None]], what: str) -> None:
    give_up_at = time.monotonic() + 120
    while not happened():
        for one in work:
            if one.done():
                one.result()
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what} did not come")
        await asyncio.sleep(0.05)


def rss_of_server(port: int) -> int:
    """Bytes of the process that listens there."""
    for connection in psutil.net_connections("tcp"):
        if connection.laddr and connection.laddr.port == port and connection.status == psutil.CONN_LISTEN:
            return int(psutil.Process(connection.pid).memory_info().rss)
    raise LookupError(f"nobody listens on {port}")


def raise_file_limit() -> None:
    """A connection is a file."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@contextlib.contextmanager
def web(stand: Rig, port: int, log: int = subprocess.DEVNULL) -> Iterator[None]:
    """A web process that answers."""
    command = [sys.executable, "-m", "web", "--port", str(port)]
    extra = {
        "CALLKEEPER_WEB_STREAMS_PER_USER": "5000",
        "CALLKEEPER_WEB_STREAMS": "5000",
        "CALLKEEPER_LOG_LEVEL": "ERROR",
    }
    process = subprocess.Popen(command, env=stand.environment | extra, stdout=log, stderr=log)
    try:
        until(lambda: _answers(port), what="the web process")
        yield
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def measure(*, followers: int = 1000, jobs: int = 10, rounds: int = 20, every: float = 0.5) -> list[dict[str, Any]]:
    """1,000 streams: none may lack a milestone."""
    raise_file_limit()
    with rig() as stand:
        port = _free_port()
        with web(stand, port):
            token = stand.db.once(tokens.create, scope="user", user_id=READER)[1]
            asyncio.run(
                crowd(stand.db, port, token, stand.submit(picture, 1, user=READER), followers=1, rounds=1, every=0.1)
            )
            before = rss_of_server(port)
            job_ids = stand.submit(picture, jobs, user=READER)
            people, memory = asyncio.run(
                crowd(stand.db, port, token, job_ids, followers=followers, rounds=rounds, every=every)
            )
    # The first is the replay of what was there before; its age says nothing.
    late = sorted(seconds for one in people for seconds in one.late[1:])
    whole = sum(one.seen == list(range(1, rounds + 3)) and one.ended for one in people)
    name = f"{followers} followers of {jobs} jobs on one web process"
    return [
        {
            "figure": f"{name}: delivery, from the event's own time to the reader",
            "value": round(1000 * statistics.median(late), 1),
            "unit": "ms, p50",
            "p99_ms": round(1000 * late[int(len(late) * 0.99)], 1),
            "worst_ms": round(1000 * late[-1], 1),
            "milestones": len(late),
            "complete_followers": whole,
            "yardstick": "complete followers wanted",
            "yardstick_value": followers,
            "ratio": whole / followers,
        },
        {
            "figure": f"{name}: memory of a follower",
            "value": round((memory - before) / followers / 1024, 1),
            "unit": "KiB",
            "before_mb": round(before / 1e6),
            "with_all_mb": round(memory / 1e6),
        },
    ]


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
