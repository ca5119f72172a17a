"""How often a job's result could not be brought home; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    run_file(op, __file__)
