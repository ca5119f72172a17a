"""`audit` and `health`: whether everything holds, and whether everything runs."""

from typing import Any

import typer

from actors.cli.common import AsJson, database
from actors.cli.failures import Exit
from actors.cli.output import duration, say, say_json, say_table
from actors.readiness import expected_passes, late
from store import health as store_health
from store import reads


def audit(*, as_json: AsJson = False) -> None:
    """State every invariant as a query and list what violates one: nothing, in a healthy system.

    Exits 1 if there is a violation.
    """
    with database(statement_seconds=600) as db:
        found = db.once(reads.violations)
    if as_json:
        say_json(found)
    else:
        if found:
            say_table(("invariant", "job", "what"), [(v["invariant"], v["job_id"], v["what"]) for v in found])
        say(f"audit: {len(found)} violation{'' if len(found) == 1 else 's'}")
    if found:
        raise typer.Exit(Exit.UNWELL)


def health(*, as_json: AsJson = False) -> None:
    """Show passes, workers, what has waited longest, and open alerts.

    Exits 1 if a pass has not succeeded for five minutes: then no scheduler or no worker runs.
    """
    with database() as db:
        state: dict[str, Any] = {
            "passes": db.once(store_health.passes),
            "workers": db.once(store_health.live_workers),
            "queues": db.once(store_health.queues),
            "oldest_queued": db.once(store_health.oldest_queued),
            "jobs": db.once(reads.counts),
            "alerts": db.once(store_health.alerts),
        }
    state["late"] = late(state["passes"])
    if as_json:
        say_json(state)
    else:
        _show(state)
    if state["late"]:
        raise typer.Exit(Exit.UNWELL)


def _show(state: dict[str, Any]) -> None:
    known = {row["name"]: row for row in state["passes"]}
    rows = []
    for name in sorted({*expected_passes(), *known}):
        row = known.get(name, {})
        well = "late" if name in state["late"] else "ok"
        rows.append(
            (name, well, duration(row.get("age")), row.get("scanned"), row.get("acted"), row.get("took_ms"),
             row.get("last_error"))
        )  # fmt: skip
    say_table(("pass", "state", "last success", "scanned", "acted", "ms", "last error"), rows)
    say(f"workers alive: {state['workers']}")
    counts = ", ".join(f"{count} {status}" for status, count in sorted(state["jobs"].items()))
    say(f"jobs: {counts or 'none'}")
    oldest = state["oldest_queued"]
    if oldest:
        say(f"oldest queued: {oldest['id']} ({oldest['job_type']}), ready for {duration(oldest['age'])}")
    for queue in state["queues"]:
        say(f"queue {queue['queue']}: {queue['ready']} ready, the oldest for {duration(queue['oldest'])}")
    if state["alerts"]:
        alerts = [(row["subject"], row["times"], row["last_at"], row["details"]) for row in state["alerts"]]
        say_table(("alert", "times", "last", "details"), alerts)
    else:
        say("alerts: none")
    if state["late"]:
        names = ", ".join(state["late"])
        say(f"late: {names}: run one `callkeeper scheduler`, and a `callkeeper worker` that takes queue maintenance")
