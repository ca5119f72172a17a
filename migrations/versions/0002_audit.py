"""The views people ask in SQL; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    run_file(op, __file__)
