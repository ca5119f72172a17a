"""What commands print: tables and colour for a terminal, aligned plain text for a pipe, JSON where asked for."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from store.hygiene import clean_text

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_COLOURS = {
    "completed": "green",
    "running": "cyan",
    "waiting": "blue",
    "failed": "red",
    "timed_out": "red",
    "cancelled": "yellow",
}
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def is_terminal() -> bool:
    return sys.stdout.isatty()


def shown(value: Any) -> str:
    """A value as one cell of text: no escape sequences, no keys, no query strings, whoever wrote it."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.astimezone().isoformat(sep=" ", timespec="seconds")
    if isinstance(value, Mapping | list | tuple):
        value = json.dumps(value, ensure_ascii=False, default=str)
    return _CONTROL.sub("\ufffd", clean_text(str(value), limit=4_000) or "")


def duration(seconds: float | None) -> str:
    """Seconds in the unit that reads best."""
    if seconds is None:
        return "never"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.1f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < _DAY else f"{seconds / _DAY:.1f} days"


def say(text: str) -> None:
    """One line on standard output, as it is."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """One line on standard error, so that output stays output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def say_json(value: Any) -> None:
    say(json.dumps(value, ensure_ascii=False, default=_as_json))


def _as_json(value: Any) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def say_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Rows under headings."""
    cells = [[shown(value) for value in row] for row in rows]
    if is_terminal():
        Console(highlight=False).print(rich_table(columns, cells, title=title))
        return
    if title:
        say(title)
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]
    for line in [list(columns), *cells]:
        say("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def rich_table(columns: Sequence[str], cells: Iterable[Sequence[str]], *, title: str | None = None) -> Table:
    table = Table(*columns, title=title, title_justify="left")
    for row in cells:
        table.add_row(*(Text(cell, style=_COLOURS.get(cell, ""), overflow="fold") for cell in row))
    return table


def say_fields(fields: Mapping[str, Any]) -> None:
    """One value a line under its name; values of more lines are indented."""
    width = max(map(len, fields))
    for name, value in fields.items():
        text = shown(value).replace("\n", "\n" + " " * (width + 2))
        if is_terminal():
            line = Text(f"{name.ljust(width)}  ", style="bold")
            Console(highlight=False).print(line.append(text, style=_COLOURS.get(text, "not bold")))
        else:
            say(f"{name.ljust(width)}  {text}")
