"""The checks of the revision before, proven for rows that are older; a scan that holds nobody up."""

from alembic import op

from migrations import run_file

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    run_file(op, __file__)
