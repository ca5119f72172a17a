"""The tables, and the queue's; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0001"
down_revision = None


def upgrade() -> None:
    run_file(op, __file__)
