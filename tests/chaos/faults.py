"""Loaded into a real worker (`dramatiq actors tests.chaos.faults`): dies, freezes or goes deaf at a named instant.

CRASH_AT=point[:n]   SIGKILL of this process, the n-th time it reaches that point (first by default).
PAUSE_AT=point[:n]   SIGSTOP of this process there; the test sends SIGCONT.
FAULT_LOG=path       every point reached is appended before anything happens: `pid point job`; proof that a fault fired.
DEAF=1               the broker never listens: NOTIFY is lost.
BREAK_BEATS=1        no heartbeat gets through, from the first job on.
BREAK_BEATS=first    the first heartbeat with a job does not get through; those after it do.
"""

import os
import signal
import threading
from pathlib import Path
from uuid import UUID

from actors import lease, points
from actors.broker import broker


def _wanted(name: str) -> tuple[str, int]:
    point, _, number = os.environ.get(name, "").partition(":")
    if point and point not in points.POINTS:
        raise ValueError(f"{name}={point}: no such point")
    return point, int(number or 1)


_CRASH, _PAUSE = _wanted("CRASH_AT"), _wanted("PAUSE_AT")
_LOG = os.environ.get("FAULT_LOG")
_counts: dict[str, int] = {}
_lock = threading.Lock()


def write_line(path: str | Path, line: str) -> None:
    """One write, so that lines of several processes do not mix, and a SIGKILL right after it loses nothing."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def _reached(point: str, job_id: UUID) -> None:
    with _lock:
        _counts[point] = number = _counts.get(point, 0) + 1
        if _LOG:
            write_line(_LOG, f"{os.getpid()} {point} {job_id}")
        if (point, number) == _CRASH:
            os.kill(os.getpid(), signal.SIGKILL)
    if (point, number) == _PAUSE:
        # To this thread: the stop has begun before the call returns.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


points.listeners.append(_reached)

if os.environ.get("DEAF"):
    broker.listen_for_messages = lambda: None  # type: ignore[method-assign]

if os.environ.get("BREAK_BEATS"):
    _beat, _broken = lease.Keeper.beat, threading.Event()

    def _no_beat(self: lease.Keeper) -> None:
        if os.environ["BREAK_BEATS"] == "first" and (_broken.is_set() or not self.all()):
            _beat(self)
            return
        if self.all():
            _broken.set()
            if _LOG:
                write_line(_LOG, f"{os.getpid()} no_beat -")
        raise OSError("the heartbeat's way to the database is cut")

    lease.Keeper.beat = _no_beat  # type: ignore[method-assign]
