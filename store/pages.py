"""A user's jobs, a page at a time, newest first. A page continues from the last row of the one before, by its key."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

OF_USER = sa.text(
    """
    select id, job_type, status, attempt, max_attempts, progress, price, error_code, error_message, event_seq,
      created_at, started_at, finished_at
    from callkeeper.jobs
    where user_id = :user_id
      and (created_at, id)
        < (coalesce(:before_at, 'infinity'), coalesce(:before_id, 'ffffffff-ffff-ffff-ffff-ffffffffffff'))
      and (cast(:status as text) is null or status = :status)
      and (cast(:job_type as text) is null or job_type = :job_type)
    order by created_at desc, id desc
    limit :at_most
    """
).bindparams(
    sa.bindparam("user_id", type_=sa.Text),
    sa.bindparam("before_at", type_=sa.DateTime(timezone=True)),
    sa.bindparam("before_id", type_=pg.UUID),
    sa.bindparam("status", type_=sa.Text),
    sa.bindparam("job_type", type_=sa.Text),
    sa.bindparam("at_most", type_=sa.Integer),
)


def of_user(
    connection: sa.Connection,
    user_id: str,
    *,
    before: tuple[datetime, UUID] | None = None,
    status: str | None = None,
    job_type: str | None = None,
    at_most: int,
) -> list[Mapping[str, Any]]:
    """Up to `at_most` jobs that come after `before`, the `created_at` and `id` of the last job seen."""
    at, last = before or (None, None)
    binds = {
        "user_id": user_id,
        "before_at": at,
        "before_id": last,
        "status": status,
        "job_type": job_type,
        "at_most": at_most,
    }
    return [dict(row) for row in connection.execute(OF_USER, binds).mappings()]
