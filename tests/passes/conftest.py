"""What the passes' tests stand on: a real database, the sandbox as every provider, and a clock that can be moved.

Calls are made by the worker's own code in this process; nothing runs by itself, so a test decides which pass comes when.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa

import actors
from actors import call, settings
from actors.gates import Gates
from actors.outbox import deliver_due
from actors.poll import Poller
from actors.reconcile import Pass
from actors.recovery import completed_from_recovery
from actors.runtime import Runtime
from providers.contract import Mode
from providers.registry import KINDS
from providers.sandbox import Sandbox
from store import jobs, ledger, looks, reads
from tests.conftest import Server, scratch_database
from tests.passes import kit  # noqa: F401  # registers the job types
from tests.store.conftest import EMPTY, opened
from tests.store.steps import Steps, relaxed


def reply(status: int, body: Any = None, *, route: str = "poll", contains: str | None = None) -> dict[str, Any]:
    when = {"route": route} | ({} if contains is None else {"contains": contains})
    return {"when": when, "do": {"reply": {"status": status, "body": body or {"detail": "no", "status": status}}}}


@pytest.fixture(scope="session")
def _one_sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_one_sandbox: Sandbox) -> Sandbox:
    _one_sandbox.reset()
    return _one_sandbox


def base_url(kind: str, sandbox: Sandbox) -> str:
    if kind.startswith("replicate"):
        return sandbox.replicate_url
    return sandbox.openrouter_url if kind.startswith("openrouter") else sandbox.url


def options(url: str, sandbox: Sandbox, folder: Path, **changes: Any) -> settings.Settings:
    kinds = {name: {"base_url": base_url(name, sandbox), "api_key": "good"} for name in KINDS}
    for name in ("replicate-prediction", "kie-standard"):
        kinds[name] |= {"poll_deadline": "0.7", "send_deadline": "1"}
    return settings.Settings(
        **{
            "database_url": url,
            "kinds": kinds,
            "media_url": str(folder / "media"),
            "insecure_media_hosts": [sandbox.netloc],
            "retry_base": 0.2,
            "breaker_wait": 30.0,
            **changes,
        }
    )


@dataclass
class Stand:
    """A runtime on a database, a sandbox, and what a test says about them."""

    rt: Runtime
    sandbox: Sandbox
    steps: Steps
    account: str = ""
    made: list[UUID] = field(default_factory=list)

    # Jobs

    def submit(self, job_type: str = "placard", **request: Any) -> UUID:
        terms = {name: request.pop(name) for name in ("visibility", "watermark", "key") if name in request}
        if "key" in terms:
            terms["idempotency_key"] = terms.pop("key")
        request.setdefault("prompt", f"a fox {uuid.uuid4().hex[:8]}")
        with self.rt.db.engine.begin() as connection:
            done = actors.submit(connection, job_type, request, user_id="ann", account_id=self.account, **terms)
        self.made.append(done.job_id)
        return done.job_id

    def start(self, job_id: UUID) -> UUID:
        """Run the job's actor here, as a worker would; an asynchronous call then waits."""
        claimed_at = time.monotonic()
        job = self.rt.db.once(jobs.claim_queued, job_id, owner=self.rt.owner, term=self.rt.options.lease_term)
        assert job is not None, self.job(job_id)
        with self.rt.keeper.holding(job.lease, claimed_at=claimed_at) as held:
            if not completed_from_recovery(self.rt, job):
                (call._run if job.mode == Mode.SYNC else call._start)(self.rt, job, held)
        return job_id

    def waiting(self, job_type: str = "placard", *, runs: float = 10_000, stale: bool = True, **request: Any) -> UUID:
        """A job whose task runs at the provider for so many of the sandbox's seconds; stale and due for its look."""
        self.sandbox.script({"defaults": {"run_seconds": runs, "webhook": "off"}})
        job_id = self.start(self.submit(job_type, **request))
        assert self.job(job_id)["status"] == "waiting", self.job(job_id)
        if stale:
            self.stale(job_id)
        return job_id

    def stale(self, *job_ids: UUID) -> None:
        """Past its threshold, and nobody polls it: the pass has the word."""
        self.steps.by_hand(
            "update callkeeper.jobs set provider_call_started_at = provider_call_started_at - stale_after,"
            " next_check_at = now(), next_poll_at = case when status = 'waiting' then now() + interval '1 day' end"
            " where id = any(:ids)",
            ids=list(job_ids),
        )

    def finish(self, job_id: UUID, **script: Any) -> None:
        """The job's task ends well at the provider."""
        self.finish_task(self.job(job_id)["provider_task_id"], **script)

    def finish_task(self, task_id: str, **script: Any) -> None:
        self.sandbox.script({"defaults": {"webhook": "off", **script}})
        self.sandbox.finish(task_id)

    def lapse(self, job_id: UUID) -> None:
        """Its worker is gone."""
        self.steps.by_hand(
            "update callkeeper.jobs set lease_until = now() - interval '1 second', next_check_at = now() where id = :id",
            id=job_id,
        )

    # Passes and time

    def pass_(self, *, seconds: float = 60) -> Counter[str]:
        """One pass, to its end; the process remembers no gate from before."""
        self.rt.gates = Gates(self.rt)
        return self.rt.submit(Pass(self.rt).work(time.monotonic() + seconds)).result()

    def tick(self, *, minutes: float = 5) -> Counter[str]:
        """Let the time go on, then a pass."""
        self.later(minutes=minutes)
        return self.pass_()

    def later(self, *, minutes: float) -> None:
        """The clock moves: every time of whatever is open lies that much further back. Polls stay the pass's."""
        for table, where in (
            ("jobs", "finished_at is null"),
            ("provider_gates", "true"),
            ("upstream_watches", "ended_at is null"),
        ):
            columns = self.steps.all(
                "select column_name as name from information_schema.columns where table_schema = 'callkeeper'"
                " and table_name = :table and data_type = 'timestamp with time zone'",
                table=table,
            )
            moved = ", ".join(
                f"{name} = {name} - make_interval(secs => :seconds)"
                for name in (row["name"] for row in columns)
                if name != "next_poll_at"
            )
            self.steps.by_hand(f"update callkeeper.{table} set {moved} where {where}", seconds=minutes * 60)
        if self.sandbox._process is not None:
            self.sandbox.advance(minutes * 60)

    def poll(self, job_id: UUID) -> None:
        """What a worker's poller does, once."""
        self.steps.by_hand("update callkeeper.jobs set next_poll_at = now() where id = :id", id=job_id)
        self.rt.submit(Poller(self.rt).drain_once()).result()

    def deliver(self) -> int:
        return self.rt.submit(deliver_due(self.rt, self.rt.on_thread)).result()

    # Truth

    def job(self, job_id: UUID) -> Mapping[str, Any]:
        return self.steps.row(job_id)

    def end(self, job_id: UUID) -> tuple[str, str | None]:
        row = self.job(job_id)
        return row["status"], row["error_code"]

    def credits(self, job_id: UUID) -> tuple[str, int]:
        row = self.steps.one("select * from callkeeper.usage_logs where job_id = :id", id=job_id)
        return row["status"], row["committed_subscription"] + row["committed_topup"]

    def history(self, job_id: UUID) -> list[tuple[str, str]]:
        return [(look["found"], look["did"]) for look in self.rt.db.once(looks.history, job_id)]

    def spend(self) -> list[UUID]:
        rows = self.steps.all("select job_id from callkeeper.unexplained_spend where resolved_at is null")
        return [row["job_id"] for row in rows]

    def alerts(self) -> dict[str, int]:
        return {
            row["subject"]: row["times"]
            for row in self.steps.all("select subject, times from callkeeper.alerts where resolved_at is null")
        }

    def creates(self) -> int:
        return self.sandbox.totals()["all"]

    def polls(self) -> int:
        return int(self.sandbox.stats()["requests"]["poll"])

    def check(self) -> None:
        assert self.rt.db.once(reads.violations) == []


