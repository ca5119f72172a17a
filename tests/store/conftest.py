"""What the store's tests share: a pool wide enough for races, and the steps between states.

A database serves a whole module and is emptied before each test; `fresh` is for the test that changes the schema.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from store.engine import Database, make_engine
from tests.conftest import Server, scratch_database
from tests.store.steps import Steps, relaxed

EMPTY = (
    "delete from callkeeper.jobs",
    "delete from callkeeper.runs",
    "delete from callkeeper.rollout_flags",
    "delete from callkeeper.accounts",
    "delete from callkeeper.alerts",
    "delete from callkeeper.passes",
    "delete from callkeeper.ticks",
    "delete from callkeeper.webhook_deliveries",
    "delete from callkeeper.provider_gates",
    "delete from callkeeper.api_tokens",
    "delete from callkeeper.followed",
    "delete from dramatiq.queue",
)


@contextmanager
def opened(url: str) -> Iterator[Database]:
    # These tests look at what is committed, not at what survives a power cut.
    database = Database(make_engine(relaxed(url), name="tests", pool_size=20, lock_timeout_ms=10_000))
    try:
        yield database
    finally:
        database.dispose()


@pytest.fixture(scope="module")
def module_db(server: Server, template: str) -> Iterator[Database]:
    with scratch_database(server, template) as url, opened(url) as database:
        yield database


@pytest.fixture
def db(module_db: Database) -> Database:
    with module_db.engine.begin() as connection:
        for statement in EMPTY:
            connection.execute(sa.text(statement))
    return module_db


@pytest.fixture
def steps(db: Database) -> Steps:
    return Steps(db)


@pytest.fixture
def fresh(database_url: str) -> Iterator[Steps]:
    with opened(database_url) as database:
        yield Steps(database)
