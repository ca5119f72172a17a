"""What must hold for runs, and when a flag may be promoted, as views; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    run_file(op, __file__)
