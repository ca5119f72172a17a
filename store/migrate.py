"""Moves a database to this code's schema, and says whether it is there. The revisions are the installed code's."""

import io
import threading
from collections.abc import Collection
from datetime import timedelta
from functools import cache
from importlib import resources
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

from store.errors import SchemaAhead, SchemaBehind, StoreError
from store.tables import SCHEMA

DEFAULT_PATIENCE = timedelta(minutes=10)
# Alembic keeps what it is running in a global of its module.
_one_at_a_time = threading.Lock()


class MigrationBlocked(StoreError):
    """Patience is over. What was done so far is whole: run it again when the way is clear."""

    def __init__(self, obstacle: str) -> None:
        super().__init__(
            f"migration gave up: {obstacle}. Look in pg_stat_activity for who is in the way, then run it again"
        )


def upgrade(url: str, revision: str = "head", *, patience: timedelta = DEFAULT_PATIENCE) -> None:
    """Run what the database lacks up to `revision`; safe to start any number of times at once.

    Each revision commits by itself. One that cannot have its locks within 2 s is rolled back and tried again, and
    another migrator is waited for, until `patience` is over: then MigrationBlocked. Raises SchemaAhead, having changed
    nothing, where the database was migrated by newer code.
    """
    config = _config()
    config.attributes["url"] = url
    config.attributes["patience"] = patience
    with _one_at_a_time:
        command.upgrade(config, revision)


def render_sql(start: str = "base", end: str = "head") -> str:
    """The SQL that `upgrade` would run between two revisions, to be read, linted, or run by hand. Needs no database."""
    text = io.StringIO()
    config = _config()
    config.output_buffer = text
    with _one_at_a_time:
        command.upgrade(config, f"{start}:{end}", sql=True)
    return text.getvalue()


def newest_revision() -> str:
    """The revision that this code needs."""
    return known_revisions()[0]


@cache
def known_revisions() -> tuple[str, ...]:
    """Every revision of this code, newest first."""
    return tuple(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def check_compatible(connection: sa.Connection) -> None:
    """Raise SchemaBehind where the database lacks a revision of this code. A newer one is fine: expand, contract."""
    known = known_revisions()
    current = _current(connection)
    if current is None or current in known[1:]:
        raise SchemaBehind(database=current, code=known[0])


def refuse_newer(connection: sa.Connection, known: Collection[str]) -> None:
    """Raise SchemaAhead where the database is at a revision that is not known here: this code must not touch it."""
    current = _current(connection)
    if current is not None and current not in known:
        raise SchemaAhead(database=current, code=max(known))


def _current(connection: sa.Connection) -> str | None:
    """The revision that the database is at: none before the first migration."""
    if connection.scalar(sa.text(f"select to_regclass('{SCHEMA}.alembic_version')")) is None:
        return None
    revision: str | None = connection.scalar(sa.text(f"select max(version_num) from {SCHEMA}.alembic_version"))  # noqa: S608
    return revision


def location() -> Path:
    """The folder with env.py and the revisions."""
    return Path(str(resources.files("migrations")))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(location()).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
