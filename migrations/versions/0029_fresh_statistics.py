"""Statistics keep up with bursts; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0029"
down_revision = "0028"


def upgrade() -> None:
    run_file(op, __file__)
