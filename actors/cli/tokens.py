"""`token create|list|revoke`: who may speak to the web API."""

from datetime import timedelta
from typing import Annotated

import typer

from actors.cli.common import AsJson, database
from actors.cli.failures import Exit, Failure
from actors.cli.output import say, say_json, say_table, warn
from store import tokens
from store.hygiene import looks_secret

_LONGEST = 256  # bytes

app = typer.Typer(help="Make, list and revoke the web API's tokens.", no_args_is_help=True)


@app.command()
def create(
    *,
    user: Annotated[str | None, typer.Option(help="Whose jobs are submitted and seen with it.")] = None,
    account: Annotated[str | None, typer.Option(help="Whose credits pay; by default the user's own.")] = None,
    operator: Annotated[bool, typer.Option("--operator", help="For the operator's page.")] = False,
    label: Annotated[str, typer.Option(help="What it is for, to know it again in the list.")] = "",
    days: Annotated[int | None, typer.Option(min=1, max=3_650, help="Expires after so many days.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once: only its hash is kept."""
    if operator == (user is not None):
        raise Failure("name either --user or --operator: a token speaks for one of them", Exit.USAGE)
    if account is not None and user is None:
        raise Failure("--account goes with --user: an operator submits nothing", Exit.USAGE)
    for option, value in (("--user", user), ("--account", account), ("--label", label or None)):
        _check(option, value)
    with database() as db:
        number, token = db.once(
            tokens.create,
            scope="operator" if operator else "user",
            user_id=user,
            account_id=account,
            label=label,
            life=None if days is None else timedelta(days=days),
        )
    if as_json:
        say_json({"id": number, "token": token})
        return
    warn(f"callkeeper: token {number}; it is not shown again")
    say(token)


def _check(option: str, value: str | None) -> None:
    if value is not None and (not 0 < len(value.encode(errors="replace")) <= _LONGEST or "\x00" in value):
        raise Failure(f"{option} has {len(value)} characters: name 1 to 256 bytes of text without NUL", Exit.USAGE)
    if value is not None and looks_secret(value):
        raise Failure(f"{option} looks like a key, and secrets are never stored: choose another", Exit.USAGE)


@app.command("list")
def list_tokens(*, as_json: AsJson = False) -> None:
    """List every token that was made. What they are is not known here any more."""
    with database() as db:
        rows = db.once(tokens.listed)
    if as_json:
        say_json(rows)
        return
    if not rows:
        say("no tokens")
        return
    columns = ("id", "scope", "user_id", "account_id", "label", "created_at", "expires_at", "revoked_at")
    say_table(columns, [[row[name] for name in columns] for row in rows])


@app.command()
def revoke(number: Annotated[int, typer.Argument(metavar="NUMBER", help="As `token list` shows it.")]) -> None:
    """End a token: the next request with it is refused, and open event streams end within a heartbeat."""
    with database() as db:
        ended = db.once(tokens.revoke, number)
    if ended is None:
        raise Failure(f"there is no token {number}: see `callkeeper token list`", Exit.NOT_FOUND)
    say(f"token {number} is revoked" if ended else f"token {number} was revoked before")
