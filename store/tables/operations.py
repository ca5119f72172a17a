"""What operators look at."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, job_id, metadata, now

alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("details", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("times", sa.BigInteger, nullable=False, server_default=sa.text("1")),
    sa.Column("first_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("last_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("resolved_at", TIMESTAMP),
)

stale_writes = sa.Table(
    "stale_writes",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="stale_writes_job"),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("lease_owner", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
)

ticks = sa.Table(
    "ticks",
    metadata,
    sa.Column("schedule", sa.Text, primary_key=True),
    sa.Column("due_at", TIMESTAMP, primary_key=True),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
)

passes = sa.Table(
    "passes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("last_started_at", TIMESTAMP, nullable=False),
    sa.Column("last_success_at", TIMESTAMP),
    sa.Column("last_error", sa.Text),
    sa.Column("scanned", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("acted", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("took_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("counts", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("locked_until", TIMESTAMP),
    sa.Column("lock_token", pg.UUID),
)
