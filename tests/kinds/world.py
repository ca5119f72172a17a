"""One process that plays all parts: workers, pollers and passes in it, on a real database, against a sandbox server.

Whatever waits in real life is due at once here: the rows' clocks are moved, never the code's. A crash is an exception
that nobody catches, raised at a named point; what is left then is what a killed process leaves.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import sqlalchemy as sa
from dramatiq_postgres.utils import make_pool
from pydantic import HttpUrl, SecretStr

import actors
import actors.runtime as runtimes
from actors import points
from actors.broker import broker
from actors.callbacks import CallbackRefused, read_token, receive
from actors.gates import Gates
from actors.passes import sweep, watchdog
from actors.poll import Poller
from actors.settings import KindSettings, Settings
from providers.registry import KINDS
from providers.sandbox import Sandbox
from providers.sandbox.app import WEBHOOK_SECRET
from store import ledger, reads
from store.engine import libpq_url

OURS = "the door's own secret"
CLOCKS = (
    "update callkeeper.jobs set next_poll_at = now() where status = 'waiting' and next_poll_at > now()",
    "update callkeeper.jobs set available_at = now() where status = 'queued' and available_at > now()",
    "update dramatiq.queue set available_at = now() where available_at > now()",
    "update callkeeper.provider_gates set closed_until = now() where closed_until > now()",
    "update callkeeper.notices set available_at = now() where delivered_at is null and dead_at is null",
    "update callkeeper.consequences set available_at = now() where delivered_at is null and dead_at is null",
)
EVERYTHING = (
    "delete from callkeeper.jobs",
    "delete from callkeeper.webhook_deliveries",
    "delete from callkeeper.alerts",
    "delete from callkeeper.provider_gates",
    "delete from callkeeper.stale_writes",
    "delete from dramatiq.queue",
    "delete from callkeeper.accounts",
)


class Crash(BaseException):
    """The process is dead from here on. No `except Exception` notices, as none notices a SIGKILL."""


class Door:
    """What an app mounts for callbacks, as a real HTTP server: verify, keep, commit, only then say thank you."""

    def __init__(self, world: "World") -> None:
        self.letters: list[tuple[str, dict[str, str], bytes, int]] = []  # path, headers, body, how it was answered
        self._told = threading.Condition()
        door, self._world = self, world

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                status = door.let_in(self.path, headers, body)
                self.send_response(status)
                self.end_headers()
                with door._told:
                    door.letters.append((self.path, headers, body, status))
                    door._told.notify_all()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/webhooks"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def let_in(self, path: str, headers: Mapping[str, str], body: bytes, *, now: datetime | None = None) -> int:
        """The status that a callback at this address is answered with."""
        kind, token = path.strip("/").split("/")[-2:]
        rt = self._world.rt
        try:
            with rt.db.engine.begin() as connection:
                receive(
                    connection, rt.options, kind=kind, token=token, headers=headers, body=body, now=now or datetime.now(UTC)
                )  # fmt: skip
        except CallbackRefused as refused:
            return refused.status
        return 200

    def about(self, job_id: UUID) -> list[tuple[str, dict[str, str], bytes, int]]:
        """What came to a job's own address."""
        return [one for one in self.letters if read_token(OURS, one[0].rpartition("/")[2])[0] == job_id]

    def until_told(self, job_id: UUID, times: int) -> None:
        with self._told:
            assert self._told.wait_for(lambda: len(self.about(job_id)) >= times, 20), "no callback came"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join(5)


