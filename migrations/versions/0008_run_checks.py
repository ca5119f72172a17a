"""The checks of runs, validated without holding anybody up; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    run_file(op, __file__)
