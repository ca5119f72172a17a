"""The tour demo's last word: what was ordered, what was bought, what was charged, and whether the film is whole."""

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from actors.cli.output import say, say_table
from actors.demo import tour_script
from actors.demo.report import balance_words
from actors.demo.stage import Stage
from actors.demo.tour_kills import Kills
from actors.runs import run
from actors.tour import orders
from actors.tour.media.probe import probe
from actors.tour.timeline.policy import SYNC
from actors.tour.timeline.words import Probe
from store import ledger, reads
from store.ledger import Balance
from store.media import MediaStore

_SETTLEMENTS = sa.text(
    """
    select count(*) from callkeeper.run_events
    where run_id = :run_id and kind in ('completed', 'failed', 'timed_out', 'cancelled')
    """
)
_PAID_STEPS = sa.text("select count(*) from callkeeper.jobs where run_id = :run_id and mode <> 'local'")
_FOUND = sa.text("select count(*) from callkeeper.call_receipts where source = 'find'")


@dataclass(frozen=True, slots=True)
class Report:
    """`film` is where the file is now; `problems` says in words what should not be."""

    found: dict[str, Any]
    film: Path | None
    seen: Probe | None
    operations: int
    creates: int
    adopted: int
    settlements: int
    after: Balance
    violations: int
    problems: list[str]


def take(stage: Stage, run_id: UUID, kills: Kills, target: Path) -> Report:
    """Read everything back, and decode the film to its end."""
    with stage.engine.connect() as connection:
        found = dict(run(connection, run_id))
        counts = [
            int(connection.execute(statement, binds).scalar_one())
            for statement, binds in (
                (_PAID_STEPS, {"run_id": run_id}),
                (_SETTLEMENTS, {"run_id": run_id}),
                (_FOUND, {}),
            )
        ]
    film = _film(stage, found, target)
    seen = None if film is None else _seen(film)
    after = stage.db.once(ledger.balance, tour_script.ACCOUNT) or Balance(0, 0, 0, 0)
    violations = stage.db.once(reads.violations)
    report = Report(
        found, film, seen, counts[0], len(stage.sandbox.bill()), counts[2], counts[1], after, len(violations), []
    )
    report.problems.extend(_problems(report, kills))
    report.problems.extend(f"invariant {one['invariant']}: {one['what']}" for one in violations)
    return report


def _film(stage: Stage, found: dict[str, Any], target: Path) -> Path | None:
    step = next((one for one in found["steps"] if one["step"] == orders.FINAL), None)
    media = ((step or {}).get("result") or {}).get("media")
    if not media:
        return None
    made = stage.folder / "tour.mp4"
    made.write_bytes(MediaStore(str(stage.folder / "media")).get(media[0]["object_key"]))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, target)
    return target


def _problems(report: Report, kills: Kills) -> list[str]:
    status, after = report.found["status"], report.after
    checks = (
        (status != "completed", f"the run is {status}: {report.found['failure_code']}"),
        (report.settlements != 1, f"the run was settled {report.settlements} times"),
        (report.creates != report.operations, f"{report.creates} upstream creates for {report.operations} operations"),
        (after.granted != after.available + after.reserved + after.committed, "credits are not conserved"),
        (after.reserved > 0, f"{after.reserved} credits are still reserved"),
        (not kills.done, "too few workers were killed, or none in the middle of media work"),
        (not is_whole(report.seen), "the film does not decode whole, or its sound and picture are apart"),
    )
    return [words for wrong, words in checks if wrong]


def _seen(film: Path) -> Probe:
    """The film, decoded to its end in a folder of its own: a look leaves files behind."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / film.name
        shutil.copyfile(film, path)
        return probe(path, "mov", check=lambda: None)


def is_whole(seen: Probe | None) -> bool:
    """Picture and sound, no error, together to the end."""
    if seen is None or seen.picture is None or seen.sound is None or seen.errors:
        return False
    return _apart(seen) <= SYNC


def show(report: Report, kills: Kills, seconds: float) -> None:
    found, after = report.found, report.after
    scenes = [one for one in found["steps"] if one["stage"] == "scene-video"]
    rows = [
        ("tour", f"{len(scenes)} scenes, an avatar and a voice-over; {len(found['steps'])} steps in one run"),
        ("workers killed", f"{len(kills.held)}: with " + "; ".join(kills.held)),
        ("upstream creates", f"{report.creates} for {report.operations} operations, by the providers' own bill"),
        ("found again", f"{report.adopted} calls whose answer was lost"),
        ("settled", f"{report.settlements} time, as {found['status']}, quality {found['quality']}"),
        ("warnings", ", ".join(sorted({one["code"] for one in found["warnings"]})) or "none"),
        ("credits after", balance_words(after)),
        ("seconds", f"{seconds:.1f}"),
        ("film", _film_words(report.seen)),
    ]
    say("")
    say_table(("", "result"), rows)
    say(f"audit: {report.violations} violations")
    for problem in report.problems:
        say(f"not as it should be: {problem}")
    if report.film is not None:
        say(f"the film: {report.film}")


def _film_words(seen: Probe | None) -> str:
    if seen is None or seen.picture is None or seen.sound is None:
        return "none"
    picture = seen.picture
    size = f"{picture.width} by {picture.height} at {picture.rate:.0f}"
    whole = "decodes to its end" if not seen.errors else f"{seen.errors} errors"
    return f"{picture.seconds:.2f} s, {size}, {whole}; sound and picture {_apart(seen) * 1000:.0f} ms apart"


def _apart(seen: Probe) -> float:
    assert seen.picture is not None  # noqa: S101  # asked before
    assert seen.sound is not None  # noqa: S101
    ends = abs(seen.picture.seconds - seen.sound.seconds)
    return max(ends, abs(seen.picture.start - seen.sound.start))
