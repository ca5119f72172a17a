"""Runs a program over media in a child process: with limits, without a shell, and no longer than anybody wants it."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actors.tour.media import confine

_LOOK_EVERY = 0.05  # seconds between two looks at whether it is still wanted
_TAIL = 2000  # characters of what a child said at its end
_SHELL_KILLED = 128 + signal.SIGKILL  # how a wrapper says that its child was killed


# Measured under a low RLIMIT_AS: x264 and its threads crash, or fail to start, where an allocation is refused. What
# they are asked for is always the same and works, so a failure of theirs is the machine's.
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)
_REFUSALS = (
    "Cannot allocate memory",
    "MemoryError",
    "malloc of size",
    "pthread_create() failed",
    "Could not open encoder",
    "error in an external library",
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one child may cost. `memory` is address space in bytes."""

    memory: int = 3 * 1024**3
    file_bytes: int = 2 * 1024**3
    cpu_seconds: int = 1800
    wall_seconds: float = 1800.0


class MemoryRanOut(Exception):
    """The child was killed by somebody else, or was refused memory: a larger machine may do."""


class DiskFull(Exception):
    """There is no room left to write to; later, or elsewhere, there may be."""


class ChildFailed(Exception):
    """It ended with an error of its own. `words` is the end of what it said, for logs and never for customers."""

    def __init__(self, program: str, status: int, words: str) -> None:
        super().__init__(f"{program} ended with {status}")
        self.status, self.words = status, words


class TookTooLong(Exception):
    """It was ended after its time."""


def run(
    command: Sequence[str], *, folder: Path, limits: Limits, check: Callable[[], None], seconds: float | None = None
) -> bytes:
    """What it wrote to standard output. `check` is called all the while and may raise: the child is ended then.

    Raises MemoryRanOut, TookTooLong, DiskFull and ChildFailed.
    """
    told = {
        "memory": limits.memory,
        "file_bytes": limits.file_bytes,
        "cpu_seconds": limits.cpu_seconds,
        "parent": os.getpid(),
    }
    wall = limits.wall_seconds if seconds is None else seconds
    with (folder / "child.out").open("w+b") as out, (folder / "child.err").open("w+b") as err:
        process = subprocess.Popen(  # noqa: S603  # arguments are ours: paths in our folder, and numbers
            [sys.executable, "-I", "-S", confine.__file__, json.dumps(told), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=folder,
            env=_environment(),
        )
        try:
            _wait(process, wall, check)
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        err.seek(0)
        words = err.read().decode(errors="replace")[-_TAIL:]
        _judge(Path(command[0]).name, process.returncode, words)
        out.seek(0)
        return out.read()


def _wait(process: subprocess.Popen[bytes], wall: float, check: Callable[[], None]) -> None:
    deadline = time.monotonic() + wall
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_EVERY)
            return
        check()
        if time.monotonic() > deadline:
            raise TookTooLong(f"it was ended after {wall:g} s")


def _judge(program: str, status: int, words: str) -> None:
    if status == 0:
        return
    if status in (-signal.SIGKILL, _SHELL_KILLED):
        raise MemoryRanOut(f"{program} was killed")
    if -status in _CRASHES:
        raise MemoryRanOut(f"{program} broke by signal {-status}")
    if status == -signal.SIGXCPU:
        raise TookTooLong(f"{program} used up its processor time")
    # FFmpeg leaves with the low byte of its error number, unless a library says it in words of its own.
    if status == 256 - errno.ENOMEM or any(sign in words for sign in _REFUSALS):
        raise MemoryRanOut(f"{program} was refused memory")
    if status == 256 - errno.ENOSPC or os.strerror(errno.ENOSPC) in words:
        raise DiskFull(f"{program} found no room to write")
    raise ChildFailed(program, status, words)


def _environment() -> dict[str, str]:
    # A Python that is not the system's may need the path to its own library.
    kept = ("LD_LIBRARY_PATH",)
    return {"LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in kept if name in os.environ}}
