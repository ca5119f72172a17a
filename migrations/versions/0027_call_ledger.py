"""What each priced call cost, and the emergency stop; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    run_file(op, __file__)
