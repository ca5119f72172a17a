"""Requests to a job. A stop is written under the job's row lock, so it can never be left on a job that just ended."""

from uuid import UUID

import sqlalchemy as sa

from store.guards import statement
from store.models import Settlement
from store.settle import cancel_at_rest
from store.states import OPEN, State
from store.tables import jobs

CHANNEL = "callkeeper_signal"

REQUEST_STOP = statement(
    """
    with job as materialized (
      select id, status from callkeeper.jobs
      where id = :job_id and (cast(:user_id as text) is null or user_id = :user_id)
      for update
    ), signal as (
      insert into callkeeper.job_signals (job_id, kind)
      select id, 'stop' from job where status in ('queued', 'running', 'waiting')
      on conflict (job_id, kind) where consumed_at is null do nothing
    )
    select status, case when status = 'running' then pg_notify('callkeeper_signal', id::text) end from job
    """
).bindparams(sa.bindparam("user_id", type_=sa.Text))

STATUS = sa.select(jobs.c.status).where(jobs.c.id == sa.bindparam("job_id"))


def request_stop(connection: sa.Connection, job_id: UUID, *, user_id: str | None = None) -> State | None:
    """Ask a job to end, in one transaction; the state it is in afterwards, None if there is no such job of this user.

    Queued, or waiting with a known task: cancelled here and now. Running: its holder hears it. Finished: unchanged.
    """
    row = connection.execute(REQUEST_STOP, {"job_id": job_id, "user_id": user_id}).one_or_none()
    if row is None:
        return None
    if State(row.status) not in OPEN:
        return State(row.status)
    stopped = Settlement(status=State.CANCELLED, error_code="cancelled", error_message="stopped on request")
    if cancel_at_rest(connection, job_id, stopped):
        return State.CANCELLED
    return State(connection.execute(STATUS, {"job_id": job_id}).scalar_one())


IS_STOPPING = sa.text(
    "select exists (select from callkeeper.job_signals where job_id = :job_id and consumed_at is null)"
)


def is_stopping(connection: sa.Connection, job_id: UUID) -> bool:
    return bool(connection.execute(IS_STOPPING, {"job_id": job_id}).scalar_one())
