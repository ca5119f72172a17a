"""What the store's tests share: a pool wide enough for races, and the steps between states."""

from collections.abc import Iterator

import pytest

from store.engine import Database, make_engine
from tests.store.steps import Steps


@pytest.fixture
def db(database_url: str) -> Iterator[Database]:
    database = Database(make_engine(database_url, name="tests", pool_size=20, lock_timeout_ms=10_000))
    yield database
    database.dispose()


@pytest.fixture
def steps(db: Database) -> Steps:
    return Steps(db)
