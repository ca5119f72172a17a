"""Outcomes that other runs may use, by fingerprint; built without holding up writers."""

from alembic import op

from migrations import create_index_concurrently

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    create_index_concurrently(
        op,
        "callkeeper.jobs_reusable",
        "create index concurrently jobs_reusable on callkeeper.jobs (request_fingerprint)"
        " where run_id is not null and status = 'completed'",
    )
