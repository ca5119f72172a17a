"""What is owed to the outside, claimed in batches under a token, delivered at least once with a stable key."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import CLOCK
from store.hygiene import clean_text
from store.tables import alert_notices, consequences, notices

TABLES = {"notices": notices, "consequences": consequences, "alert_notices": alert_notices}


@dataclass(frozen=True, slots=True)
class Owed:
    """One row of an outbox, ours to deliver for the term of the claim. `attempts` counts this one."""

    outbox: str
    key: str
    token: UUID
    job_id: UUID | None
    attempts: int
    body: Mapping[str, Any]
    effect: str | None
    channel: str | None = None


def _open(table: sa.FromClause) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.delivered_at.is_(None), table.c.dead_at.is_(None))


def _still_open(table: sa.FromClause) -> sa.ColumnElement[bool]:
    """The same of rows that are found by their key, and by no index of what is open; see guards.py."""
    return sa.func.coalesce(table.c.delivered_at, table.c.dead_at).is_(None)


def _its_turn(table: sa.Table) -> list[sa.ColumnElement[bool]]:
    """An effect that waits for another one of its job is not due before that one has been delivered or given up."""
    if "after" not in table.c:
        return []
    before = table.alias("before")
    return [sa.or_(table.c.after.is_(None), ~sa.exists().where(before.c.key == table.c.after, _open(before)))]


def _claim(table: sa.Table) -> sa.Select[Any]:
    due = (
        sa.select(table.c.key)
        .where(_open(table), table.c.available_at <= sa.func.now())
        .where(*_its_turn(table))
        .order_by(table.c.available_at, table.c.key)
        .limit(sa.bindparam("at_most"))
        .with_for_update(skip_locked=True)
        .cte("due")
        .prefix_with("materialized")
    )
    claimed = (
        sa.update(table)
        .where(table.c.key == due.c.key, _still_open(table), table.c.available_at <= sa.func.now())
        .values(
            claim_token=sa.func.gen_random_uuid(),
            attempts=table.c.attempts + 1,
            available_at=CLOCK + sa.bindparam("term", type_=pg.INTERVAL),
        )
        .returning(*table.c)
        .cte("claimed")
    )
    return sa.select(claimed)


def _finish(table: sa.Table, **values: Any) -> sa.Update:
    return (
        sa.update(table)
        .where(
            table.c.key == sa.bindparam("owed_key"),
            table.c.claim_token == sa.bindparam("token"),
            _open(table),
        )
        .values(claim_token=sa.null(), **values)
    )


def _delivered(table: sa.Table) -> Any:
    done = (
        sa.func.unnest(sa.bindparam("keys", type_=pg.ARRAY(sa.Text)), sa.bindparam("tokens", type_=pg.ARRAY(pg.UUID)))
        .table_valued("key", "token")
        .render_derived(name="done")
    )
    return (
        sa.update(table)
        .where(table.c.key == done.c.key, table.c.claim_token == done.c.token, _still_open(table))
        .values(claim_token=sa.null(), delivered_at=CLOCK, last_error=sa.null())
        .returning(table.c.key)
    )


CLAIM = {name: _claim(table) for name, table in TABLES.items()}
DELIVERED = {name: _delivered(table) for name, table in TABLES.items()}
_AGAIN = {
    "available_at": CLOCK + sa.bindparam("delay", type_=pg.INTERVAL),
    "last_error": sa.bindparam("error"),
}
LATER = {name: _finish(table, **_AGAIN) for name, table in TABLES.items()}
DEAD = {name: _finish(table, dead_at=CLOCK, last_error=sa.bindparam("error")) for name, table in TABLES.items()}


def claim(connection: sa.Connection, outbox: str, *, term: timedelta, at_most: int = 50) -> list[Owed]:
    """Up to `at_most` rows of one outbox that are due, oldest first."""
    rows = connection.execute(CLAIM[outbox], {"term": term, "at_most": at_most})
    return [
        Owed(
            outbox=outbox,
            key=row.key,
            token=row.claim_token,
            job_id=getattr(row, "job_id", None),
            attempts=row.attempts,
            body=row.body,
            effect=getattr(row, "effect", None),
            channel=getattr(row, "channel", None),
        )
        for row in rows
    ]


def mark_delivered(connection: sa.Connection, name: str, owed: Sequence[Owed]) -> int:
    """How many of these rows of outbox `name` are now delivered; those claimed anew by somebody else are not ours."""
    binds = {"keys": [one.key for one in owed], "tokens": [one.token for one in owed]}
    return len(connection.execute(DELIVERED[name], binds).all())


def deliver_later(connection: sa.Connection, owed: Owed, *, delay: timedelta, error: str) -> bool:
    binds = {"owed_key": owed.key, "token": owed.token, "delay": delay, "error": clean_text(error)}
    return bool(connection.execute(LATER[owed.outbox], binds).rowcount)


def mark_dead(connection: sa.Connection, owed: Owed, *, error: str) -> bool:
    """Nobody will try again; an operator should look."""
    binds = {"owed_key": owed.key, "token": owed.token, "error": clean_text(error)}
    return bool(connection.execute(DEAD[owed.outbox], binds).rowcount)
