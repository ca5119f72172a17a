"""${message}; see the .sql file beside this one."""

from alembic import op

from migrations import run_file

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    run_file(op, __file__)
