"""What is owed to the outside."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, job_id, metadata, now, run_id


def _outbox(name: str, *columns: sa.Column[Any] | sa.CheckConstraint) -> sa.Table:
    """Rows owed to the outside, claimed by pushing `available_at` forward under a token, delivered or dead once."""
    table = sa.Table(
        name,
        metadata,
        sa.Column("key", sa.Text, primary_key=True),
        *columns,
        sa.Column("body", pg.JSONB, nullable=False),
        sa.Column("available_at", TIMESTAMP, nullable=False, server_default=now()),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("claim_token", pg.UUID),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
        sa.Column("delivered_at", TIMESTAMP),
        sa.Column("dead_at", TIMESTAMP),
        check(f"{name}_end_once", "delivered_at is null or dead_at is null"),
    )
    sa.Index(
        f"{name}_due",
        table.c.available_at,
        table.c.key,
        postgresql_where=sa.text("delivered_at is null and dead_at is null"),
    )
    return table


notices = _outbox(
    "notices",
    job_id(nullable=True, name="notices_job"),
    sa.Column("user_id", sa.Text),
    run_id(nullable=True, name="notices_run"),
    sa.Column("channel", sa.Text, nullable=False, server_default=sa.text("'webhook'")),
    check("notices_of_one", "num_nulls(job_id, run_id) = 1"),
    check("notices_channel_known", "channel in ('webhook', 'email')"),
)
consequences = _outbox(
    "consequences",
    job_id(name="consequences_job"),
    sa.Column("effect", sa.Text, nullable=False),
    sa.Column("after", sa.Text),
)
# Written by a trigger where an alert opens.
alert_notices = _outbox(
    "alert_notices",
    sa.Column(
        "subject",
        sa.Text,
        sa.ForeignKey("callkeeper.alerts.subject", ondelete="CASCADE", name="alert_notices_alert"),
        nullable=False,
    ),
    sa.Column("channel", sa.Text, nullable=False),
    check("alert_notices_channel_known", "channel in ('webhook', 'email')"),
)
