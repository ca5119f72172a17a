"""A run's jobs by index; built without holding up writers."""

from alembic import op

from migrations import create_index_concurrently

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    create_index_concurrently(
        op,
        "callkeeper.jobs_by_run",
        "create index concurrently jobs_by_run on callkeeper.jobs (run_id, step, round) where run_id is not null",
    )
