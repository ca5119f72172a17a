"""`callkeeper emergency-stop`: what all priced calls together may cost in a window; who opens it says why."""

from datetime import timedelta
from decimal import Decimal, InvalidOperation
from typing import Annotated

import typer

from actors.cli.budgets import By, somebody, window
from actors.cli.common import AsJson, database
from actors.cli.failures import Exit, Failure
from actors.cli.output import duration, say, say_json, say_table
from store import emergency_stop as store_stop
from store.emergency_stop import Stop
from store.errors import EmergencyStopInvalid

_MICRO = 1_000_000

Why = Annotated[str, typer.Option(help="Why; it is kept.")]

emergency_stop = typer.Typer(
    help="Show, set and release the stop over what priced calls cost. Off until it is set.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
)


@emergency_stop.callback()
def _show(context: typer.Context, *, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        show(as_json=as_json)


@emergency_stop.command("show")
def show(*, as_json: AsJson = False) -> None:
    """What it allows, what is spent and set aside, and whether it has latched. Exits 1 if it has."""
    with database() as db:
        stop = db.once(store_stop.read)
    if as_json:
        say_json(None if stop is None else _as_json(stop))
    elif stop is None:
        say("no emergency stop is set: nothing stops priced calls")
    else:
        say(_words(stop))
    if stop is not None and stop.latched_at is not None:
        raise typer.Exit(Exit.UNWELL)


def _words(stop: Stop) -> str:
    state = "open" if stop.latched_at is None else f"LATCHED since {stop.latched_at:%Y-%m-%d %H:%M:%S %Z}"
    return (
        f"{state}: {dollars(stop.used)} spent and {dollars(stop.reserved)} set aside of {dollars(stop.amount)}"
        f" in {duration(stop.per.total_seconds())}; warns at {stop.warn_at} %"
    )


def _as_json(stop: Stop) -> dict[str, object]:
    return {
        "amount_micro_usd": stop.amount, "per_seconds": stop.per.total_seconds(), "warn_at_percent": stop.warn_at,
        "used_micro_usd": stop.used, "reserved_micro_usd": stop.reserved, "warned_at": stop.warned_at,
        "latched_at": stop.latched_at, "changed_by": stop.changed_by,
    }  # fmt: skip


def dollars(micro: int) -> str:
    """For people, to the last millionth that says something."""
    whole = f"{Decimal(micro) / _MICRO:.6f}".rstrip("0")
    return f"{whole}{'0' * max(0, 2 - len(whole.partition('.')[2]))} USD"


@emergency_stop.command("set")
def set_stop(
    amount: Annotated[str, typer.Argument(metavar="USD", help="US dollars, like 250 or 12.50.")],
    *,
    per: Annotated[str, typer.Option(help="The rolling window: 1h to 31d.")] = "24h",
    warn_at: Annotated[int, typer.Option(help="Percent of the amount at which an alert is raised.")] = 80,
    by: By = None,
    why: Why = "",
) -> None:
    """Set the stop; it holds from the next call on. One that has latched stays so until it is released.

    For example: callkeeper emergency-stop set 250 --per 24h
    """
    micro, span = _micro(amount), window(per) or timedelta(days=1)
    with database() as db:
        try:
            db.once(store_stop.set_stop, amount=micro, per=span, warn_at=warn_at, by=by or somebody(), why=why)
        except EmergencyStopInvalid as error:
            raise Failure(str(error), Exit.USAGE) from None
    say(f"emergency stop: at most {dollars(micro)} in {duration(span.total_seconds())}")


@emergency_stop.command("remove")
def remove(*, by: By = None, why: Why = "") -> None:
    """Take the stop away; needs --why, and is kept."""
    with database() as db:
        try:
            gone = db.transact(store_stop.remove_stop, by=by or somebody(), why=why)
        except EmergencyStopInvalid as error:
            raise Failure(str(error), Exit.USAGE) from None
    if not gone:
        raise Failure("no emergency stop is set: see `callkeeper emergency-stop`", Exit.NOT_FOUND)
    say("emergency stop: removed; nothing stops priced calls")


@emergency_stop.command("release")
def release(*, by: By = None, why: Why = "") -> None:
    """Let priced calls begin again after it latched; needs --why, and is kept. Refused while all of it is spent."""
    with database() as db:
        try:
            done = db.transact(store_stop.release, by=by or somebody(), why=why)
        except EmergencyStopInvalid as error:
            raise Failure(str(error), Exit.REFUSED) from None
    if not done:
        raise Failure("the emergency stop has not latched: see `callkeeper emergency-stop`", Exit.NOT_FOUND)
    say("emergency stop: released")


@emergency_stop.command("history")
def show_history(*, as_json: AsJson = False) -> None:
    """What became of the stop: set, warned, stopped, released, removed; the latest first."""
    with database() as db:
        rows = db.once(store_stop.history)
    if as_json:
        say_json(rows)
        return
    columns = ("at", "what", "by", "why", "amount", "used", "per")
    say_table(columns, [[row[column] for column in columns] for row in rows])


def _micro(text: str) -> int:
    try:
        micro = Decimal(text) * _MICRO
        if micro.is_finite() and micro == micro.to_integral_value() and micro > 0:
            return int(micro)
    except InvalidOperation:
        pass
    raise Failure(
        f"USD {text!r} is not an amount: write US dollars above 0, with at most six decimals, like 250 or 12.50",
        Exit.USAGE,
    )
