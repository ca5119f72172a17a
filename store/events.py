"""The event log: written in the same statement as the change it tells of, numbered by the job's own counter."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables import job_events, jobs

_NO_DATA: sa.ColumnClause[Any] = sa.literal_column("'{}'::jsonb")


def with_event(
    change: sa.Update,
    kind: str | sa.ColumnElement[str],
    *returning: sa.ColumnElement[Any],
    data: sa.ColumnElement[Any] | None = None,
    text: sa.ColumnElement[str] | None = None,
) -> tuple[sa.CTE, sa.Select[Any]]:
    """`change` plus one event a changed row, as one statement; returns the changed rows (also as a CTE to build on).

    The frame is written from `data`, or from `text`, the same data in its writer's own order.
    """
    moved = (
        change.values(event_seq=jobs.c.event_seq + 1)
        .returning(jobs.c.id, jobs.c.event_seq, jobs.c.epoch, jobs.c.attempt, *returning)
        .cte("moved")
    )
    row = sa.select(
        moved.c.id,
        moved.c.event_seq,
        sa.literal_column(f"'{kind}'") if isinstance(kind, str) else kind,
        moved.c.attempt,
        moved.c.epoch,
        _NO_DATA if data is None else data,
        *([] if text is None else [text]),
    )
    columns = ["job_id", "seq", "kind", "attempt", "epoch", "data", *([] if text is None else ["frame"])]
    event = sa.insert(job_events).from_select(columns, row).cte("event")
    return moved, sa.select(moved).add_cte(event)


def data_bind(name: str = "event_data") -> sa.ColumnElement[Any]:
    return sa.bindparam(name, type_=pg.JSONB)
