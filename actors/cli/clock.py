"""The scheduler: periodiq in this process, started anew whenever it dies.

periodiq ends on any error at a tick, an unreachable database included. A tick that was missed while it was away is sent
as soon as it is back, and one that was sent already is refused by its unique row, so starting anew is always safe.
"""

import argparse
import logging
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import periodiq

from actors.settings import settings

log = logging.getLogger("callkeeper.scheduler")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_WELL_AFTER = 90.0  # seconds; it has then sent a tick, so an error is a new one


_periodiq: Callable[[argparse.Namespace], int] = periodiq.main  # it has no types of its own


class Stopped(BaseException):
    """SIGTERM or SIGINT. No Exception, so that nobody on the way up takes it for a failure."""


def run() -> int:
    """Schedule until SIGTERM or SIGINT; 0 then."""
    _log_to_standard_error(settings().log_level)
    # Its own alarm may ring between two runs of it, and an alarm that nobody handles ends the process.
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    try:
        keep_running(_schedule, pause=threading.Event().wait)
    except Stopped:
        log.info("scheduler.stopped")
    finally:
        signal.alarm(0)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
    return 0


def keep_running(schedule: Callable[[], None], *, pause: Callable[[float], object]) -> None:
    """Call `schedule` again and again, with longer pauses while it keeps failing. Ends only by what is no Exception."""
    seconds = _FIRST_PAUSE
    while True:
        started = time.monotonic()
        error = "it returned"
        try:
            schedule()
        except Exception as problem:  # whatever it was, the clock must go on
            error = type(problem).__name__
            log.debug("scheduler.error", exc_info=True)
        signal.alarm(0)
        if time.monotonic() - started > _WELL_AFTER:
            seconds = _FIRST_PAUSE
        log.warning("scheduler.restarting error=%s in=%gs", error, seconds)
        pause(seconds)
        seconds = min(seconds * 2, _LONGEST_PAUSE)


def _schedule() -> None:
    """Periodiq's own main: sends what is due in this minute, then at each minute. Modules were imported before."""
    code = _periodiq(argparse.Namespace(broker="actors", modules=[], path=[], verbose=0))
    raise RuntimeError(f"periodiq ended with code {code}")


def _log_to_standard_error(level: str) -> None:
    # The level is the handler's: periodiq sets the root logger's own each time it starts.
    handler = logging.StreamHandler()
    handler.setLevel(level)
    logging.basicConfig(
        level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s", handlers=[handler], force=True
    )


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise Stopped
