"""One job an operation of a run, by index; built without holding up writers."""

from alembic import op

from migrations import create_index_concurrently

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    create_index_concurrently(
        op,
        "callkeeper.jobs_one_per_operation",
        "create unique index concurrently jobs_one_per_operation on callkeeper.jobs (run_id, operation_key)"
        " where run_id is not null and status in ('queued', 'running', 'waiting', 'completed')",
    )
