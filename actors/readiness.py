"""Whether the system does its work: passes that succeed, workers that live, queues that somebody claims from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pendulum

from actors.broker import broker
from store import health
from store.engine import Database

LATE_AFTER = 300.0  # seconds, for passes that are due once a minute; others may miss one turn
STALE_AFTER = 60.0  # seconds; a message is claimed within two, a poll or a lapsed lease within a beat


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that has to be so. `said` names what is wrong and the remedy; empty where nothing is."""

    name: str
    said: str

    @property
    def ok(self) -> bool:
        return not self.said


def expected_passes() -> list[str]:
    return sorted(actor.actor_name for actor in broker.actors.values() if "periodic" in actor.options)


def late(passes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of passes that did not succeed in time: five minutes, or twice their period where that is longer.

    One that is due seldom and has not had its first turn is not late.
    """
    ages = {row["name"]: row["age"] for row in passes}
    names = []
    for name in expected_passes():
        allowed = max(LATE_AFTER, 2 * _period(name) + 60)
        age = ages.get(name)
        if (age is None and (allowed == LATE_AFTER or name in ages)) or (age is not None and age > allowed):
            names.append(name)
    return names


def _period(name: str) -> float:
    """Seconds between two turns of a pass at the most, from its schedule: the last turn of an hour may come early."""
    schedule = broker.actors[name].options["periodic"]
    turns = [pendulum.now()]
    for _ in range(4):
        turns.append(schedule.next_valid_date(turns[-1]))
    return max((after - before).total_seconds() for before, after in pairwise(turns[1:]))


def look(db: Database) -> list[Check]:
    """Every check, as the database sees it now. Raises what the database raises."""
    silent, alive = db.once(health.silent_workers), db.once(health.live_workers)
    abandoned = db.once(health.abandoned, seconds=STALE_AFTER)
    unclaimed = [row["queue"] for row in db.once(health.unclaimed, seconds=STALE_AFTER)]
    return [
        _passes(late(db.once(health.passes))),
        _workers(alive, silent),
        Check("queues", f"nobody claims from {', '.join(unclaimed)}: run a worker for it" if unclaimed else ""),
        Check("leases", _left(abandoned["leases"], "leases lapsed and nobody recovered them")),
        Check("polls", _left(abandoned["polls"], "polls are overdue and nobody takes them")),
    ]


def _passes(names: Sequence[str]) -> Check:
    remedy = "run one `callkeeper scheduler`, and a `callkeeper worker` that takes queue maintenance"
    return Check("passes", f"late: {', '.join(names)}: {remedy}" if names else "")


def _workers(alive: int, silent: int) -> Check:
    if alive == 0:
        return Check("workers", "no worker is alive: run `callkeeper worker`")
    words = f"{silent} of {alive + silent} workers went without a word; the others take over"
    return Check("workers", words if silent else "")


def _left(count: int, words: str) -> str:
    return f"{count} {words}: is a worker alive?" if count else ""
