"""Web processes on real sockets, a database each module shares, tokens, and clients that hold them."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import sqlalchemy as sa

from store import ledger, tokens
from store.engine import Database, make_engine
from tests.conftest import Server, scratch_database

ROOT = Path(__file__).parents[2]
FOREIGN = ("CALLKEEPER_", "DATABASE_URL", "REPLICATE_", "ANTHROPIC_", "OPENROUTER_", "HEYGEN_", "ELEVENLABS_", "KIE_")


def until(happened: Callable[[], Any], *, within: float = 60.0, what: str = "it") -> Any:
    """The first true value of `happened`."""
    give_up_at = time.monotonic() + within
    while not (value := happened()):
        assert time.monotonic() < give_up_at, f"{what} did not happen within {within:g} s (last seen: {value!r})"
        time.sleep(0.02)
    return value


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def environment(url: str, extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    ours = {"DATABASE_URL": url, "PYTHONPATH": str(ROOT), "CALLKEEPER_MODULES": "tests.web.kit"}
    return {**kept, **ours, "CALLKEEPER_WEB_HEARTBEAT": "1", "PYTHONUNBUFFERED": "1", **extra}


class Command:
    """A `callkeeper` command as a process of its own, its output in a file."""

    def __init__(self, folder: Path, env: Mapping[str, str], *arguments: str, module: str = "actors.cli") -> None:
        self.log = folder / f"{module}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env=dict(env),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def terminate(self, *, within: float = 30) -> int:
        self.process.terminate()
        return self.process.wait(within)


class Site:
    """One database, the web processes and workers on it, and what a test asks of them."""

    def __init__(self, url: str, folder: Path, **extra: str) -> None:
        self.url, self.folder = url, folder
        self.env = environment(url, extra)
        self.db = Database(make_engine(url, name="tests", pool_size=4, statement_timeout_ms=30_000), patience=20)
        self.port = free_port()
        self.commands: list[Command] = []
        self.clients: list[httpx.Client] = []
        self.web: Command | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self, *arguments: str, **extra: str) -> Command:
        """A web process on the site's port, answering. `callkeeper web` starts the same, after looking twice."""
        self.web = self.run("--port", str(self.port), *arguments, module="web", **extra)
        until(self._answers, what=f"an answer of the web process ({self.web.log})")
        return self.web

    def _answers(self) -> bool:
        assert self.web is not None
        assert self.web.process.poll() is None, self.web.text()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.address}/healthz", timeout=5).status_code == 200
        return False

    def work(self, *arguments: str, **extra: str) -> Command:
        """A worker, ready: what `callkeeper worker` starts."""
        command = ("actors", "tests.web.kit", "--processes", "1", "--threads", "2", *arguments)
        made = self.run(*command, module="dramatiq", CALLKEEPER_THREADS="2", **extra)
        until(lambda: "is ready for action" in made.text(), what=f"a worker ({made.log})")
        return made

    def run(self, *arguments: str, module: str = "actors.cli", **extra: str) -> Command:
        self.commands.append(Command(self.folder, {**self.env, **extra}, *arguments, module=module))
        return self.commands[-1]

    def token(self, user: str, *, account: str | None = None) -> str:
        return self.db.once(tokens.create, scope="user", user_id=user, account_id=account)[1]

    def operator_token(self) -> str:
        return self.db.once(tokens.create, scope="operator")[1]

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        """Speaks as whom the token is for."""
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        made = httpx.Client(base_url=self.address, headers=headers, timeout=30, trust_env=False)
        self.clients.append(made)
        return made

    def of(self, user: str) -> httpx.Client:
        return self.client(self.token(user))

    def grant(self, account: str, amount: int) -> None:
        self.db.transact(ledger.grant, account, topup=amount)

    def rows(self, statement: str, **binds: Any) -> list[Mapping[str, Any]]:
        return [dict(row) for row in self.db.once(lambda c: c.execute(sa.text(statement), binds).mappings().all())]

    def do(self, statement: str, **binds: Any) -> None:
        self.db.once(lambda c: c.execute(sa.text(statement), binds))

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for command in self.commands:
            command.kill()
        self.db.dispose()


class Reader:
    """Reads Server-Sent Events as they come, in their very bytes."""

    def __init__(self, response: httpx.Response) -> None:
        self._chunks = response.iter_raw()
        self._rest = b""

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Each event's `id`, `event` and `data`; comments under the name of an empty string."""
        while True:
            while b"\n\n" in self._rest:
                text, self._rest = self._rest.split(b"\n\n", 1)
                yield dict(re.split(r": ?", line, maxsplit=1) for line in text.decode().split("\n"))
            try:
                self._rest += next(self._chunks)
            except StopIteration:
                return


def events(client: httpx.Client, job_id: str, **headers: str) -> list[dict[str, str]]:
    """All events until the stream ends by itself, without the comments."""
    with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return [event for event in Reader(response) if "data" in event]


@pytest.fixture(scope="module")
def site(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One web process for a module."""
    with scratch_database(server, template) as url:
        made = Site(url, tmp_path_factory.mktemp("site"))
        try:
            made.serve()
            yield made
        finally:
            made.close()


@pytest.fixture
def make_site(server: Server, template: str, tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """A site of the test's own, not serving yet; `make_site(**environment)`."""
    from contextlib import ExitStack

    with ExitStack() as stack:

        def make(**extra: str) -> Site:
            url = stack.enter_context(scratch_database(server, template))
            one = Site(url, tmp_path, **extra)
            stack.callback(one.close)
            return one

        yield make


def children(command: Command) -> list[psutil.Process]:
    return psutil.Process(command.process.pid).children(recursive=True)
