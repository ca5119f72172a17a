"""The store's fixtures, with budgets gone before each test; and fleets of real workers."""

import pytest

from store.engine import Database
from tests.budgets.spending import Money
from tests.budgets.steps import Starts
from tests.chaos.conftest import (  # noqa: F401  # fixtures
    _one_sandbox,
    fleet,
    make_fleet,
    pytest_runtest_makereport,
    sandbox,
)
from tests.store.conftest import db as db  # noqa: PLC0414  # a fixture
from tests.store.conftest import module_db as module_db  # noqa: PLC0414


@pytest.fixture
def starts(db: Database) -> Starts:
    made = Starts(db)
    made.by_hand(
        "delete from callkeeper.budgets", "delete from callkeeper.budget_changes", "delete from callkeeper.consequences"
    )
    return made


@pytest.fixture
def money(db: Database) -> Money:
    made = Money(db)
    for table in ("call_ledger", "spending_hours", "emergency_stop", "emergency_stop_history", "alerts"):
        made.by_hand(f"delete from callkeeper.{table}")
    return made
