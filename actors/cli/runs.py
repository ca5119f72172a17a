"""Commands about runs: run, runs, rollout, roles."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from actors import runs as public
from actors.cli.common import AsJson, JobId, as_job_id, database
from actors.cli.failures import Exit, Failure
from actors.cli.output import say, say_fields, say_json, say_table, shown
from actors.run_probe import continued_as
from store import roles as store_roles
from store import rollout as store_rollout
from store import runs as store_runs

_MODES = ", ".join(store_rollout.MODES)


def run(
    run_id: JobId,
    *,
    stop: Annotated[bool, typer.Option("--stop", help="Ask it to end first.")] = False,
    client: Annotated[bool, typer.Option("--client", help="Print the answer that a client gets, as JSON.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run: state, quality, warnings, steps with their credits, and its history.

    Exits 1 if it ended in any way but completed.
    """
    wanted = as_job_id(run_id)
    with database() as db:
        if stop:
            db.transact(public.stop_run, wanted)
        found = db.once(public.run, wanted)
        history = db.once(store_runs.events, wanted)
        later = continued_as(db, wanted)
    if client:
        say_json(public.response(found))
    elif as_json:
        say_json({**found, "events": history, "continued_as": None if later is None else later[0]})
    else:
        _show(found, history)
        if later is not None:
            say(f"continued as {later[0]}, which is {later[1].found}: its key was used again")
    if found["status"] not in ("running", "completed"):
        raise typer.Exit(int(Exit.UNWELL))


def _show(found: Mapping[str, Any], history: list[Mapping[str, Any]]) -> None:
    fields: dict[str, Any] = {
        "run": found["id"],
        "type": found["run_type"],
        "status": found["status"]
        if found["ending"] in (None, found["status"])
        else f"running, will be {found['ending']}",
        "quality": found["quality"],
        "progress": f"{found['progress']:.0%}",
        "user": found["user_id"],
        "failure": found["failure_code"] and f"{found['failure_code']} {' '.join(found['failed_nodes'])}".strip(),
        "round": found["round"] or None,
        "deadline": found["deadline_at"],
        "created": found["created_at"],
        "finished": found["finished_at"],
    }
    say_fields({name: value for name, value in fields.items() if value is not None})
    columns = ("step", "status", "attempt", "recreates", "credits", "charged", "error_code", "job_id")
    say_table(columns, [[_cell(step, name) for name in columns] for step in found["steps"]])
    for warning in found["warnings"]:
        say(f"{warning['severity']}: {warning['stage']}: {warning['code']} {shown(warning['details'])}")
    say(" -> ".join(event["kind"] for event in history))


def _status(found: Mapping[str, Any]) -> str:
    on_its_way = found["status"] == "running" and found["ending"]
    return f"running, will be {found['ending']}" if on_its_way else str(found["status"])


def _cell(step: Mapping[str, Any], name: str) -> Any:
    if name == "status" and step["blocked"] and step["status"] == "queued":
        return "held back"
    return step[name]


def runs(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="How many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List the newest runs."""
    with database() as db:
        found = db.once(public.runs, at_most=limit)
    if as_json:
        say_json(found)
        return
    columns = ("id", "run_type", "status", "quality", "progress", "failure_code", "created_at")
    say_table(columns, [[one[name] for name in columns] for one in found])


def rollout(
    flag: Annotated[str | None, typer.Argument(help="Which flag; leave it out to show all.")] = None,
    mode: Annotated[str | None, typer.Argument(help=f"Its new mode: {_MODES}.")] = None,
    *,
    percent: Annotated[int, typer.Option(min=0, max=100, help="The share of runs in a canary.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the rollout flags with what became of the runs under each, or set one; workers see it within a second."""
    with database() as db:
        if flag is not None:
            if mode is None:
                raise Failure(f"MODE is missing: say which of {_MODES} {flag!r} shall be", Exit.USAGE)
            try:
                db.once(store_rollout.set_flag, flag, mode, percent=percent)
            except ValueError as error:
                raise Failure(str(error), Exit.USAGE) from None
        found = db.once(store_rollout.gates)
    if as_json:
        say_json(found)
        return
    columns = (
        "flag",
        "mode",
        "percent",
        "acted_runs",
        "acted_completed",
        "watched_runs",
        "watched_failed",
        "may_promote",
    )
    say_table(columns, [[one[name] for name in columns] for one in found])


def roles(
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it; needs no database.")] = False,
) -> None:
    """Create the database roles and row-level policies: a service that may all, users who see only what is theirs.

    Needs a login that may create roles. Safe to run again.
    """
    if sql:
        say(store_roles.SCRIPT)
        return
    with database() as db:
        db.transact(store_roles.create)
    say(f"roles {', '.join(store_roles.ROLES)} are there; docs/runs.md says how to use them")
