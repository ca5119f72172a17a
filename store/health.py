"""What operators ask: do the passes run, does anybody work, what waits longest, what needs a person. Reads only."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement

# Ages are measured by the database, so that no other machine's clock has a say.
PASSES = sa.text(
    """
    select name, last_started_at, last_success_at, last_error, scanned, acted, took_ms,
      cast(extract(epoch from clock_timestamp() - last_success_at) as double precision) as age
    from callkeeper.passes order by name
    """
)

# A worker process renews its row every few seconds, whatever it is busy with.
WORKERS = sa.text("select count(*) from dramatiq.worker where heartbeat_at > clock_timestamp() - interval '20 seconds'")

QUEUES = sa.text(
    """
    select queue_name as queue, count(*) as ready,
      cast(extract(epoch from clock_timestamp() - min(available_at)) as double precision) as oldest
    from dramatiq.queue where state = 'queued' and available_at <= clock_timestamp()
    group by queue_name order by queue_name
    """
)

OLDEST_QUEUED = sa.text(
    """
    select id, job_type, cast(extract(epoch from clock_timestamp() - available_at) as double precision) as age
    from callkeeper.jobs
    where status = 'queued' and available_at <= clock_timestamp()
    order by available_at limit 1
    """
)

# Ready for long while nobody holds a single message of that queue: nobody claims there.
UNCLAIMED = sa.text(
    """
    select ready.queue_name as queue, ready.oldest
    from (
      select queue_name, cast(extract(epoch from clock_timestamp() - min(available_at)) as double precision) as oldest
      from dramatiq.queue where state = 'queued' and available_at <= clock_timestamp()
      group by queue_name
    ) ready
    where ready.oldest > :seconds and not exists (
      select from dramatiq.queue taken where taken.queue_name = ready.queue_name and taken.state = 'consumed'
    )
    order by queue
    """
).bindparams(sa.bindparam("seconds", type_=sa.Double))

# A worker that ends in order takes its row with it.
SILENT_WORKERS = sa.text(
    "select count(*) from dramatiq.worker where heartbeat_at <= clock_timestamp() - interval '20 seconds'"
)

# Each is somebody's to recover within seconds; what lies longer has nobody.
ABANDONED = sa.text(
    """
    select
      (select count(*) from callkeeper.jobs
       where status = 'running' and lease_until < now() - cast(:seconds as double precision) * interval '1 second')
      as leases,
      (select count(*) from callkeeper.jobs
       where status = 'waiting' and next_poll_at < now() - cast(:seconds as double precision) * interval '1 second')
      as polls
    """
).bindparams(sa.bindparam("seconds", type_=sa.Double))

ALERTS = sa.text(
    """
    select subject, times, first_at, last_at, details from callkeeper.alerts
    where resolved_at is null order by last_at desc limit 50
    """
)


def _page(older: str = "") -> sa.TextClause:
    return statement(
        f"""
        select * from (
          select id, user_id, job_type, status, attempt, progress, provider_kind, error_code, created_at, finished_at
          from callkeeper.jobs
          where (cast(:status as text) is null or status = :status)
            and (cast(:user_id as text) is null or user_id = :user_id) {older}
          order by created_at desc, id desc limit 1000
        ) page
        order by created_at desc, id desc limit :at_most
        """  # noqa: S608  # of constants only
    ).bindparams(
        sa.bindparam("status", type_=sa.Text),
        sa.bindparam("user_id", type_=sa.Text),
        sa.bindparam("at_most", type_=sa.Integer),
    )


# Walks one index backwards from where the page before ended; how old that is makes no difference.
NEWEST_JOBS = _page()
OLDER_JOBS = _page(
    "and (created_at, id) < ((select created_at from callkeeper.jobs where id = :before), cast(:before as uuid))"
).bindparams(sa.bindparam("before", type_=pg.UUID))


def passes(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Each pass that ever started, with `age`: seconds since its last success, None before the first."""
    return [dict(row) for row in connection.execute(PASSES).mappings()]


def live_workers(connection: sa.Connection) -> int:
    """Worker processes that gave a sign of life within 20 s."""
    return int(connection.execute(WORKERS).scalar_one())


def silent_workers(connection: sa.Connection) -> int:
    """Worker processes that went without a word, and that nobody has cleared away yet."""
    return int(connection.execute(SILENT_WORKERS).scalar_one())


def unclaimed(connection: sa.Connection, *, seconds: float) -> list[Mapping[str, Any]]:
    """Queues whose oldest message has been ready for longer than that while nobody works on any of them."""
    return [dict(row) for row in connection.execute(UNCLAIMED, {"seconds": seconds}).mappings()]


def abandoned(connection: sa.Connection, *, seconds: float) -> Mapping[str, int]:
    """How many leases lapsed (`leases`) and how many polls fell due (`polls`) longer ago than that."""
    return dict(connection.execute(ABANDONED, {"seconds": seconds}).mappings().one())


def queues(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Queues that hold messages ready to be taken, and for how many seconds the oldest has been ready."""
    return [dict(row) for row in connection.execute(QUEUES).mappings()]


def oldest_queued(connection: sa.Connection) -> Mapping[str, Any] | None:
    """The job that has been ready to start for longest, with its `age` in seconds; None when none waits for a start."""
    row = connection.execute(OLDEST_QUEUED).mappings().one_or_none()
    return None if row is None else dict(row)


def alerts(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """What an operator has not resolved yet, the latest first."""
    return [dict(row) for row in connection.execute(ALERTS).mappings()]


def newest_jobs(
    connection: sa.Connection, *, status: str | None, user_id: str | None, at_most: int, before: UUID | None = None
) -> list[Mapping[str, Any]]:
    """The newest jobs, at most 1,000, of a state or a user if given; those older than job `before`, if there is one."""
    binds: dict[str, Any] = {"status": status, "user_id": user_id, "at_most": at_most}
    query = NEWEST_JOBS
    if before is not None:
        query, binds["before"] = OLDER_JOBS, before
    return [dict(row) for row in connection.execute(query, binds).mappings()]
