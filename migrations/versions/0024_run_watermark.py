"""Whether a run's result carries a mark; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    run_file(op, __file__)
