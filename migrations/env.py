"""How migrations run: one migrator at a time, never waiting long for a lock, each revision in its own transaction.

What `store.migrate` hands over comes in `config.attributes`; the alembic command line gives `-x url=...` instead.
"""

import logging
import time
from datetime import timedelta

import sqlalchemy as sa
from alembic import context
from psycopg import errors

from migrations import LOCK_TIMEOUT, STATEMENT_TIMEOUT, VERSION_SCHEMA, run_verbatim, set_timeouts
from store.engine import sqlalchemy_url
from store.migrate import DEFAULT_PATIENCE, MigrationBlocked, refuse_newer

# "callkeep" as a number; advisory locks are counted per database.
MIGRATION_LOCK = 0x63616C6C6B656570
PAUSE = 0.2
log = logging.getLogger("callkeeper.migrate")
# The locks of running work: they pass. Everything else is for a person.
PASSING = (errors.LockNotAvailable, errors.DeadlockDetected)


def render() -> None:
    context.configure(
        dialect_name="postgresql",
        version_table_schema=VERSION_SCHEMA,
        transaction_per_migration=True,
        output_buffer=context.config.output_buffer,
    )
    migration = context.get_context()
    set_timeouts(migration, lock=LOCK_TIMEOUT, statement=STATEMENT_TIMEOUT)
    run_verbatim(migration, f"create schema if not exists {VERSION_SCHEMA}")
    context.run_migrations()


def migrate() -> None:
    attributes = context.config.attributes
    url = attributes.get("url") or context.get_x_argument(as_dictionary=True).get("url")
    if not url:
        raise SystemExit("which database? run `callkeeper migrate`, or `alembic -x url=postgresql://... upgrade head`")
    patience: timedelta = attributes.get("patience", DEFAULT_PATIENCE)
    give_up = time.monotonic() + patience.total_seconds()
    named = {"application_name": "callkeeper migrate", "connect_timeout": 10}
    engine = sa.create_engine(sqlalchemy_url(url), poolclass=sa.NullPool, connect_args=named)
    with engine.connect() as connection:
        wait_for_turn(connection, give_up)
        refuse_newer(connection, {script.revision for script in context.script.walk_revisions()})
        connection.commit()
        keep_trying(connection, give_up)


def wait_for_turn(connection: sa.Connection, give_up: float) -> None:
    """Poll for the lock: to block in pg_advisory_lock would hold a snapshot, for which another's CONCURRENTLY waits."""
    while not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(MIGRATION_LOCK))):
        connection.rollback()
        if time.monotonic() > give_up:
            raise MigrationBlocked("another migrator is at work on this database")
        time.sleep(PAUSE)
    connection.commit()


def keep_trying(connection: sa.Connection, give_up: float) -> None:
    """Run what is left, again and again while a lock is in the way: the queue behind our DDL can move in between."""
    while True:
        try:
            run(connection)
        except sa.exc.DBAPIError as error:
            connection.rollback()
            if not isinstance(error.orig, PASSING):
                raise
            if time.monotonic() > give_up:
                raise MigrationBlocked(str(error.orig).strip()) from error
            log.warning("trying again: %s", str(error.orig).strip())
            time.sleep(PAUSE)
        else:
            return


def run(connection: sa.Connection) -> None:
    context.configure(connection=connection, version_table_schema=VERSION_SCHEMA, transaction_per_migration=True)
    set_timeouts(context.get_context(), lock=LOCK_TIMEOUT, statement=STATEMENT_TIMEOUT)
    run_verbatim(context.get_context(), f"create schema if not exists {VERSION_SCHEMA}")
    connection.commit()
    context.run_migrations()
    connection.commit()


if context.is_offline_mode():
    render()
else:
    migrate()
