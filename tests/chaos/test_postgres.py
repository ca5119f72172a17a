"""Postgres goes away under load, and comes back: every worker resumes by itself, nothing is lost, nothing bought twice."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest
import sqlalchemy as sa

import actors
from providers.sandbox import Sandbox
from store import embedded, migrate
from tests.chaos.harness import Fleet, until

BUSY = {"defaults": {"run_seconds": [0.2, 1.5], "latency": [0.0, 0.05], "reply_delay": [0.0, 0.1]}}


@pytest.fixture
def own_server() -> Iterator[embedded.EmbeddedServer]:
    """A server that may be crashed without anybody else noticing."""
    with tempfile.TemporaryDirectory(prefix="callkeeper-crash-") as folder, embedded.start(Path(folder)) as running:
        yield running


class Steady:
    """Submits all the time from a thread of its own, as an app does; a failed submit is tried again, as an app does."""

    def __init__(self, fleet: Fleet, every: float) -> None:
        self._fleet, self._every = fleet, every
        self.pictures = 0
        self.failed = 0
        self._end = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._end.wait(self._every):
            try:
                # With a key: a commit whose answer was lost must not become a second job.
                self._fleet.picture(f"steady {self.pictures}.", key=f"steady-{self.pictures}")
                self.pictures += 1
            except Exception:
                self.failed += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def settled(fleet: Fleet, jobs: int, *, within: float = 60) -> dict[str, int]:
    ends = fleet.until_done(within=within)
    assert sum(ends.values()) == jobs, "every accepted submit has one end"
    # Whoever held a message when the connection broke has let it go.
    until(
        lambda: not fleet.rows("select 1 from dramatiq.queue where state <> 'rejected'"),
        within=30,
        what="an empty queue",
    )
    bill = [line["input"]["prompt"] for line in fleet.sandbox.bill() if line["kind"] == "replicate"]
    assert len(bill) == len(set(bill)), "nothing was bought twice"
    fleet.check()
    return ends


def test_a_crash_of_postgres_under_load(own_server: embedded.EmbeddedServer, sandbox: Sandbox, tmp_path: Path) -> None:
    url = own_server.create_database("crash")
    migrate.upgrade(url)
    with Fleet(url, sandbox, tmp_path) as fleet:
        workers = [fleet.spawn(), fleet.spawn()]
        sandbox.script(BUSY)
        recovered: list[float] = []
        with Steady(fleet, 0.03) as load:
            for _ in range(2):
                seen = load.pictures + 30
                until(lambda seen=seen: load.pictures >= seen, what="load")
                assert fleet.rows("select 1 from callkeeper.jobs where status in ('running', 'waiting')"), (
                    "work in hand"
                )
                own_server.restart_immediate()
                back = time.monotonic()
                # New work is done again, by workers that nobody restarted.
                after = fleet.words(f"after the crash {len(recovered)}.")
                fleet.until_status(after, "completed", within=40)
                recovered.append(time.monotonic() - back)
        print(f"recovery after Postgres answers again: {[round(seconds, 1) for seconds in recovered]} s")
        ends = settled(fleet, load.pictures + len(recovered))
        assert load.failed > 0, "the crash was felt"
        assert all(worker.alive for worker in workers), "nobody had to be restarted"
        # A create whose intent was committed and whose request never left is refunded; everything else comes home.
        assert ends["completed"] >= load.pictures * 0.97
        errors = fleet.rows("select distinct error_code from callkeeper.jobs where status = 'failed'")
        assert {row["error_code"] for row in errors} <= {"reconcile_no_recovery"}


@pytest.mark.slow
def test_every_connection_is_cut_again_and_again(fleet: Fleet) -> None:
    fleet.sandbox.script(BUSY)
    workers = [fleet.spawn(), fleet.spawn()]
    cut = (
        "select count(pg_terminate_backend(pid)) as n from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid() and application_name <> 'test'"
    )
    cuts = []
    with Steady(fleet, 0.02) as load:
        for _ in range(3):
            seen = load.pictures + 25
            until(lambda seen=seen: load.pictures >= seen, what="load")
            cuts.append(fleet.one(cut)["n"])
    ends = settled(fleet, load.pictures)
    assert min(cuts) >= 4, "connections were really cut"
    assert all(worker.alive for worker in workers)
    assert ends["completed"] >= load.pictures * 0.97
    fleet.check()


def test_a_backlog_survives_cut_connections(fleet: Fleet) -> None:
    """Messages in the consumers' hands when their connection breaks go back to the queue, while the process lives."""
    gate = fleet.folder / "gate"
    busy = [fleet.chore(gate=str(gate)) for _ in range(2)]
    jobs = [fleet.chore() for _ in range(10)]
    fleet.spawn(threads=2, ready=False)
    held = "select 1 from dramatiq.queue where state = 'consumed' offset 2"
    until(lambda: fleet.rows(held), what="messages in hand, and not at work")
    fleet.one(
        "select count(pg_terminate_backend(pid)) as n from pg_stat_activity"
        " where datname = current_database() and application_name = 'dramatiq-postgres'"
    )
    assert fleet.rows(held), "the cut came while they were in hand"
    gate.touch()
    until(
        lambda: all(fleet.status(job_id) == "completed" for job_id in busy + jobs), within=25, what="the backlog's end"
    )
    until(lambda: not fleet.rows("select 1 from dramatiq.queue"), within=25, what="an empty queue")
    assert {fleet.job(job_id)["attempt"] for job_id in busy + jobs} == {1}
    fleet.check()


def test_a_claim_whose_answer_was_lost_is_not_lost(fleet: Fleet) -> None:
    """The claim was committed, the connection broke before the answer: nobody knows of the message, and the process that
    owns it by the row is alive, so no reaper will come.
    """
    fleet.spawn()
    (worker,) = until(lambda: fleet.rows("select worker_id from dramatiq.worker"), what="the worker's row")
    blocked = (
        "select pid from pg_stat_activity where datname = current_database()"
        " and application_name = 'dramatiq-postgres' and wait_event_type = 'Lock'"
    )
    with fleet.db.engine.begin() as connection:
        connection.execute(sa.text("lock table dramatiq.queue in access exclusive mode"))
        # Every consumer is now in the middle of a claim.
        pids = until(lambda: fleet.rows(blocked), what="a claim in flight")
        job_id = actors.submit(connection, "picture", {"prompt": "lost claim."}, account_id=fleet.account).job_id
        taken = "update dramatiq.queue set state = 'consumed', worker_id = :worker, consumed_at = now() where state = 'queued'"
        assert connection.execute(sa.text(taken), {"worker": worker["worker_id"]}).rowcount == 1
        until(lambda: len(fleet.rows(blocked)) >= 4, what="the claim of every queue in flight")
        for row in fleet.rows(blocked):
            fleet.do("select pg_terminate_backend(:pid)", pid=row["pid"])
    assert pids
    fleet.until_status(job_id, "completed", within=10)
    fleet.check()
