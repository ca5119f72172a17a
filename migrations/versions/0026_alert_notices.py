"""Operators are told of alerts; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    run_file(op, __file__)
