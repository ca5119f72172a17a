"""Everything the demo runs on, started and stopped in the right order: Postgres, providers, scheduler, workers."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from actors.cli.processes import sandbox_environment, worker_command
from actors.demo import leash
from actors.settings import VENDOR_KEYS
from providers.sandbox import Sandbox
from store import embedded, migrate
from store.engine import Database, make_engine

THREADS = 4
_GOODBYE_SECONDS = 10.0
# Short leases, so that a death is noticed within seconds; production has 30 s.
_SETTINGS = {
    "CALLKEEPER_LEASE": "6",
    "CALLKEEPER_BEAT": "2",
    "CALLKEEPER_LEASE_MARGIN": "1",
    "CALLKEEPER_POLL_LEASE": "6",
    "CALLKEEPER_GRACE": "5",
    "CALLKEEPER_THREADS": str(THREADS),
}


class Child:
    """A process group of its own, on a leash."""

    def __init__(self, name: str, command: list[str], *, folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        with (folder / f"{name.replace(' ', '-')}.log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and modules
                [sys.executable, "-I", "-S", leash.__file__, *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )

    @property
    def group(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL for everybody in the group: no goodbye, no cleanup."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._close()

    def ask_to_end(self) -> None:
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """Wait a little for an orderly end, then insist. Safe to call twice."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_GOODBYE_SECONDS)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.group, number)

    def _close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()


class Stage:
    """A `with` block around everything. Leaving it, however that comes about, ends every process it started."""

    def __init__(
        self, *, keep: bool, modules: list[str], script: Mapping[str, Any], kinds: dict[str, dict[str, Any]]
    ) -> None:
        self.keep = keep
        self._modules, self._script, self._kinds = modules, script, kinds
        self._open = ExitStack()
        self._children: list[Child] = []
        self._workers = 0

    def __enter__(self) -> Self:
        try:
            self._set_up()
        except BaseException:
            self._open.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A second Ctrl-C must not cut the goodbye short: nothing may be left running.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        self._open.close()

    def _set_up(self) -> None:
        self.folder = _make_folder()
        self._open.callback(self._remove_folder)
        server = self._open.enter_context(embedded.start(self.folder / "postgres"))
        self.postgres = server.version
        self.url = server.create_database("demo")
        migrate.upgrade(self.url)
        self.engine = make_engine(self.url, name="callkeeper demo", pool_size=4)
        self._open.callback(self.engine.dispose)
        self.db = Database(self.engine)
        (self.folder / "sandbox").mkdir()
        self.sandbox = self._open.enter_context(Sandbox(directory=self.folder / "sandbox"))
        self.sandbox.script(self._script)
        self._open.callback(self._end_children)
        self._start("scheduler", [sys.executable, "-m", "actors.cli", "scheduler"])

    def start_worker(self) -> Child:
        """A real Dramatiq process with one worker process below it."""
        self._workers += 1
        command = worker_command(self._modules, processes=1, threads=THREADS, queues=[], grace=5)
        return self._start(f"worker {self._workers}", command)

    def _start(self, name: str, command: list[str]) -> Child:
        child = Child(name, command, folder=self.folder, environment=self._environment())
        self._children.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        # The demo is the same whatever the shell is set up for: none of its settings or keys reach it.
        ours = ("CALLKEEPER_", "DATABASE_URL", "PG", *VENDOR_KEYS.values())
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        settings = sandbox_environment(self.sandbox.netloc)
        kinds = _merged(json.loads(settings["CALLKEEPER_KINDS"]), self._kinds)
        return {
            **inherited,
            **settings,
            **_SETTINGS,
            "CALLKEEPER_MODULES": ",".join(self._modules),
            "CALLKEEPER_KINDS": json.dumps(kinds),
            "CALLKEEPER_MEDIA_URL": str(self.folder / "media"),
            "DATABASE_URL": self.url,
        }

    def _end_children(self) -> None:
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            child.end()

    def _remove_folder(self) -> None:
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)
            with suppress(OSError):
                self.folder.parent.rmdir()


def _make_folder() -> Path:
    home = Path.cwd() / ".callkeeper"
    try:
        home.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="demo-", dir=home))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="callkeeper-demo-"))


def _merged(first: dict[str, dict[str, Any]], second: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: {**first.get(name, {}), **second.get(name, {})} for name in {*first, *second}}
