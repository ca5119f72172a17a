"""What a call cost stays known when its job is deleted; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = "0028"
down_revision = "0027"


def upgrade() -> None:
    run_file(op, __file__)
