"""Bearer tokens of the web API; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    run_file(op, __file__)
