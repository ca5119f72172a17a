"""`python -m bench`: every measurement as a JSON line, then all of them as a table. `--only NAME` runs one of them."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from bench import fairness, followers, latency, rescue, selection, spending, stops, throughput, waiting

Figure = dict[str, Any]


def _median_of_three(run: Callable[[], Figure]) -> list[Figure]:
    """The run whose value is the median, with the values of all three beside it."""
    runs = sorted((run() for _ in range(3)), key=lambda figure: float(figure["ratio"]))
    return [runs[1] | {"ratios": [one["ratio"] for one in runs], "values": [one["value"] for one in runs]}]


MEASUREMENTS: dict[str, Callable[[], list[Figure]]] = {
    "picture": lambda: _median_of_three(lambda: throughput.measure("picture", count=1000, processes=1)),
    "picture-2": lambda: _median_of_three(lambda: throughput.measure("picture", count=1000, processes=2)),
    "text": lambda: _median_of_three(lambda: throughput.measure("text", count=2000, processes=1)),
    "pickup": latency.measure,
    "rescue": lambda: [rescue.measure()],
    "followers": followers.measure,
    "waiting": lambda: [waiting.measure()],
    "fairness": fairness.measure,
    "stop": stops.measure,
    "spending": spending.measure,
    "selection": lambda: [selection.measure(full="--full" in sys.argv)],
}


def main() -> None:
    """Run and print. Medians, since machines are noisy: read the ratios, not the single figures."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted([*MEASUREMENTS, "bill"]))
    parser.add_argument("--full", action="store_true", help="selection: 5 million rows instead of 500,000")
    chosen = parser.parse_args().only or [*MEASUREMENTS, "bill"]
    table = Table("figure", "value", "unit", "yardstick", "its value", "ratio")
    for name in chosen:
        for figure in _bill() if name == "bill" else MEASUREMENTS[name]():
            print(json.dumps(figure), flush=True)
            columns = ("figure", "value", "unit", "yardstick", "yardstick_value", "ratio")
            table.add_row(*(str(figure.get(column, "")) for column in columns))
    Console().print(table)


def _bill() -> list[Figure]:
    """In a process of its own: it registers job types for its workers."""
    done = subprocess.run([sys.executable, "-m", "bench.bill"], capture_output=True, text=True, check=False)
    bill = json.loads(done.stdout.splitlines()[-1])
    return [
        {
            "figure": f"the bill: {bill['jobs']} jobs, {bill['kills']} kills; billed twice",
            "value": bill["billed_twice"],
            "unit": "jobs",
            "yardstick": "careful code on eight other systems",
            "yardstick_value": "23 to 29",
            **bill,
        }
    ]


if __name__ == "__main__":
    main()
