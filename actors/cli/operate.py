"""`alerts`, `spend` and `metrics`: what wants a person, what money wants an explanation, what is measured."""

from collections.abc import Sequence
from typing import Annotated

import typer

from actors.cli.common import AsJson, as_job_id, database
from actors.cli.failures import Exit, Failure
from actors.cli.output import say, say_json, say_table
from store import metrics as store_metrics
from store import operators
from store.engine import Database
from store.metrics import Sample


def alerts(
    *,
    resolve: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="Mark this alert as dealt with; it comes back with its cause.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show resolved ones, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """List what wants an operator, or resolve one. Each subject is one alert, counted.

    Exits 1 while any is open.
    """
    with database() as db:
        if resolve is not None:
            if not db.once(operators.resolve_alert, resolve):
                raise Failure(f"--resolve {resolve!r}: no such alert is open; see `callkeeper alerts`", Exit.NOT_FOUND)
            say(f"alert {resolve} resolved")
            return
        found = db.once(operators.alerts, resolved_too=everything)
    if as_json:
        say_json(found)
    elif found:
        columns = ("subject", "times", "first_at", "last_at", "resolved_at", "details")
        say_table(columns, [[row[name] for name in columns] for row in found])
    else:
        say("alerts: none")
    if any(row["resolved_at"] is None for row in found):
        raise typer.Exit(Exit.UNWELL)


def spend(
    *,
    resolve: Annotated[
        str | None, typer.Option(metavar="ID", help="The job whose spend is explained; needs --note.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="What you found out.")] = None,
    as_json: AsJson = False,
) -> None:
    """List calls that were refunded although the provider may have been paid, or explain one."""
    with database() as db:
        if resolve is not None:
            _explain(resolve, note, db)
            return
        found = db.once(operators.spend)
    if as_json:
        say_json(found)
        return
    if found:
        columns = (
            "job_id",
            "job_type",
            "provider_kind",
            "provider_task_id",
            "error_code",
            "price",
            "upstream",
            "created_at",
        )
        say_table(columns, [[row[name] for name in columns] for row in found])
    say(f"unexplained: {len(found)} calls, {sum(row['price'] for row in found)} credits")


def _explain(job: str, note: str | None, db: Database) -> None:
    if not (note or "").strip():
        raise Failure("--note is missing: say what you found out about the call", Exit.USAGE)
    job_id = as_job_id(job)
    if not db.once(operators.resolve_spend, job_id, resolution=(note or "").strip()[:500]):
        raise Failure(f"--resolve {job}: nothing of this job is unexplained", Exit.NOT_FOUND)
    say(f"spend of job {job_id} explained")


def metrics(*, as_json: AsJson = False) -> None:
    """Print what is measured, in Prometheus' text format, or as JSON."""
    with database() as db:
        found = db.once(store_metrics.samples)
    if as_json:
        say_json([sample._asdict() for sample in found])
    else:
        say(prometheus(found))


def prometheus(samples: Sequence[Sample]) -> str:
    """The text exposition format: one TYPE line a metric, its samples together."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(f"callkeeper_{sample.name}", []).append(sample)
    lines = []
    for name, group in by_name.items():
        lines.append(f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}")
        lines += [f"{name}{_labels(sample.labels)} {float(sample.value):g}" for sample in group]
    return "\n".join(lines)


def _labels(labels: dict[str, str]) -> str:
    escaped = (
        (name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for name, value in labels.items()
    )
    inner = ",".join(f'{name}="{value}"' for name, value in escaped)
    return f"{{{inner}}}" if inner else ""
