"""What every table is made with: the schema, the clock, the states as SQL words."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.states import OPEN, TERMINAL, State

SCHEMA = "callkeeper"
metadata = sa.MetaData(schema=SCHEMA)

TIMESTAMP = sa.DateTime(timezone=True)


def words(states: tuple[State, ...] | list[State]) -> str:
    return ", ".join(f"'{state}'" for state in states)


def now() -> sa.TextClause:
    return sa.text("clock_timestamp()")


IS_OPEN = f"status in ({words(OPEN)})"
IS_TERMINAL = f"status in ({words(TERMINAL)})"


def check(name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(sa.text(rule), name=name)


def job_id(*, primary_key: bool = False, nullable: bool = False, name: str) -> sa.Column[str]:
    key = sa.ForeignKey("callkeeper.jobs.id", ondelete="CASCADE", name=name)
    return sa.Column("job_id", pg.UUID, key, primary_key=primary_key, nullable=nullable)


def run_id(*, primary_key: bool = False, nullable: bool = False, name: str) -> sa.Column[str]:
    key = sa.ForeignKey("callkeeper.runs.id", ondelete="CASCADE", name=name)
    return sa.Column("run_id", pg.UUID, key, primary_key=primary_key, nullable=nullable)
