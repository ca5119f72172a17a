"""Progress for those who follow, and files that are only a part of a result; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0021"
down_revision = "0020"


def upgrade() -> None:
    run_file(op, __file__)
