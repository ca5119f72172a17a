"""What providers tell us unasked, and which of their accounts are closed for now."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, metadata, now

webhook_deliveries = sa.Table(
    "webhook_deliveries",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("delivery_id", sa.Text, nullable=False),
    sa.Column("job_id", pg.UUID),
    sa.Column("call_generation", sa.Integer),
    sa.Column("provider_task_id", sa.Text, nullable=False),
    sa.Column("received_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("applied_at", TIMESTAMP),
    sa.Column("outcome", sa.Text),
    check(
        "webhook_deliveries_names_are_short",
        "octet_length(delivery_id) between 1 and 512 and octet_length(provider_task_id) between 1 and 512",
    ),
    check("webhook_deliveries_applied_once", "(applied_at is null) = (outcome is null)"),
)
sa.Index("webhook_deliveries_once", webhook_deliveries.c.provider_kind, webhook_deliveries.c.delivery_id, unique=True)
sa.Index(
    "webhook_deliveries_by_task",
    webhook_deliveries.c.provider_kind,
    webhook_deliveries.c.provider_task_id,
    postgresql_where=sa.text("outcome = 'unknown_task'"),
)

provider_gates = sa.Table(
    "provider_gates",
    metadata,
    sa.Column("provider_kind", sa.Text, primary_key=True),
    sa.Column("account", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("closed_at", TIMESTAMP, nullable=False),
    sa.Column("closed_until", TIMESTAMP, nullable=False),
    sa.Column("failures", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("stops_clocks", sa.Boolean, nullable=False, server_default=sa.text("false")),
)
