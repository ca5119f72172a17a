"""The command line in this process (fast) and as real processes (true), on a database of the test's own."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from actors.settings import settings

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


def clean_environment() -> dict[str, str]:
    foreign = ("CALLKEEPER_", "DATABASE_URL", "REPLICATE_", "ANTHROPIC_", "OPENROUTER_", "HEYGEN_")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """No settings but those that the test makes, read anew."""
    for name in set(os.environ) - set(clean_environment()):
        monkeypatch.delenv(name)
    settings.cache_clear()
    yield monkeypatch
    settings.cache_clear()


@pytest.fixture
def cli(environment: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a command in this process; `.exit_code`, `.stdout`, `.stderr`."""
    from actors.cli.app import app

    def run(*arguments: object, stdin: str | None = None) -> Any:
        settings.cache_clear()
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return run


@pytest.fixture
def on_database(environment: pytest.MonkeyPatch, database_url: str) -> str:
    environment.setenv("DATABASE_URL", database_url)
    return database_url


class Running:
    """A command as a process of its own, its output in a file."""

    def __init__(self, arguments: tuple[str, ...], folder: Path, extra: dict[str, str]) -> None:
        self.log = folder / f"{arguments[0]}-{time.monotonic_ns()}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "actors.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**clean_environment(), "PYTHONPATH": str(ROOT), **extra},
                start_new_session=True,
                # Whoever runs the tests in the background passes on an ignored SIGINT; a terminal does not.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            )

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait(self, seconds: float = PATIENCE) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds:.0f} s:\n{self.output}") from None

    def kill_all(self) -> None:
        family = [self.process.pid]
        with suppress(psutil.NoSuchProcess):
            family += [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.wait()


@pytest.fixture
def folder() -> Iterator[Path]:
    """Not pytest's own: a server of another user must be able to enter it."""
    with tempfile.TemporaryDirectory(prefix="callkeeper-cli-") as name:
        yield Path(name)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Running]]:
    """Start a command as a process in `folder`; whatever still runs at the end of the test is killed."""
    running: list[Running] = []

    def begin(*arguments: str, **extra: str) -> Running:
        running.append(Running(arguments, folder, extra))
        return running[-1]

    yield begin
    for one in running:
        one.kill_all()


@pytest.fixture
def until() -> Callable[..., None]:
    """Look again and again until something is so; fail with `said()` when it does not come."""

    def wait(is_so: Callable[[], object], said: Callable[[], str] = lambda: "", seconds: float = PATIENCE) -> None:
        give_up = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < give_up, f"waited {seconds:.0f} s in vain\n{said()}"
            time.sleep(0.02)

    return wait
