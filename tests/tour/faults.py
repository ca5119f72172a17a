"""Loaded into a worker that renders tours: dies at a point of one step, or has one of its FFmpegs killed; each once.

TOUR_CRASH=point@step      SIGKILL of this process when a job of a step that begins so reaches that point.
TOUR_KILL_CHILD=text       SIGKILL of the first child of media work whose arguments contain this text.
TOUR_FAULTS=folder         where it is written down, before it happens, that it has happened.
"""

import os
import signal
import subprocess
from pathlib import Path
from uuid import UUID

import sqlalchemy as sa

from actors import points
from actors.runtime import runtime
from actors.tour.media import children

_POINT, _, _STEP = os.environ.get("TOUR_CRASH", "").partition("@")
_CHILD = os.environ.get("TOUR_KILL_CHILD")
_FOLDER = Path(os.environ.get("TOUR_FAULTS", "."))
_STEP_OF = sa.text("select coalesce(step, '') from callkeeper.jobs where id = :id")


def _first(name: str) -> bool:
    try:
        (_FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _reached(point: str, job_id: UUID) -> None:
    if point != _POINT:
        return
    step = runtime().db.once(lambda connection: connection.execute(_STEP_OF, {"id": job_id}).scalar_one())
    if str(step).startswith(_STEP) and _first("crashed"):
        os.kill(os.getpid(), signal.SIGKILL)


if _POINT:
    points.listeners.append(_reached)

if _CHILD:
    _wait = children._wait

    def _killed(process: subprocess.Popen[bytes], wall: float, check: object) -> None:
        if any(_CHILD in str(argument) for argument in process.args) and _first("killed"):  # type: ignore[union-attr]
            process.kill()
        _wait(process, wall, check)  # type: ignore[arg-type]

    children._wait = _killed
