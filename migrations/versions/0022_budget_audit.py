"""The audit states that budgets hold; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    run_file(op, __file__)
