"""`callkeeper demo tour`: one listing video of several paid calls, rendered while workers are killed at random."""

import random
import signal
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from actors import grant
from actors.cli.failures import INTERRUPTED
from actors.cli.output import say, warn
from actors.demo import tour_report, tour_script
from actors.demo.run import linger, terminated
from actors.demo.stage import Stage
from actors.demo.tour_kills import Kills
from actors.demo.view import Lines
from actors.runs import run as read_run
from actors.tour import render
from store.binaries import ServerUnavailable

_LONGEST = 300.0  # seconds from the order to the film
_LOOK_EVERY = 0.05


def run(*, keep: bool, seed: int) -> int:
    """The exit code: 0 when the film is whole and the books agree, 1 when not, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, terminated)
    stage = Stage(keep=keep, modules=["actors.tour.jobs"], kinds=tour_script.KINDS, script=tour_script.script(seed))
    try:
        say("callkeeper demo tour: a Postgres, fake providers, a scheduler and workers of its own")
        with stage:
            return _play_or_explain(stage, seed)
    except KeyboardInterrupt:
        warn("callkeeper: stopped; nothing is left running")
        return INTERRUPTED
    except (ServerUnavailable, RuntimeError) as error:
        warn(f"callkeeper: the demo could not start: {error}")
        return 1


def _play_or_explain(stage: Stage, seed: int) -> int:
    try:
        code = _play(stage, seed)
    except RuntimeError as error:
        warn(f"callkeeper: the demo could not go on: {error}")
        code = 1
    if code and not stage.keep:
        stage.keep = True
        warn(f"callkeeper: the logs of its processes are kept in {stage.folder}")
    return code


def _play(stage: Stage, seed: int) -> int:
    began = time.monotonic()
    view = Lines()
    view.tell(f"PostgreSQL {stage.postgres} is migrated, providers and scheduler are up")
    with stage.engine.begin() as connection:
        grant(connection, tour_script.ACCOUNT, topup=tour_script.GRANTED)
        ordered = render.start(
            connection, tour_script.tour(), user_id="ann", account_id=tour_script.ACCOUNT, idempotency_key="lake-road-7"
        )
    view.tell("one tour ordered; its plan has a camera move that nobody can make")
    kills = Kills(stage, view.tell, random.Random(seed))  # noqa: S311  # a demo's choices
    kills.begin()
    _watch(stage, ordered.run_id, kills, view)
    target = Path.cwd() / ".callkeeper" / "tour.mp4"
    report = tour_report.take(stage, ordered.run_id, kills, target)
    tour_report.show(report, kills, time.monotonic() - began)
    if stage.keep:
        linger(stage)
    return 1 if report.problems else 0


def _watch(stage: Stage, run_id: UUID, kills: Kills, view: Lines) -> None:
    """Until the run has ended, killing on the way. RuntimeError when it takes too long."""
    told: dict[str, Any] = {}
    give_up = time.monotonic() + _LONGEST
    while True:
        kills.step()
        with stage.engine.connect() as connection:
            found = read_run(connection, run_id)
        for step in found["steps"]:
            status = "blocked" if step["blocked"] else step["status"]
            if told.get(step["step"]) != status:
                told[step["step"]] = status
                view.tell(f"{step['step']:<24} {status}" + (f" ({step['error_code']})" if step["error_code"] else ""))
        if found["status"] != "running":
            return
        if time.monotonic() > give_up:
            raise RuntimeError(f"the tour has not ended after {_LONGEST:.0f} s")
        time.sleep(_LOOK_EVERY)
