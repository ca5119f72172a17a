"""What is written beside a job: events, signals, receipts, assets."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.states import TERMINAL
from store.tables.base import TIMESTAMP, check, job_id, metadata, now, words

job_events = sa.Table(
    "job_events",
    metadata,
    job_id(primary_key=True, name="job_events_job"),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("data", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("frame", sa.Text),
    check("job_events_seq_counts_from_one", "seq >= 1"),
)
sa.Index(
    "job_events_one_terminal",
    job_events.c.job_id,
    unique=True,
    postgresql_where=sa.text(f"kind in ({words(TERMINAL)})"),
)

followed = sa.Table(
    "followed",
    metadata,
    sa.Column("job_id", pg.UUID, primary_key=True),
    sa.Column("until", TIMESTAMP, nullable=False),
    sa.Column("ephemeral_until", TIMESTAMP),
    prefixes=["unlogged"],
)

job_signals = sa.Table(
    "job_signals",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="job_signals_job"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("consumed_at", TIMESTAMP),
    check("job_signals_kind_known", "kind in ('stop')"),
)
sa.Index(
    "job_signals_one_pending",
    job_signals.c.job_id,
    job_signals.c.kind,
    unique=True,
    postgresql_where=sa.text("consumed_at is null"),
)

call_receipts = sa.Table(
    "call_receipts",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="call_receipts_job"),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("provider_task_id", sa.Text, nullable=False),
    sa.Column("call_generation", sa.Integer, nullable=False),
    sa.Column("call_key", pg.UUID, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    check("call_receipts_source_known", "source in ('create', 'late_create', 'find', 'callback', 'response')"),
)
sa.Index(
    "call_receipts_once",
    call_receipts.c.job_id,
    call_receipts.c.provider_kind,
    call_receipts.c.provider_task_id,
    unique=True,
)
sa.Index("call_receipts_by_task", call_receipts.c.provider_kind, call_receipts.c.provider_task_id)

assets = sa.Table(
    "assets",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="assets_job"),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("content_type", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("partial", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    check("assets_are_whole", "size_bytes > 0 and sha256 ~ '^[0-9a-f]{64}$'"),
)
sa.Index("assets_one_per_position", assets.c.job_id, assets.c.position, unique=True)
sa.Index("assets_one_per_object", assets.c.object_key, unique=True)
