"""What commands share: options that mean the same everywhere, the database, the app's modules."""

import importlib
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated
from uuid import UUID

import typer

from actors.cli.failures import Exit, Failure, check_url
from actors.settings import settings
from store.engine import Database, make_engine
from store.migrate import check_compatible

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Modules = Annotated[
    list[str] | None,
    typer.Option("--module", "-m", help="Python module that registers job types; may be given more than once."),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id, as `submit` printed it.")]


def database_url() -> str:
    """The database all commands work on. Raises SettingsError."""
    url = settings().require_database_url()
    check_url(url)
    return url


@contextmanager
def database(*, patience: float = 0.0, statement_seconds: float = 30.0) -> Iterator[Database]:
    """The database, reached and found at this code's schema or newer. Raises what `failures.explain` explains."""
    engine = make_engine(
        database_url(), name="callkeeper cli", pool_size=2, statement_timeout_ms=int(statement_seconds * 1_000)
    )
    try:
        with engine.connect() as connection:
            check_compatible(connection)
        yield Database(engine, patience=patience)
    finally:
        engine.dispose()


def as_job_id(text: str) -> UUID:
    try:
        return UUID(text.strip())
    except ValueError:
        raise Failure(
            f"ID {text!r} is not a job id: write it as `submit` printed it, like 123e4567-e89b-12d3-a456-426614174000",
            Exit.USAGE,
        ) from None


def import_modules(given: Sequence[str] | None) -> list[str]:
    """Import the app's modules, those of CALLKEEPER_MODULES first; their names, each once. Raises Failure."""
    # As `python -m` does, and Dramatiq: an app's modules are looked for where one stands.
    if os.getcwd() not in sys.path:  # noqa: PTH109  # compared with strings
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    names = dict.fromkeys(settings().modules, "CALLKEEPER_MODULES") | dict.fromkeys(given or (), "--module")
    for name, source in names.items():
        try:
            importlib.import_module(name)
        except Exception as error:
            raise Failure(
                f"{source}: module {name!r} cannot be imported: {type(error).__name__}: {error};"
                " check the name, and that it can be imported from here",
                Exit.USAGE,
            ) from error
    return list(names)