class World:
    """Shared by a module's tests; `clear` makes it as new."""

    def __init__(self, url: str, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.control = httpx.Client(base_url=sandbox.url, trust_env=False, timeout=30)
        self.rt = runtimes.Runtime(_options(url, sandbox, folder))
        self.rt.start()
        self._pool = make_pool(libpq_url(url))
        self._crash: tuple[str, int] | None = None
        self._at: dict[str, Callable[[UUID], None]] = {}
        self.reached: list[str] = []
        self.door = Door(self)
        self.poller = Poller(self.rt)
        self.run_messages: list[tuple[str, tuple[Any, ...]]] = []

    # Its parts, put where the actors look for them

    @contextmanager
    def in_place(self) -> Iterator["World"]:
        before, runtimes._current = runtimes._current, self.rt
        pool, broker._lazy_pool = broker._lazy_pool, self._pool
        points.listeners.append(self._reached)
        try:
            yield self
        finally:
            points.listeners.remove(self._reached)
            runtimes._current, broker._lazy_pool = before, pool

    def close(self) -> None:
        self.door.close()
        self.control.close()
        self._pool.close()
        lane = self.rt._lane()
        lane.loop.run_until_complete(lane.client.aclose())
        lane.loop.close()
        self.rt.stop()

    def clear(self) -> None:
        """No job, no task, no message, an open account, and nothing remembered."""
        self.do(*EVERYTHING)
        self.rt.db.once(ledger.grant, "payer", subscription=1_000, topup=1_000)
        self.sandbox.reset()
        self.forget_gates()
        self._crash, self._at = None, {}
        self.reached.clear()
        self.run_messages.clear()
        self.door.letters.clear()
        self.rt.options.callback_url = None
        for settings in self.rt.options.kinds.values():
            settings.send_deadline = settings.poll_deadline = None

    def forget_gates(self) -> None:
        """As another process would see them."""
        self.rt.gates = Gates(self.rt)

    def listen(self) -> None:
        """From now on calls carry an address to call back."""
        self.rt.options.callback_url = HttpUrl(self.door.url)

    def hurry(self, kind: str, *, send: float | None = None, poll: float | None = None) -> None:
        """Give up sooner on requests that hang, in seconds."""
        self.rt.options.kinds[kind].send_deadline = send
        self.rt.options.kinds[kind].poll_deadline = poll

    # Points

    def crash_at(self, point: str, nth: int = 1) -> None:
        assert point in points.POINTS
        self._crash = (point, nth)

    def at(self, point: str, do: Callable[[UUID], None]) -> None:
        """Once, when a job first reaches this point."""
        self._at[point] = do

    def _reached(self, point: str, job_id: UUID) -> None:
        self.reached.append(point)
        if self._crash == (point, self.reached.count(point)):
            raise Crash(point)
        do = self._at.pop(point, None)
        if do is not None:
            do(job_id)

    # Doing

    def submit(self, job_type: str, request: Mapping[str, Any]) -> UUID:
        with self.rt.db.engine.begin() as connection:
            return actors.submit(connection, job_type, request, user_id="ann", account_id="payer").job_id

    def stop(self, job_id: UUID) -> actors.State:
        with self.rt.db.engine.begin() as connection:
            return actors.stop(connection, job_id)

    def work(self, *, times: int = 1) -> int:
        """Run every message that is due, and those they bring, each so many times; how many there were."""
        count = 0
        while rows := self.rows(
            "select message_id, message from dramatiq.queue where state = 'queued' and available_at <= now()"
            " order by position"
        ):
            for row in rows:
                name, args = row["message"]["actor_name"], tuple(row["message"]["args"])
                self.run_messages.append((name, args))
                for _ in range(times):
                    broker.get_actor(name).fn(*args)
                self.do("delete from dramatiq.queue where message_id = :id", id=row["message_id"])
                count += 1
        return count

    def deliver_again(self) -> None:
        """Every message there ever was, once more, in its order."""
        for name, args in list(self.run_messages):
            broker.get_actor(name).fn(*args)
        self.work()

    def poll(self) -> int:
        return self.rt.submit(self.poller.drain_once()).result(60)

    def passes(self) -> None:
        """What runs once a minute, with nobody else awake: its messages are run, no poller is."""
        sweep.fn()
        watchdog.fn()
        self.work()

    # Time

    def pass_time(self) -> None:
        """Whatever waits for a time is due."""
        self.do(*CLOCKS)
        self.forget_gates()

    def lapse(self) -> None:
        """Whoever held a lease has not renewed it in time."""
        self.do(
            "update callkeeper.jobs set lease_until = now() - interval '1 second' where status = 'running'",
            "update callkeeper.jobs set next_poll_at = now() where status = 'waiting'",
        )

    def end_quiet(self) -> None:
        """Every possible sender is past its deadline, and no list lags any more."""
        self.do(
            "update callkeeper.jobs set resolve_by = now() - interval '1 second' where status in ('running', 'waiting')"
        )

    def age(self, minutes: float = 30) -> None:
        """The call was made this long ago."""
        self.do(
            "update callkeeper.jobs set provider_call_started_at = provider_call_started_at - :by * interval '1 minute'"
            " where finished_at is null",
            by=minutes,
        )

    # Seeing

    def rows(self, statement: str, **binds: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self.rt.db.once(lambda c: c.execute(sa.text(statement), binds).mappings().all())]

    def one(self, statement: str, **binds: Any) -> dict[str, Any]:
        (row,) = self.rows(statement, **binds)
        return row

    def do(self, *statements: str, **binds: Any) -> None:
        def run(connection: sa.Connection) -> None:
            for statement in statements:
                connection.execute(sa.text(statement), binds)

        self.rt.db.transact(run)

    def job(self, job_id: UUID) -> dict[str, Any]:
        return self.one("select * from callkeeper.jobs where id = :id", id=job_id)

    def events(self, job_id: UUID) -> list[dict[str, Any]]:
        return self.rows("select kind, data from callkeeper.job_events where job_id = :id order by seq", id=job_id)

    def violations(self) -> list[Mapping[str, Any]]:
        return list(self.rt.db.once(reads.violations))


def _options(url: str, sandbox: Sandbox, folder: Path) -> Settings:
    bases = {"replicate": sandbox.replicate_url, "openrouter": sandbox.openrouter_url}
    kinds = {
        name: KindSettings(
            base_url=bases.get(name.partition("-")[0], sandbox.url),
            api_key=SecretStr("good"),
            callback_secrets=[SecretStr(WEBHOOK_SECRET)],
        )
        for name in KINDS
    }
    elsewhere = sandbox.netloc.replace("127.0.0.1", "localhost")
    return Settings(
        DATABASE_URL=url,
        kinds=kinds,
        insecure_media_hosts=[sandbox.netloc, elsewhere],
        media_url=str(folder / "media"),
        callback_secret=SecretStr(OURS),
        verify_media=False,
    )
