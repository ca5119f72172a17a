"""Following jobs: who follows what, the frames after a cursor, and what is said to followers without being stored.

A frame is the text that a trigger wrote beside the event; it is sent as it stands, live and later.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.models import Lease
from store.states import State

EVENTS = "callkeeper_event"  # payload: the job's id; the trigger on job_events sends it
EPHEMERAL = "callkeeper_ephemeral"  # payload: the job's id, a blank, the frame

# A payload of NOTIFY is shorter than 8,000 bytes: the job's id, the frame's head and its counters take at most 120.
MAX_REST = 7_800

MARK = statement(
    """
    insert into callkeeper.followed (job_id, until, ephemeral_until)
    select j.id, clock_timestamp() + :term, case when wanted.ephemeral then clock_timestamp() + :term end
    from unnest(:job_ids, :ephemeral) as wanted (id, ephemeral)
    join callkeeper.jobs j on j.id = wanted.id and j.status in ('queued', 'running', 'waiting')
    order by j.id
    on conflict (job_id) do update
    set until = greatest(callkeeper.followed.until, excluded.until),
      ephemeral_until = greatest(callkeeper.followed.ephemeral_until, excluded.ephemeral_until)
    """
).bindparams(
    sa.bindparam("term", type_=pg.INTERVAL),
    sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("ephemeral", type_=pg.ARRAY(sa.Boolean)),
)


def mark(connection: sa.Connection, wanted: dict[UUID, bool], *, term: timedelta) -> None:
    """Say that these open jobs are followed for `term`; true: with what is never stored, too."""
    binds = {"term": term, "job_ids": list(wanted), "ephemeral": list(wanted.values())}
    connection.execute(MARK, binds)


FORGET = sa.text("delete from callkeeper.followed where until < now()")


def forget(connection: sa.Connection) -> None:
    """Remove the marks whose time is over."""
    connection.execute(FORGET)


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's place in one job's log: it has seen everything up to `after`, and has room for `room` more."""

    job_id: UUID
    after: int
    room: int


@dataclass(slots=True)
class Page:
    """What stands after a cursor: (seq, kind, frame) in order, and the job as it was at that instant."""

    user_id: str | None
    status: State
    event_seq: int
    frames: list[tuple[int, str, str]]


# One snapshot for all: a job that is seen ended is seen with its terminal event.
READ = statement(
    """
    select f.place, j.user_id, j.status, j.event_seq, e.seq, e.kind, e.frame
    from unnest(:places, :job_ids, :afters, :rooms) as f (place, job_id, after, room)
    join callkeeper.jobs j on j.id = f.job_id
    left join lateral (
      select seq, kind,
        coalesce(frame, callkeeper.event_frame(seq, kind, attempt, epoch, created_at, data::text)) as frame
      from callkeeper.job_events
      where job_id = f.job_id and seq > f.after
      order by seq
      limit f.room
    ) e on true
    order by f.place, e.seq
    """
).bindparams(
    sa.bindparam("places", type_=pg.ARRAY(sa.Integer)),
    sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)),
    sa.bindparam("afters", type_=pg.ARRAY(sa.Integer)),
    sa.bindparam("rooms", type_=pg.ARRAY(sa.Integer)),
)


def read(connection: sa.Connection, cursors: Sequence[Cursor]) -> list[Page | None]:
    """A page for each cursor, in the same order; None where there is no such job."""
    pages: list[Page | None] = [None] * len(cursors)
    rows = connection.execute(
        READ,
        {
            "places": list(range(len(cursors))),
            "job_ids": [cursor.job_id for cursor in cursors],
            "afters": [cursor.after for cursor in cursors],
            "rooms": [cursor.room for cursor in cursors],
        },
    )
    for row in rows:
        page = pages[row.place]
        if page is None:
            page = pages[row.place] = Page(row.user_id, State(row.status), row.event_seq, [])
        if row.seq is not None:
            page.frames.append((row.seq, row.kind, row.frame))
    return pages


# Fenced like any write of a holder; the frame says after which event it was said.
SAY = statement(
    """
    select pg_notify('callkeeper_ephemeral', j.id || ' {"seq":' || j.event_seq || ',"attempt":' || j.attempt
      || ',"epoch":' || j.epoch || cast(:rest as text))
    from callkeeper.jobs j join callkeeper.followed f on f.job_id = j.id
    where j.id = :held_id and j.epoch = :held_epoch and j.lease_token = :held_token and j.status = 'running'
      and f.ephemeral_until > now()
    """
).bindparams(
    sa.bindparam("held_id", type_=pg.UUID),
    sa.bindparam("held_epoch", type_=sa.Integer),
    sa.bindparam("held_token", type_=pg.UUID),
)


def say(connection: sa.Connection, lease: Lease, rest: str) -> bool:
    """Tell those who follow now; `rest` ends the frame, `,"kind":…}`, at most MAX_REST bytes. False: nobody hears."""
    return connection.execute(SAY, {**lease.binds, "rest": rest}).one_or_none() is not None
