"""Where each user's last place in a line is."""

from alembic import op

from migrations import create_index_concurrently

revision = "0017"
down_revision = "0016"

INDEX = """
create index concurrently jobs_in_line_by_user on callkeeper.jobs (queue, coalesce(user_id, ''), turn)
  where status = 'queued' and turn is not null
"""


def upgrade() -> None:
    create_index_concurrently(op, "callkeeper.jobs_in_line_by_user", INDEX)
