"""What is queued but stands in no line: delayed, or to be tried again."""

from alembic import op

from migrations import create_index_concurrently

revision = "0018"
down_revision = "0017"

INDEX = """
create index concurrently jobs_out_of_line on callkeeper.jobs (available_at)
  where status = 'queued' and turn is null
"""


def upgrade() -> None:
    create_index_concurrently(op, "callkeeper.jobs_out_of_line", INDEX)
