"""What the pass counts and keeps, terms frozen at submit, spend without a result; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    run_file(op, __file__)
