"""The commands in one place, and what becomes of an error that a command did not handle."""

import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from actors.cli import budgets, emergency_stop, jobs, kinds, operate, processes, runs, tokens, watch
from actors.cli.failures import INTERRUPTED, MEANING, explain
from actors.cli.output import say, shown, warn

_EXIT_CODES = "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANING.items()) + "."


class Commands(TyperGroup):
    """Expected errors end in one sentence and a code; only bugs show a traceback."""

    def invoke(self, ctx: Any) -> Any:
        given = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        try:
            return super().invoke(ctx)
        except typer.BadParameter as refusal:
            # The library says what would be right, and not what was wrong.
            value = given_value(refusal.param, given)
            if value is not None and value not in refusal.message:
                refusal.message = f"{refusal.message.rstrip('.')} (got {shown(value)!r})"
            raise
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except Exception as error:
            failure = explain(error)
            if failure is None:
                raise
            warn(f"callkeeper: {failure}")
            raise typer.Exit(int(failure.code)) from None


app = typer.Typer(
    name="callkeeper",
    cls=Commands,
    help="Paid calls to AI and media providers on nothing but Postgres: one upstream call, one result, one charge.",
    epilog=_EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def given_value(option: Any, arguments: Sequence[str]) -> str | None:
    """What the command line gives an option: the last one counts. None for an argument, or what is not there."""
    found = None
    for name in getattr(option, "opts", ()):
        for place, word in enumerate(arguments):
            if word == name and place + 1 < len(arguments):
                found = arguments[place + 1]
            elif word.startswith(f"{name}=") or (word.startswith(name) and len(name) == len("-t") < len(word)):
                found = word.removeprefix(name).removeprefix("=")
    return found


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"callkeeper {version('callkeeper')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    # Warnings of libraries go to standard error and never mix with what a command prints.
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")


for command in (
    processes.migrate,
    processes.worker,
    processes.scheduler,
    processes.web,
    processes.sandbox,
    kinds.providers,
    jobs.submit,
    jobs.job,
    jobs.jobs,
    jobs.follow,
    jobs.stop,
    jobs.grant,
    runs.run,
    runs.runs,
    runs.rollout,
    runs.roles,
    watch.audit,
    watch.health,
    operate.alerts,
    operate.spend,
    operate.metrics,
    processes.demo,
):
    app.command(epilog=_EXIT_CODES)(command)
app.add_typer(tokens.app, name="token")
app.add_typer(budgets.budgets, name="budgets")
app.add_typer(emergency_stop.emergency_stop, name="emergency-stop")


def main() -> None:
    """The console script."""
    app()
