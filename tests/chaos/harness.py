"""Real workers on a real database against the sandbox: started, killed, frozen, watched, and cleaned up after.

A test waits for facts (in the database, the sandbox, /proc, a fault log), each with a deadline; never for time.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID, uuid4

import psutil
import sqlalchemy as sa

import actors
from providers.sandbox import Sandbox
from store import embedded, ledger, reads
from store.engine import Database, make_engine
from tests.chaos import kit  # noqa: F401  # registers the job types

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
OPEN = ("queued", "running", "waiting")
TIMES = {
    "CALLKEEPER_LEASE": "3",
    "CALLKEEPER_BEAT": "0.7",
    "CALLKEEPER_LEASE_MARGIN": "0.5",
    "CALLKEEPER_POLL_LEASE": "3",
    "CALLKEEPER_IMPORT_AGAIN": "2",
    "CALLKEEPER_RETRY_BASE": "0.2",
    "CALLKEEPER_RETRY_CAP": "1",
    "CALLKEEPER_THROTTLE_WAIT": "1",
    "CALLKEEPER_OPERATOR_WAIT": "1",
}
REPLICATE = {"first_poll": 0.1, "poll_every": 0.3, "send_deadline": 2, "visibility_lag": 0.5}
PROFILE = ("CRASH_AT", "PAUSE_AT", "FAULT_LOG", "DEAF", "BREAK_BEATS")


class NotInTime(AssertionError):
    """What was waited for did not happen."""


def until(happened: Callable[[], T], *, within: float = 30.0, what: str = "it") -> T:
    """The first true value of `happened`. Raises NotInTime."""
    deadline = time.monotonic() + within
    while True:
        value = happened()
        if value:
            return value
        if time.monotonic() > deadline:
            raise NotInTime(f"{what} did not happen within {within:g} s (last seen: {value!r})")
        time.sleep(0.03)


class Worker:
    """One `dramatiq` command with one worker process, in a process group of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.parent = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._child: psutil.Process | None = None
        self.frozen = False

    @property
    def child(self) -> psutil.Process:
        """The process that does the work; the parent only supervises it."""
        if self._child is None:
            self._child = until(self._find_child, what=f"a worker process ({self.log})")
        return self._child

    def _find_child(self) -> psutil.Process | None:
        with suppress(psutil.Error):
            children = psutil.Process(self.parent.pid).children()
            return children[0] if children else None
        return None

    @property
    def alive(self) -> bool:
        with suppress(psutil.Error):
            return self.child.is_running() and self.child.status() != psutil.STATUS_ZOMBIE
        return False

    def until_ready(self, *, within: float = 30.0) -> Self:
        until(lambda: "is ready for action" in self.text(), within=within, what=f"the worker's readiness ({self.log})")
        _ = self.child
        return self

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, the working process first: nobody gets to say goodbye."""
        with suppress(psutil.Error):
            self.child.kill()
        self._end_group()

    def _end_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.parent.pid, signal.SIGKILL)
        self.parent.wait(10)

    def until_dead(self, *, within: float = 30.0) -> None:
        until(lambda: not self.alive, within=within, what="the worker's death")
        self._end_group()

    def freeze(self) -> None:
        self.child.send_signal(signal.SIGSTOP)
        self.until_frozen()

    def until_frozen(self, *, within: float = 30.0) -> None:
        until(lambda: self.child.status() == psutil.STATUS_STOPPED, within=within, what="the worker's freezing")
        self.frozen = True

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)
        self.frozen = False

    def terminate(self) -> None:
        """SIGTERM to the command, as systemd or Docker sends it; it tells the worker process."""
        self.parent.terminate()

    def wait(self, within: float) -> int:
        return self.parent.wait(within)


class Fleet:
    """Workers, one database, one sandbox, and what a test asks of them. Use as a context manager."""

    def __init__(self, url: str, sandbox: Sandbox, folder: Path, env: Mapping[str, str] | None = None) -> None:
        self.url, self.sandbox, self.folder = url, sandbox, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.fault_log = folder / "faults.log"
        self.starts = folder / "starts.log"
        self.workers: list[Worker] = []
        self.jobs: list[UUID] = []
        self.db = Database(make_engine(url, name="test", pool_size=4, statement_timeout_ms=30_000), patience=40)
        self.env = {**_clean_environment(), **TIMES, **self._addresses(), **(env or {})}
        self.account = "payer"
        self.db.once(ledger.grant, self.account, subscription=1_000, topup=1_000_000)

    def _addresses(self) -> dict[str, str]:
        kinds = {
            "replicate-prediction": {"base_url": self.sandbox.replicate_url, **REPLICATE},
            "anthropic-sync": {"base_url": self.sandbox.url, "send_deadline": 20},
        }
        return {
            "DATABASE_URL": self.url,
            "REPLICATE_API_TOKEN": "good",
            "ANTHROPIC_API_KEY": "good",
            "CALLKEEPER_KINDS": json.dumps(kinds),
            "CALLKEEPER_INSECURE_MEDIA_HOSTS": self.sandbox.netloc,
            "CALLKEEPER_MEDIA_URL": str(self.folder / "media"),
            "FAULT_LOG": str(self.fault_log),
        }

    def kinds(self, **changes: Any) -> str:
        """CALLKEEPER_KINDS with these settings of `replicate-prediction` changed."""
        kinds = json.loads(self.env["CALLKEEPER_KINDS"])
        kinds["replicate-prediction"] |= changes
        return json.dumps(kinds)

    # Workers

    def spawn(
        self,
        *,
        threads: int = 4,
        grace: float = 10,
        modules: Sequence[str] = ("tests.chaos.kit",),
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        ready: bool = True,
    ) -> Worker:
        command = [sys.executable, "-m", "dramatiq", "actors", *modules, "tests.chaos.faults", "-p", "1"]
        command += ["-t", str(threads), "--worker-shutdown-timeout", str(int(grace * 1000))]
        command += ["--queues", *queues] if queues else []
        log = self.folder / f"worker-{len(self.workers)}.log"
        worker = Worker(command, {**self.env, "CALLKEEPER_THREADS": str(threads), **(env or {})}, log)
        self.workers.append(worker)
        return worker.until_ready() if ready else worker

    def until_fired(self, point: str, *, within: float = 30.0) -> None:
        until(lambda: self.fired(point), within=within, what=f"the point {point}")

    def fired(self, point: str, job_id: UUID | None = None) -> int:
        """How often a point was reached, by any worker."""
        lines = self.fault_log.read_text().splitlines() if self.fault_log.exists() else []
        return sum(
            line.split(" ")[1] == point and (job_id is None or line.endswith(str(job_id)))
            for line in lines
        )  # fmt: skip

    # Jobs

    def submit(self, job_type: str, *, key: str | None = None, **request: Any) -> UUID:
        with self.db.engine.begin() as connection:
            job_id = actors.submit(
                connection, job_type, request, user_id="ann", account_id=self.account, idempotency_key=key
            ).job_id
        self.jobs.append(job_id)
        return job_id

    def picture(self, prompt: str, **more: Any) -> UUID:
        return self.submit("picture", prompt=prompt, **more)

    def words(self, prompt: str, *, job_type: str = "words") -> UUID:
        return self.submit(job_type, prompt=prompt)

    def chore(self, *, job_type: str = "chore", **request: Any) -> UUID:
        return self.submit(job_type, starts=str(self.starts), **request)

    def started(self) -> list[str]:
        """One line for every start of a chore: pid and attempt."""
        return self.starts.read_text().splitlines() if self.starts.exists() else []

    def stop(self, job_id: UUID) -> actors.State:
        with self.db.engine.begin() as connection:
            return actors.stop(connection, job_id)

    def job(self, job_id: UUID) -> Mapping[str, Any]:
        return self.one("select * from callkeeper.jobs where id = :id", id=job_id)

    def status(self, job_id: UUID) -> str:
        return str(self.job(job_id)["status"])

    def events(self, job_id: UUID) -> list[str]:
        return [
            row["kind"]
            for row in self.rows("select kind from callkeeper.job_events where job_id = :id order by seq", id=job_id)
        ]

    def charged(self, job_id: UUID) -> tuple[str, int]:
        """What became of the reservation, and what was charged in the end."""
        row = self.one(
            "select status, committed_subscription + committed_topup as charged from callkeeper.usage_logs where job_id = :id",
            id=job_id,
        )
        return row["status"], row["charged"]

    def creates(self, prompt: str) -> int:
        return self.sandbox.totals(containing=prompt)["all"]

    def stale_writes(self) -> list[str]:
        return [row["verb"] for row in self.rows("select verb from callkeeper.stale_writes order by id")]

    def alerts(self) -> dict[str, int]:
        return {row["subject"]: row["times"] for row in self.rows("select subject, times from callkeeper.alerts")}

    def clear(self) -> None:
        """Forget the jobs of earlier tests, which have all ended, and the messages they left."""
        assert self._ended() is not None, "an earlier test left a job open"
        for table in ("callkeeper.jobs", "callkeeper.alerts", "dramatiq.queue"):
            self.do(f"delete from {table}")
        self.do(
            "update callkeeper.accounts set granted_subscription = balance_subscription, granted_topup = balance_topup,"
            " committed_subscription = 0, committed_topup = 0"
        )
        self.starts.unlink(missing_ok=True)
        self.fault_log.unlink(missing_ok=True)
        self.jobs.clear()

    # Waiting

    def until_status(self, job_id: UUID, *wanted: str, within: float = 30.0) -> str:
        return until(
            lambda: status if (status := self.status(job_id)) in wanted else None,
            within=within,
            what=f"job {job_id} being {' or '.join(wanted)}, it is {self.status(job_id)},",
        )

    def until_event(self, job_id: UUID, kind: str, *, within: float = 30.0) -> None:
        until(lambda: kind in self.events(job_id), within=within, what=f"event {kind} of {job_id}")

    def until_done(self, *, within: float = 30.0) -> dict[str, int]:
        """Every job has ended; how many in each state."""
        try:
            return until(self._ended, within=within, what="the end of all jobs")
        except NotInTime as late:
            open_jobs = self.rows(
                "select id, job_type, status, attempt, lease_until - now() as lease, next_poll_at - now() as poll,"
                " available_at - now() as due, provider_task_id as task, resolve_by - now() as quiet"
                " from callkeeper.jobs where finished_at is null limit 5"
            )
            raise NotInTime(f"{late}; still open: {[dict(row) for row in open_jobs]}") from None

    def _ended(self) -> dict[str, int] | None:
        counts = self.db.once(reads.counts)
        return None if any(counts.get(state) for state in OPEN) else counts

    # Truth

    def rows(self, statement: str, **binds: Any) -> list[Mapping[str, Any]]:
        return [dict(row) for row in self.db.once(lambda c: c.execute(sa.text(statement), binds).mappings().all())]

    def one(self, statement: str, **binds: Any) -> Mapping[str, Any]:
        (row,) = self.rows(statement, **binds)
        return row

    def do(self, statement: str, **binds: Any) -> int:
        return self.db.once(lambda c: c.execute(sa.text(statement), binds).rowcount)

    def violations(self) -> list[Mapping[str, Any]]:
        return list(self.db.once(reads.violations))

    def check(self) -> None:
        """No invariant is broken, and the ledger says exactly what the completed jobs cost."""
        assert self.violations() == []
        wallet = self.db.once(ledger.balance, self.account)
        assert wallet is not None
        assert wallet.granted == wallet.available + wallet.reserved + wallet.committed
        prices = self.one(
            "select coalesce(sum(price) filter (where status = 'completed'), 0) as earned,"
            " coalesce(sum(price) filter (where status in ('queued', 'running', 'waiting')), 0) as held"
            " from callkeeper.jobs where account_id is not null"
        )
        assert (wallet.committed, wallet.reserved) == (prices["earned"], prices["held"])

    # End

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self.db.dispose()

    def tail(self, lines: int = 40) -> str:
        """The end of every worker's log, for a failure's report."""
        return "\n".join(
            f"--- {worker.log.name}\n" + "\n".join(worker.text().splitlines()[-lines:]) for worker in self.workers
        )


def _clean_environment() -> dict[str, str]:
    ours = ("CALLKEEPER_", "REPLICATE_", "ELEVENLABS_", "ANTHROPIC_", "dramatiq_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours) and name not in PROFILE}
    return {**kept, "PYTHONUNBUFFERED": "1"}


@contextmanager
def database(admin_url: str, url_of: Callable[[str], str], template: str) -> Iterator[str]:
    """The URL of a migrated database that lives as long as the block."""
    name = f"callkeeper_chaos_{uuid4().hex[:12]}"
    embedded.create_database(admin_url, name, template=template)
    try:
        yield url_of(name)
    finally:
        embedded.drop_database(admin_url, name)
