"""Commands about one job or one account: submit, job, jobs, follow, stop, grant."""

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from actors import public
from actors.cli.common import AsJson, JobId, Modules, as_job_id, database, import_modules
from actors.cli.failures import INTERRUPTED, Exit, Failure
from actors.cli.output import say, say_fields, say_json, say_table, shown, warn
from actors.follow import Frame
from store import health, ledger, looks, watches
from store.engine import Database
from store.errors import AccountNotFound
from store.models import Submitted
from store.states import TERMINAL, State

_MOST_CREDITS = 10**15


def submit(
    job_type: Annotated[str, typer.Argument(metavar="TYPE", help="A registered job type, or a provider kind's name.")],
    *,
    given: Annotated[str, typer.Option("--input", "-i", help="The request: JSON, @file, or - for standard input.")],
    user: Annotated[str | None, typer.Option(help="Whose job this is.")] = None,
    account: Annotated[str | None, typer.Option(help="Whose credits pay; by default the user's own.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key and request give the same job.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Print the job's events until it ends.")] = False,
    module: Modules = None,
    as_json: AsJson = False,
) -> None:
    """Submit a job and print its id.

    For a provider's own request: callkeeper submit replicate-prediction --input '{"model": "owner/name", "input": {}}'
    """
    request = _request(given)
    import_modules(module)
    with database() as db:
        with db.engine.begin() as connection:
            submitted = public.submit(
                connection, job_type, request, user_id=user, account_id=account, idempotency_key=key
            )
        _say_submitted(submitted, as_json=as_json)
        if follow:
            _follow(db, submitted.job_id, after=0, as_json=as_json)


def _say_submitted(submitted: Submitted, *, as_json: bool) -> None:
    if as_json:
        say_json({"job_id": submitted.job_id, "status": submitted.status, "created": submitted.created})
        return
    known = "" if submitted.created else "  (known by its key: nothing new was submitted)"
    say(f"job {submitted.job_id} {submitted.status}{known}")


def _request(given: str) -> Mapping[str, Any]:
    text, source = given, "the text"
    if given == "-":
        text, source = sys.stdin.read(), "standard input"
    elif given.startswith("@"):
        source = given[1:]
        try:
            text = Path(source).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(f"--input: file {source!r} cannot be read: {error}", Exit.USAGE) from None
    try:
        request = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "" if "{" in text else " (for a file, write @file)"
        raise Failure(f"--input: {source} is not JSON: {error}{hint}", Exit.USAGE) from None
    if not isinstance(request, dict):
        raise Failure(f"--input: {source} is JSON of type {type(request).__name__}: send an object", Exit.USAGE)
    return request


def job(job_id: JobId, *, as_json: AsJson = False) -> None:
    """Show a job: state, progress, call, credits, result or error, files.

    Exits 1 if it ended in any way but completed.
    """
    wanted = as_job_id(job_id)
    with database() as db:
        found = {
            **db.once(public.job, wanted),
            "reconciliation": db.once(looks.counters, wanted),
            "looks": db.once(looks.history, wanted),
            "late_assets": db.once(watches.standalone, wanted),
        }
    if as_json:
        say_json(found)
    else:
        _show(found)
        _show_looks(found)
    _exit_as(found["status"])


def _show(found: Mapping[str, Any]) -> None:
    progress = found["progress"]
    fields: dict[str, Any] = {
        "job": found["id"],
        "type": found["job_type"],
        "status": found["status"],
        "user": found["user_id"],
        "attempt": f"{found['attempt']} of {found['max_attempts']}",
        "progress": None if progress is None else f"{progress:.0%}",
        "call": found["provider_kind"] and f"{found['provider_kind']} {found['provider_task_id'] or '(no task id)'}",
        "credits": found["credits"] and f"{found['price']} reserved, {found['charged']} charged ({found['credits']})",
        "created": found["created_at"],
        "started": found["started_at"],
        "finished": found["finished_at"],
        "error": found["error_code"] and f"{found['error_code']}: {found['error_message'] or ''}",
        "result": found["result"] and json.dumps(found["result"], ensure_ascii=False, indent=2),
    }
    say_fields({name: value for name, value in fields.items() if value is not None})
    if found["assets"]:
        columns = ("object_key", "content_type", "size_bytes", "sha256")
        say_table(columns, [[asset[name] for name in columns] for asset in found["assets"]])


def _show_looks(found: Mapping[str, Any]) -> None:
    """The passes' history of this job, and what came after its end."""
    counted = found["reconciliation"]
    if counted["failed_looks"] or counted["deferred_looks"]:
        last = shown(counted["last_error"])
        say(f"looks: {counted['failed_looks']} failed, {counted['deferred_looks']} deferred, the last error: {last}")
    if found["looks"]:
        columns = ("looked_at", "found", "did", "code", "misses", "attempts")
        say_table(columns, [[look[name] for name in columns] for look in found["looks"]])
    if found["late_assets"]:
        names = ("object_key", "content_type", "size_bytes", "sha256")
        say("came after the job had ended, not charged:")
        say_table(names, [[asset[name] for name in names] for asset in found["late_assets"]])


