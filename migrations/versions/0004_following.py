"""Frames beside events, who follows which job, and a deadline for each attempt; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_file(op, __file__)
