"""`callkeeper budgets`: what may run, queue, start and be spent; changed while everything runs, and noted."""

import getpass
import re
from contextlib import suppress
from datetime import timedelta
from typing import Annotated

import typer

from actors.cli.common import AsJson, database
from actors.cli.failures import Exit, Failure
from actors.cli.output import duration, say, say_json, say_table
from actors.settings import settings
from store import budgets as store_budgets
from store.budgets import Budget
from store.errors import BudgetInvalid

_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_LENGTH = re.compile(r"(\d+)([smhd])")

Measure = Annotated[str, typer.Argument(help=f"What is limited: {', '.join(store_budgets.SCOPES)}.")]
Target = Annotated[
    str,
    typer.Argument(
        metavar="WHOM",
        help="global, kind:NAME, account:VENDOR/NAME, user:ID or app:NAME; `*` for each without its own.",
    ),
]
By = Annotated[str | None, typer.Option(help="Who changes it; by default you, as this machine knows you.")]

budgets = typer.Typer(
    help="Show and change limits: what may run at once, queue, start in a window, and be spent.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@budgets.callback()
def _show(context: typer.Context, *, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        show(as_json=as_json)


@budgets.command("list")
def show(*, as_json: AsJson = False) -> None:
    """Every limit, what it has given out, and how many jobs wait for it."""
    with database() as db:
        rows = db.once(store_budgets.budgets, accounts=settings().accounts)
    if as_json:
        say_json([_as_json(row) for row in rows])
        return
    if not rows:
        say("no budgets: nothing is limited")
        return
    columns = ("measure", "whom", "limit", "per", "used", "parked", "changed_by")
    say_table(columns, [_cells(row) for row in rows])


def _cells(row: Budget) -> list[object]:
    per = None if row.per is None else duration(row.per.total_seconds())
    return [row.measure, row.target, row.at_most, per, row.used, row.parked, row.changed_by]


def _as_json(row: Budget) -> dict[str, object]:
    per = None if row.per is None else row.per.total_seconds()
    return {
        "measure": row.measure, "whom": row.target, "limit": row.at_most, "per_seconds": per, "used": row.used,
        "parked": row.parked, "changed_by": row.changed_by,
    }  # fmt: skip


@budgets.command("set")
def set_limit(
    measure: Measure,
    whom: Target,
    limit: Annotated[int, typer.Argument(min=0, help="At most this many; credits for spend, a share for weight.")],
    *,
    per: Annotated[str | None, typer.Option(help="The window of rate and spend: 30s, 10m, 1h, 7d.")] = None,
    by: By = None,
) -> None:
    """Set a limit; it holds from the next start on. What runs already goes on.

    For example: callkeeper budgets set concurrency account:replicate/default 10
    """
    scope, name = _target(whom)
    with database() as db:
        try:
            db.once(store_budgets.set_budget, measure, scope, name, at_most=limit, per=window(per), by=by or somebody())
        except BudgetInvalid as error:
            raise Failure(str(error), Exit.USAGE) from None
    say(f"{measure} {whom}: at most {limit}{f' per {per}' if per else ''}")


@budgets.command("remove")
def remove_limit(measure: Measure, whom: Target, *, by: By = None) -> None:
    """Lift a limit; what waited for it gets in line again."""
    scope, name = _target(whom)
    with database() as db:
        if not db.once(store_budgets.remove_budget, measure, scope, name, by=by or somebody()):
            raise Failure(f"there is no budget {measure} {whom}: see `callkeeper budgets`", Exit.NOT_FOUND)
    say(f"{measure} {whom}: no limit")


@budgets.command("changes")
def show_changes(*, as_json: AsJson = False) -> None:
    """Who changed which limit, the latest first."""
    with database() as db:
        rows = db.once(store_budgets.changes)
    if as_json:
        say_json(rows)
        return
    columns = ("changed_at", "changed_by", "measure", "scope", "name", "was", "at_most", "per")
    say_table(columns, [[row[column] for column in columns] for row in rows])


def _target(whom: str) -> tuple[str, str]:
    scope, _, name = whom.partition(":")
    return scope, name


def window(text: str | None) -> timedelta | None:
    """A length of time as operators write it. Raises Failure."""
    if text is None:
        return None
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise Failure(f"--per {text!r} is not a length of time: write a number and s, m, h or d, like 10m", Exit.USAGE)
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def somebody() -> str:
    """Who sits here, as this machine knows them."""
    with suppress(OSError, KeyError):
        return getpass.getuser()
    return "unknown"
