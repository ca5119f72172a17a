"""What the passes write down: the history of their looks, spend without a result, tasks that outlive their jobs."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, job_id, metadata, now

job_looks = sa.Table(
    "job_looks",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="job_looks_job"),
    sa.Column("looked_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("late_seconds", sa.REAL, nullable=False, server_default=sa.text("0")),
    sa.Column("found", sa.Text, nullable=False),
    sa.Column("did", sa.Text, nullable=False),
    sa.Column("code", sa.Text),
    sa.Column("misses", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
)
sa.Index("job_looks_by_job", job_looks.c.job_id, job_looks.c.id)
sa.Index("job_looks_by_time", job_looks.c.looked_at)

unexplained_spend = sa.Table(
    "unexplained_spend",
    metadata,
    job_id(primary_key=True, name="unexplained_spend_job"),
    sa.Column("call_generation", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("provider_task_id", sa.Text),
    sa.Column("call_key", pg.UUID),
    sa.Column("call_started_at", TIMESTAMP, nullable=False),
    sa.Column("error_code", sa.Text, nullable=False),
    sa.Column("price", sa.BigInteger, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("resolved_at", TIMESTAMP),
    sa.Column("resolution", sa.Text),
    check("unexplained_spend_resolved_with_words", "(resolved_at is null) = (resolution is null)"),
)
sa.Index(
    "unexplained_spend_open",
    unexplained_spend.c.created_at,
    postgresql_where=sa.text("resolved_at is null"),
)

upstream_watches = sa.Table(
    "upstream_watches",
    metadata,
    job_id(primary_key=True, name="upstream_watches_job"),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("provider_task_id", sa.Text, primary_key=True),
    sa.Column("call_generation", sa.Integer, nullable=False),
    sa.Column("call_handle", pg.JSONB, nullable=False),
    sa.Column("call_started_at", TIMESTAMP, nullable=False),
    sa.Column(
        "check_at", TIMESTAMP, nullable=False, server_default=sa.text("clock_timestamp() + interval '2 minutes'")
    ),
    sa.Column(
        "watch_until", TIMESTAMP, nullable=False, server_default=sa.text("clock_timestamp() + interval '24 hours'")
    ),
    sa.Column("claim_token", pg.UUID),
    sa.Column("looks", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("alerted_at", TIMESTAMP),
    sa.Column("ended_at", TIMESTAMP),
    sa.Column("outcome", sa.Text),
    check("upstream_watches_end_with_outcome", "(ended_at is null) = (outcome is null)"),
)
sa.Index(
    "upstream_watches_due",
    upstream_watches.c.check_at,
    upstream_watches.c.job_id,
    postgresql_where=sa.text("ended_at is null"),
)

standalone_assets = sa.Table(
    "standalone_assets",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    job_id(name="standalone_assets_job"),
    sa.Column("user_id", sa.Text),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("provider_task_id", sa.Text, nullable=False),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("content_type", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("visibility", sa.Text, nullable=False),
    sa.Column("watermark", sa.Boolean, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    check("standalone_assets_are_whole", "size_bytes > 0 and sha256 ~ '^[0-9a-f]{64}$'"),
    check("standalone_assets_visibility_known", "visibility in ('public', 'private')"),
)
sa.Index(
    "standalone_assets_one_per_position",
    standalone_assets.c.provider_kind,
    standalone_assets.c.provider_task_id,
    standalone_assets.c.position,
    unique=True,
)
sa.Index("standalone_assets_by_job", standalone_assets.c.job_id)
