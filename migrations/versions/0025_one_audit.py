"""One view states every invariant, runs' too; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    run_file(op, __file__)