def jobs(
    *,
    status: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    user: Annotated[str | None, typer.Option(help="Only this user's jobs.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many at most.")] = 20,
    before: Annotated[str | None, typer.Option(metavar="ID", help="Only jobs older than this: the next page.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs, newest first."""
    page: dict[str, Any] = {"status": status and str(status), "user_id": user, "at_most": limit}
    if before is not None:
        page["before"] = as_job_id(before)
    with database() as db:
        if before is not None:
            db.once(public.job, page["before"])
        rows = db.once(health.newest_jobs, **page)
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("no jobs")
        return
    columns = ("id", "job_type", "status", "user_id", "attempt", "progress", "error_code", "created_at")
    cells = [
        [f"{row[name]:.0%}" if name == "progress" and row[name] is not None else row[name] for name in columns]
        for row in rows
    ]
    say_table(columns, cells)


def follow(
    job_id: JobId,
    *,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher number: where you left off.")] = 0,
    tokens: Annotated[bool, typer.Option("--tokens", help="Also what is not stored: tokens and progress.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a job's events as they happen, until it ends. With --json, one object a line: the bytes of its frame.

    Ctrl-C stops the printing, never the job. Exits 1 if it ends in any way but completed.
    """
    wanted = as_job_id(job_id)
    with database() as db:
        _follow(db, wanted, after=after, as_json=as_json, tokens=tokens)


def _follow(db: Database, job_id: UUID, *, after: int, as_json: bool, tokens: bool = False) -> None:
    if db.once(public.job, job_id)["status"] not in TERMINAL and not db.once(health.live_workers):
        warn("callkeeper: no worker is alive on this database: start one with `callkeeper worker`")
    try:
        for frame in public.follow(db.engine, job_id, after=after, tokens=tokens):
            after = frame.after
            if as_json:
                say(frame.bytes.decode())
            else:
                _say_frame(frame)
    except KeyboardInterrupt:
        warn(f"callkeeper: the job goes on; see the rest with `callkeeper follow {job_id} --after {after}`")
        raise typer.Exit(INTERRUPTED) from None
    ended = db.once(public.job, job_id)
    if not as_json:
        error = f" ({ended['error_code']}: {shown(ended['error_message'])})" if ended["error_code"] else ""
        say(f"job {job_id} {ended['status']}{error}")
    _exit_as(ended["status"])


def _say_frame(frame: Frame) -> None:
    data = " ".join(f"{name}={shown(value)}" for name, value in frame.data.items())
    if frame.seq is None:
        say(f"  ~                {frame.kind:<16}  {data}".rstrip())
        return
    moment = datetime.fromisoformat(frame.content["at"]).astimezone().strftime("%H:%M:%S.%f")[:-3]
    say(f"{frame.seq:>3}  {moment}  {frame.kind:<16}  {data}".rstrip())


def _exit_as(status: str) -> None:
    if status in TERMINAL and status != State.COMPLETED:
        raise typer.Exit(Exit.UNWELL)


def stop(
    job_id: JobId,
    *,
    user: Annotated[str | None, typer.Option(help="Only if it is this user's job.")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask a job to end, and its provider to stop working on it. Safe to repeat.

    Exits 4 if it has already ended in another way.
    """
    wanted = as_job_id(job_id)
    with database() as db:
        state = db.transact(public.stop, wanted, user_id=user)
    if as_json:
        say_json({"job_id": wanted, "status": state})
    elif state is State.CANCELLED:
        say(f"job {wanted} cancelled")
    elif state not in TERMINAL:
        say(f"job {wanted} {state}: it was asked to end, and does when its holder hears it")
    if state in TERMINAL and state is not State.CANCELLED:
        raise Failure(f"job {wanted} is {state}: what has ended stays as it is", Exit.REFUSED)


def grant(
    account: Annotated[str, typer.Argument(metavar="ACCOUNT", help="The account; opened if it is new.")],
    *,
    topup: Annotated[int, typer.Option(min=0, max=_MOST_CREDITS, help="Credits that were bought.")] = 0,
    subscription: Annotated[int, typer.Option(min=0, max=_MOST_CREDITS, help="Credits of a plan; spent first.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Add whole credits to an account. Running it twice grants twice."""
    if not topup + subscription:
        raise Failure("nothing to grant: name --topup, --subscription, or both, above 0", Exit.USAGE)
    if not account.strip() or "\x00" in account:
        raise Failure(f"ACCOUNT {account!r} is empty: name the account", Exit.USAGE)
    with database() as db:
        db.transact(ledger.grant, account, topup=topup, subscription=subscription)
        balance = db.once(ledger.balance, account)
    if balance is None:
        raise AccountNotFound(account)
    if as_json:
        say_json({"account_id": account, **balance._asdict()})
        return
    say(
        f"account {account}: granted {balance.granted} = {balance.available} available"
        f" + {balance.reserved} reserved + {balance.committed} committed"
    )
