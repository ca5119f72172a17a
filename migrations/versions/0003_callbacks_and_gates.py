"""Callbacks received, and provider accounts that are closed for a while; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    run_file(op, __file__)
