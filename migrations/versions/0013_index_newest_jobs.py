"""Indexes for pages of jobs, newest first: one user's, and everybody's. No transition changes what stands in them."""

from alembic import op

from migrations import create_index_concurrently

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    create_index_concurrently(
        op,
        "callkeeper.jobs_newest_of_user",
        "create index concurrently jobs_newest_of_user on callkeeper.jobs (user_id, created_at, id)"
        " where user_id is not null",
    )
    create_index_concurrently(
        op,
        "callkeeper.jobs_newest",
        "create index concurrently jobs_newest on callkeeper.jobs (created_at, id)",
    )