@pytest.fixture(scope="module")
def _module_stand(
    server: Server, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stand]:
    with scratch_database(server, template) as url, opened(url) as db:
        rt = Runtime(options(relaxed(url), _one_sandbox, tmp_path_factory.mktemp("passes")))
        rt.start()
        try:
            yield Stand(rt, _one_sandbox, Steps(db))
        finally:
            lane = rt._lane()  # this thread made the calls
            lane.loop.run_until_complete(lane.client.aclose())
            lane.loop.close()
            rt.stop()


@pytest.fixture
def stand(_module_stand: Stand, sandbox: Sandbox) -> Iterator[Stand]:
    ready = _module_stand
    with ready.steps.db.engine.begin() as connection:
        for statement in EMPTY:
            connection.execute(sa.text(statement))
    ready.rt.options = options(
        ready.rt.options.require_database_url(), sandbox, Path(ready.rt.options.media_url).parent
    )
    ready.rt.gates = Gates(ready.rt)
    ready.made.clear()
    ready.account = "payer"
    ready.rt.db.once(ledger.grant, ready.account, subscription=40, topup=100_000)
    yield ready
    ready.check()


def ids(rows: Sequence[Mapping[str, Any]]) -> list[UUID]:
    return [row["job_id"] for row in rows]


def second(stand: Stand) -> Runtime:
    """Another process's runtime on the same database. The caller stops it."""
    rt = Runtime(stand.rt.options)
    rt.start()
    return rt
