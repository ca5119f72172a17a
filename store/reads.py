"""What people and pages ask: one job, some numbers, the violations. Reads only; nothing is decided on them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from store.tables import assets, jobs, usage_logs

_PUBLIC = [
    jobs.c[name]
    for name in (
        "id", "user_id", "job_type", "status", "attempt", "max_attempts", "progress", "provider_kind",
        "provider_task_id",
        "call_generation", "price", "visibility", "watermark",
        "result", "error_code", "error_message", "event_seq", "created_at", "started_at",
        "finished_at",
    )
]  # fmt: skip

JOB = (
    sa.select(
        *_PUBLIC,
        usage_logs.c.status.label("credits"),
        (usage_logs.c.committed_subscription + usage_logs.c.committed_topup).label("charged"),
    )
    .select_from(jobs.outerjoin(usage_logs, usage_logs.c.job_id == jobs.c.id))
    .where(jobs.c.id == sa.bindparam("job_id"))
)

ASSETS = (
    sa.select(assets.c.object_key, assets.c.content_type, assets.c.size_bytes, assets.c.sha256, assets.c.partial)
    .where(assets.c.job_id == sa.bindparam("job_id"))
    .order_by(assets.c.position)
)

COUNTS = sa.select(jobs.c.status, sa.func.count()).group_by(jobs.c.status)

VIOLATIONS = sa.text("select invariant, job_id, what from callkeeper_audit.violations order by invariant, job_id")


def job(connection: sa.Connection, job_id: UUID) -> Mapping[str, Any] | None:
    """The job as its owner may see it, with its assets; None if there is none."""
    row = connection.execute(JOB, {"job_id": job_id}).mappings().one_or_none()
    if row is None:
        return None
    files = connection.execute(ASSETS, {"job_id": job_id}).mappings()
    return {**row, "assets": [dict(file) for file in files]}


def counts(connection: sa.Connection) -> dict[str, int]:
    """How many jobs are in each state."""
    return {row[0]: row[1] for row in connection.execute(COUNTS)}


def violations(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Every invariant that does not hold right now; empty in a healthy system."""
    return [dict(row) for row in connection.execute(VIOLATIONS).mappings()]
