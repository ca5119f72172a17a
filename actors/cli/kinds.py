"""`providers`: what can be called, and how each behaves."""

from actors.cli.common import AsJson
from actors.cli.output import say_json, say_table
from providers.registry import KINDS
from providers.table import COLUMNS, facts, row


def providers(*, as_json: AsJson = False) -> None:
    """Show all provider kinds: their times, what they can do, and what they meter. Needs no database.

    These are the built-in values; CALLKEEPER_KINDS overrides some of them for the workers.
    """
    kinds = sorted(KINDS.values(), key=lambda kind: kind.name)
    if as_json:
        say_json([facts(kind) for kind in kinds])
        return
    say_table(COLUMNS, [row(kind) for kind in kinds])
