"""One job an operation, a run's jobs by index, and whole outcomes by fingerprint: built without holding up writers."""

from alembic import op

from migrations import create_index_concurrently

revision = "0009"
down_revision = "0008"

# Each may be built again after any failure, so they need no revisions of their own.
INDEXES = {
    "jobs_one_per_operation": (
        "create unique index concurrently jobs_one_per_operation on callkeeper.jobs (run_id, operation_key)"
        " where run_id is not null and status in ('queued', 'running', 'waiting', 'completed')"
    ),
    "jobs_by_run": (
        "create index concurrently jobs_by_run on callkeeper.jobs (run_id, step, round) where run_id is not null"
    ),
    "jobs_reusable": (
        "create index concurrently jobs_reusable on callkeeper.jobs (request_fingerprint)"
        " where run_id is not null and status = 'completed'"
    ),
}


def upgrade() -> None:
    for name, ddl in INDEXES.items():
        create_index_concurrently(op, f"callkeeper.{name}", ddl)
