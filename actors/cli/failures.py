"""Exit codes, and every expected failure in one sentence that names what is wrong and what to do."""

from enum import IntEnum

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError

from actors.settings import SettingsError
from store.engine import is_transient
from store.errors import (
    AccountNotFound,
    IdempotencyConflict,
    InsufficientCredits,
    InvalidRequest,
    JobNotFound,
    NeverFits,
    QueueFull,
    RunNotFound,
    SchemaAhead,
    SchemaBehind,
    SubmitRefused,
)
from store.hygiene import clean_text
from store.migrate import MigrationBlocked


class Exit(IntEnum):
    OK = 0
    UNWELL = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    UNAVAILABLE = 5


MEANING = {
    Exit.OK: "done",
    Exit.UNWELL: "what was asked about is not well: a job that did not complete, violations, a late pass, an alert",
    Exit.USAGE: "the command line, an input or a setting cannot be used",
    Exit.NOT_FOUND: "there is no such job, run, account, budget or alert",
    Exit.REFUSED: "refused: a key used for another request, too few credits, a full budget, a job that has ended",
    Exit.UNAVAILABLE: "the database cannot be reached, or its schema does not fit this code",
}
INTERRUPTED = 130  # what a shell reports for Ctrl-C


class Failure(Exception):
    """Ends a command with a sentence and a code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


_CODES: tuple[tuple[type[Exception], Exit], ...] = (
    (SettingsError, Exit.USAGE),
    (JobNotFound, Exit.NOT_FOUND),
    (RunNotFound, Exit.NOT_FOUND),
    (AccountNotFound, Exit.NOT_FOUND),
    (IdempotencyConflict, Exit.REFUSED),
    (InsufficientCredits, Exit.REFUSED),
    (QueueFull, Exit.REFUSED),
    (NeverFits, Exit.REFUSED),
    (InvalidRequest, Exit.USAGE),
    (SubmitRefused, Exit.USAGE),
    (SchemaBehind, Exit.UNAVAILABLE),
    (SchemaAhead, Exit.UNAVAILABLE),
    (MigrationBlocked, Exit.UNAVAILABLE),
)


def explain(error: Exception) -> Failure | None:
    """The failure to report, or None for an error nobody expected: a bug, whose traceback is wanted."""
    if isinstance(error, Failure):
        return error
    for kind, code in _CODES:
        if isinstance(error, kind):
            return Failure(str(error), code)
    if isinstance(error, DBAPIError | sa.exc.TimeoutError):
        return _of_database(error)
    return None


def _of_database(error: DBAPIError | sa.exc.TimeoutError) -> Failure | None:
    words = _first_line(getattr(error, "orig", None) or error)
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    if state == "57014":
        return Failure(f"the database took too long to answer: {words}", Exit.UNAVAILABLE)
    if state.startswith(("28", "3D", "42501")):
        return Failure(f"the database refused: {words}; check user, password and database", Exit.UNAVAILABLE)
    if state.startswith(("3F", "42")):
        return Failure(f"the schema is not this code's: {words}; run `callkeeper migrate`", Exit.UNAVAILABLE)
    if is_transient(error):
        return Failure(
            f"the database cannot be reached: {words}; check DATABASE_URL and that the server runs", Exit.UNAVAILABLE
        )
    return None


def check_url(url: str) -> None:
    """Raise SettingsError for a URL of anything but Postgres, without repeating it: it may hold a password."""
    try:
        parsed = sa.make_url(url)
        backend = parsed.get_backend_name()
    except (ArgumentError, ValueError):
        backend = None
    if backend not in ("postgresql", "postgres"):
        what = f"names {backend}, not Postgres" if backend else "cannot be read as a URL"
        raise SettingsError(f"DATABASE_URL {what}: write it as postgresql://user:password@host:5432/database")


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return clean_text(lines[0] if lines else type(error).__name__, limit=300) or ""
