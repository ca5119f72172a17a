"""The bill: `python -m bench.bill --jobs 200 --seconds 60`. Workers are killed all the time; nothing is bought twice.

Jobs come in evenly. One of the workers is SIGKILLed every two to four seconds and replaced. A share of the creates is
accepted and never answered, another is accepted and answered 502, each at least twice. Prints one line of JSON; exits 1
unless every job ended, nothing was billed twice and no invariant is broken.
"""

import argparse
import json
import random
import re
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from providers.sandbox import Sandbox
from store import embedded, migrate
from tests.chaos.harness import Fleet, Worker


@dataclass(frozen=True)
class Bill:
    """What a run came to.

    `completed_share` is that of the kind whose lost creates can be found, `bought_and_lost` how many of its jobs were
    billed and not completed.
    """

    jobs: int
    creates: int
    billed_twice: int
    completed: int
    failed: int
    open: int
    completed_share: float
    bought_and_lost: int
    refunded_without_result: int
    kills: int
    hung: int
    answered_502: int
    violations: int
    seconds: float
    errors: dict[str, int] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Nothing twice, nothing lost, nothing broken.

        A worker killed between intent and request leaves a job that was never sent, and so ends failed and refunded:
        one in a hundred at most, where the run is long enough to say so.
        """
        whole = self.billed_twice == self.bought_and_lost == self.open == self.violations == 0
        return whole and self.completed_share >= min(0.99, 1 - 2 / self.jobs)


@dataclass
class Load:
    """`sync_share`: jobs of the kind that offers no way to learn what became of a lost call."""

    jobs: int
    seconds: float
    kill_every: tuple[float, float] = (2.0, 4.0)
    fault_share: float = 0.03
    sync_share: float = 0.0
    workers: int = 2
    seed: int = 1


def script(load: Load) -> dict[str, Any]:
    """Faults by chance, after two of each that are sure to come; which jobs they hit is seeded."""
    count = max(2, round(load.jobs * load.fault_share))
    unlucky = random.Random(load.seed).sample(range(load.jobs), 2 * count)
    faults: list[tuple[str, Any]] = [("hang", "hang"), ("502", {"status": 502, "body": "<html>bad gateway</html>"})]
    rules = []
    for number, job in enumerate(unlucky):
        name, fault = faults[number % 2]
        for route in ("create", "message"):
            when = {"route": route, "contains": _prompt(job), "nth": [1]}
            rules.append({"name": name, "when": when, "do": {"accept_then": fault}})
    return {
        "seed": load.seed,
        "defaults": {"run_seconds": [0.3, 2], "latency": [0.02, 0.1], "reply_delay": [0.05, 0.3]},
        "rules": rules,
    }


def _prompt(number: int) -> str:
    return f"the bill, job {number}."


def run(fleet: Fleet, load: Load, *, patience: float = 90) -> Bill:
    """Submit, kill, wait for the end, and count what the provider wrote on its bill."""
    fleet.sandbox.script(script(load))
    chance = random.Random(load.seed)
    sync = set(chance.sample(range(load.jobs), round(load.jobs * load.sync_share)))
    workers = [fleet.spawn() for _ in range(load.workers)]
    begun = time.monotonic()
    jobs: dict[UUID, int] = {}
    kills, next_kill = 0, begun + chance.uniform(*load.kill_every)
    for number in range(load.jobs):
        # The load is a function of time, so here time is what is waited for.
        while time.monotonic() < begun + number * load.seconds / load.jobs:
            time.sleep(0.01)
            if time.monotonic() > next_kill:
                kills += _kill_one(fleet, workers, chance)
                next_kill = time.monotonic() + chance.uniform(*load.kill_every)
        submit = fleet.words if number in sync else fleet.picture
        jobs[submit(_prompt(number))] = number
    try:
        fleet.until_done(within=patience)
    except AssertionError:
        print(fleet.tail(), file=sys.stderr)
    return _count(fleet, jobs, kills=kills, seconds=time.monotonic() - begun)


def _kill_one(fleet: Fleet, workers: list[Worker], chance: random.Random) -> int:
    """SIGKILL a worker that works; one that is still starting would die for nothing."""
    victim = chance.randrange(len(workers))
    if "is ready for action" not in workers[victim].text():
        return 0
    workers[victim].kill()
    workers[victim] = fleet.spawn(ready=False)
    return 1


def _count(fleet: Fleet, jobs: dict[UUID, int], *, kills: int, seconds: float) -> Bill:
    billed = Counter(_number(line) for line in fleet.sandbox.bill())
    rows = fleet.rows(
        "select j.id, j.status, j.error_code, j.job_type = 'picture' as listed, u.status as credits"
        " from callkeeper.jobs j join callkeeper.usage_logs u on u.job_id = j.id"
    )
    by_status = Counter(row["status"] for row in rows)
    listed = [row for row in rows if row["listed"]]
    fired = fleet.sandbox.stats()["rules"]
    return Bill(
        jobs=len(jobs),
        creates=sum(billed.values()),
        billed_twice=sum(count > 1 for count in billed.values()),
        completed=by_status["completed"],
        failed=by_status["failed"],
        open=sum(by_status[state] for state in ("queued", "running", "waiting")),
        completed_share=round(sum(row["status"] == "completed" for row in listed) / max(1, len(listed)), 4),
        bought_and_lost=sum(row["status"] != "completed" and jobs[row["id"]] in billed for row in listed),
        refunded_without_result=sum(row["status"] == "failed" and row["credits"] == "refunded" for row in rows),
        kills=kills,
        hung=fired.get("hang", 0),
        answered_502=fired.get("502", 0),
        violations=len(fleet.violations()),
        seconds=round(seconds, 1),
        errors=dict(Counter(row["error_code"] for row in rows if row["error_code"])),
    )


def _number(line: dict[str, Any]) -> int:
    """Which job a line of the bill is for."""
    named = re.search(r"the bill, job (\d+)\.", json.dumps(line["input"]))
    if named is None:
        raise ValueError(f"a create of nobody's: {line}")
    return int(named.group(1))


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--jobs", type=int, default=200)
    asked.add_argument("--seconds", type=float, default=60)
    asked.add_argument(
        "--sync-share", type=float, default=0.0, help="share of anthropic-sync jobs, which cannot be found"
    )
    asked.add_argument("--seed", type=int, default=1)
    options = asked.parse_args()
    load = Load(options.jobs, options.seconds, sync_share=options.sync_share, seed=options.seed)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callkeeper-bill-")))
        server = stack.enter_context(embedded.start(folder / "pg"))
        url = server.create_database("bill")
        migrate.upgrade(url)
        sandbox = stack.enter_context(Sandbox())
        fleet = stack.enter_context(Fleet(url, sandbox, folder / "fleet"))
        bill = run(fleet, load)
    print(json.dumps({"bench": "bill", **asdict(bill)}))
    return 0 if bill.holds else 1


if __name__ == "__main__":
    sys.exit(main())
