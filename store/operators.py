"""What operators settle by hand: alerts they have dealt with, spend they have explained."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement

ALERTS = statement(
    """
    select subject, times, first_at, last_at, resolved_at, details from callkeeper.alerts
    where :resolved_too or resolved_at is null
    order by last_at desc limit 200
    """
).bindparams(sa.bindparam("resolved_too", type_=sa.Boolean))

RESOLVE_ALERT = statement(
    """
    update callkeeper.alerts set resolved_at = clock_timestamp() where subject = :subject and resolved_at is null
    returning subject
    """
)


def alerts(connection: sa.Connection, *, resolved_too: bool = False) -> list[Mapping[str, Any]]:
    """What wants an operator, the latest first, at most 200."""
    return [dict(row) for row in connection.execute(ALERTS, {"resolved_too": resolved_too}).mappings()]


def resolve_alert(connection: sa.Connection, subject: str) -> bool:
    """Dealt with; it comes back when its cause does. False when no such alert is open."""
    return connection.execute(RESOLVE_ALERT, {"subject": subject}).one_or_none() is not None


SPEND = statement(
    """
    select s.job_id, j.job_type, j.user_id, s.provider_kind, s.provider_task_id, s.call_started_at, s.error_code,
      s.price, s.created_at, s.resolved_at, s.resolution, w.outcome as upstream
    from callkeeper.unexplained_spend s
    join callkeeper.jobs j on j.id = s.job_id
    left join callkeeper.upstream_watches w
      on w.job_id = s.job_id and w.provider_task_id = s.provider_task_id
    where s.resolved_at is null
    order by s.created_at limit 500
    """
)

RESOLVE_SPEND = statement(
    """
    update callkeeper.unexplained_spend set resolved_at = clock_timestamp(), resolution = :resolution
    where job_id = :job_id and resolved_at is null
    returning job_id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def spend(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Refunded calls that the provider may have been paid for, not explained yet, the oldest first, at most 500."""
    return [dict(row) for row in connection.execute(SPEND).mappings()]


def resolve_spend(connection: sa.Connection, job_id: UUID, *, resolution: str) -> bool:
    """Somebody found out. False when nothing of this job is open."""
    return bool(connection.execute(RESOLVE_SPEND, {"job_id": job_id, "resolution": resolution}).all())
