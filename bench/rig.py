"""What every measurement stands on: a fresh database, the sandbox, worker processes, counters from outside."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import sqlalchemy as sa

from providers.sandbox import Sandbox
from store import embedded, ledger, migrate, reads
from store import submit as store_submit
from store.engine import Database, make_engine

Request = tuple[str, Mapping[str, Any]]
_NO_DELAY = timedelta(0)
# Who pays: the settlements of one account come one after the other, those of many do not.
USERS = 100
# By its index: the measurement must not be what keeps the database busy.
_ANY_OPEN = sa.text("select exists (select from callkeeper.jobs where status in ('queued', 'running', 'waiting'))")
_WORKERS = sa.text("select count(*) from dramatiq.worker")


def picture(number: int) -> Request:
    return "replicate-prediction", {"model": "acme/draw", "input": {"prompt": f"bench {number}"}}


def text(number: int) -> Request:
    messages = [{"role": "user", "content": f"bench {number}"}]
    return "anthropic-sync", {"model": "claude-x", "max_tokens": 16, "messages": messages}


@dataclass
class Rig:
    """One run's surroundings. `environment` is what workers get."""

    url: str
    sandbox: Sandbox
    environment: dict[str, str]
    db: Database
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_worker(self, *, threads: int = 8) -> psutil.Process:
        """A worker process, ready; its parent is in its own process group."""
        command = [sys.executable, "-m", "dramatiq", "actors", "-p", "1", "-t", str(threads)]
        seen = self.scalar(_WORKERS)
        parent = subprocess.Popen(
            command, env=self.environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )
        self.workers.append(parent)
        until(lambda: self.scalar(_WORKERS) > seen, what="a worker's first heartbeat")
        children = psutil.Process(parent.pid).children()
        return children[0]

    def kill_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.workers.clear()

    def submit(
        self, make: Callable[[int], Request], count: int, *, batch: int = 100, user: str | None = None
    ) -> list[UUID]:
        """By many users in turn, or all by one of them."""
        from actors import job_types

        ids: list[UUID] = []
        for first in range(0, count, batch):
            with self.db.engine.begin() as connection:
                for number in range(first, min(first + batch, count)):
                    name, body = make(number)
                    whose = user or f"bench-{number % USERS}"
                    job = job_types.prepare(
                        name, body, user_id=whose, account_id=whose, idempotency_key=None, delay=_NO_DELAY
                    )
                    ids.append(store_submit.submit(connection, job).job_id)
        return ids

    def scalar(self, query: sa.TextClause, **binds: Any) -> Any:
        return self.db.once(lambda connection: connection.execute(query, binds).scalar_one())

    def open_jobs(self) -> int:
        counts = self.db.once(reads.counts)
        return sum(counts.get(state, 0) for state in ("queued", "running", "waiting"))

    def wait_until_done(self, *, within: float = 300) -> None:
        until(lambda: not self.scalar(_ANY_OPEN), within=within, what="the last job's end")

    def violations(self) -> int:
        return len(self.db.once(reads.violations))


def until(happened: Callable[[], Any], *, within: float = 60, what: str, every: float = 0.02) -> Any:
    """The first true value of `happened`. Raises TimeoutError naming `what`."""
    give_up_at = time.monotonic() + within
    while not (value := happened()):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{what} did not come within {within:g} s")
        time.sleep(every)
    return value


@contextmanager
def rig(script: Mapping[str, Any] | None = None, **overrides: Any) -> Iterator[Rig]:
    """A Rig, torn down whatever happens. `overrides` are CALLKEEPER_ settings; `kinds` those of the picture kind."""
    picture_kind = {"first_poll": 0.05, "poll_every": 0.5} | overrides.pop("kinds", {})
    with tempfile.TemporaryDirectory(prefix="callkeeper-bench-") as folder, Sandbox() as sandbox:
        os.chmod(folder, 0o755)  # noqa: PTH101  # the database server's own user must pass
        sandbox.script({"defaults": {"webhook": "off"}} | dict(script or {}))
        with embedded.start(Path(folder) / "postgres") as server:
            url = server.create_database("bench")
            migrate.upgrade(url)
            environment = os.environ | {
                "DATABASE_URL": url,
                "REPLICATE_API_TOKEN": "bench",
                "ANTHROPIC_API_KEY": "bench",
                "CALLKEEPER_MEDIA_URL": f"{folder}/media",
                "CALLKEEPER_INSECURE_MEDIA_HOSTS": sandbox.netloc,
                "CALLKEEPER_KINDS": json.dumps(
                    {
                        "replicate-prediction": {"base_url": sandbox.replicate_url, **picture_kind},
                        "anthropic-sync": {"base_url": sandbox.url},
                    }
                ),
                **{f"CALLKEEPER_{name.upper()}": str(value) for name, value in overrides.items()},
            }
            db = Database(make_engine(url, name="bench"))
            for number in range(USERS):
                db.once(ledger.grant, f"bench-{number}", topup=10**9)
            stand = Rig(url=url, sandbox=sandbox, environment=environment, db=db)
            try:
                yield stand
            finally:
                stand.kill_workers()
                db.dispose()
