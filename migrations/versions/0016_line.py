"""The line: whose turn it is in a queue, and what is parked on a budget, in the order of turns."""

from alembic import op

from migrations import create_index_concurrently, run_verbatim

revision = "0016"
down_revision = "0015"

VALIDATE = "alter table callkeeper.jobs validate constraint jobs_parked_is_queued"
INDEX = """
create index concurrently jobs_in_line on callkeeper.jobs (queue, parked_on, turn)
  where status = 'queued' and turn is not null
"""


def upgrade() -> None:
    run_verbatim(op.get_context(), VALIDATE)
    create_index_concurrently(op, "callkeeper.jobs_in_line", INDEX)
