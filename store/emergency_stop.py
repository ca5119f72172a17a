"""The emergency stop: what all priced calls together may cost in a window, in micro-USD. It latches; a person opens it.

`used` adds up the hours of the window, the first of which counts whole; `reserved` the calls under way, a few rows.
Only those who begin a call, and those who change the stop, lock its row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.errors import (
    EmergencyStopInvalid,
    SpendingInsufficient,
    SpendingRefused,
    SpendingReserved,
    SpendingStopped,
)
from store.guards import statement
from store.operators import resolve_alert
from store.passes import raise_alert

_LOOK_AGAIN_IN = 1.0  # seconds after which a call that waits for others' reservations is worth another try
_HIGHEST = 2**62
_WINDOWS = (timedelta(hours=1), timedelta(days=31))
STOPPED_ALERT = "emergency_stop"
NEAR_ALERT = "emergency_stop_near"


@dataclass(frozen=True, slots=True)
class Stop:
    """The stop as it stands; amounts in micro-USD, `warn_at` in percent of `amount`."""

    amount: int
    per: timedelta
    warn_at: int
    warned_at: datetime | None
    latched_at: datetime | None
    changed_by: str
    used: int
    reserved: int

    @property
    def reached(self) -> bool:
        return self.used >= self.amount

    @property
    def near(self) -> bool:
        return self.used * 100 >= self.amount * self.warn_at


_COLUMNS = "amount, per, warn_at, warned_at, latched_at, changed_by"
_MEASURED = """
  (
    select coalesce(sum(h.cost), 0)::bigint from callkeeper.spending_hours h
    where h.hour > clock_timestamp() - s.per - interval '1 hour'
  ) as used,
  (select coalesce(sum(l.reserved), 0)::bigint from callkeeper.call_ledger l where l.status = 'open') as reserved
"""
LOCK = sa.text("select id from callkeeper.emergency_stop for update")
READ = statement(f"select {_COLUMNS}, {_MEASURED} from callkeeper.emergency_stop s")


def read(connection: sa.Connection) -> Stop | None:
    """The stop and what counts against it; None when there is none."""
    row = connection.execute(READ).mappings().one_or_none()
    return None if row is None else Stop(**row)


def _locked(connection: sa.Connection) -> Stop | None:
    """The same under its lock, on a snapshot taken after that."""
    return None if connection.execute(LOCK).one_or_none() is None else read(connection)


def refusal(connection: sa.Connection, *, needed: int) -> SpendingRefused | None:
    """Whether a call that may cost `needed` must not begin. The stop stays locked until the caller commits."""
    stop = _locked(connection)
    if stop is None:
        return None
    if _turned(connection, stop):
        return SpendingStopped(amount=stop.amount, used=stop.used)
    if stop.used + needed > stop.amount:
        return SpendingInsufficient(amount=stop.amount, used=stop.used, needed=needed)
    if stop.used + stop.reserved + needed > stop.amount:
        return SpendingReserved(
            amount=stop.amount, used=stop.used, reserved=stop.reserved, needed=needed, retry_after=_LOOK_AGAIN_IN
        )
    return None


_BINDS = (
    sa.bindparam("used", type_=sa.BigInteger),
    sa.bindparam("by", type_=sa.Text),
    sa.bindparam("why", type_=sa.Text),
)


def _change(sql: str, what: str) -> sa.TextClause:
    return statement(
        f"""
        with changed as ({sql} returning amount, per)
        insert into callkeeper.emergency_stop_history (what, amount, per, used, by, why)
        select '{what}', amount, per, :used, :by, :why from changed
        returning id
        """
    ).bindparams(*_BINDS)


LATCH = _change(
    "update callkeeper.emergency_stop set latched_at = clock_timestamp(),"
    " warned_at = coalesce(warned_at, clock_timestamp()) where latched_at is null",
    "stopped",
)
WARN = _change("update callkeeper.emergency_stop set warned_at = clock_timestamp() where warned_at is null", "warned")
RELEASE = _change("update callkeeper.emergency_stop set latched_at = null where latched_at is not null", "released")
REMOVE = _change("delete from callkeeper.emergency_stop", "removed")
CALM = sa.text("update callkeeper.emergency_stop set warned_at = null where warned_at is not null")


def _turned(connection: sa.Connection, stop: Stop) -> bool:
    """Latch or warn when it is time to, each with one alert; whether it has latched."""
    facts: dict[str, object] = {"amount": stop.amount, "used": stop.used, "window": str(stop.per)}
    told = {"used": stop.used, "by": "callkeeper", "why": ""}
    if stop.latched_at is not None:
        return True
    if stop.reached:
        if connection.execute(LATCH, told).one_or_none() is not None:
            raise_alert(connection, STOPPED_ALERT, facts)
        return True
    if stop.near and stop.warned_at is None:
        if connection.execute(WARN, told).one_or_none() is not None:
            raise_alert(connection, NEAR_ALERT, facts)
    elif stop.warned_at is not None and not stop.near:
        connection.execute(CALM)
        resolve_alert(connection, NEAR_ALERT)
    return False


def look(connection: sa.Connection) -> bool:
    """Latch or warn if it is time to, though nobody begins a call; whether it has latched. For passes."""
    stop = _locked(connection)
    return stop is not None and _turned(connection, stop)


SET = statement(
    """
    with changed as (
      insert into callkeeper.emergency_stop (amount, per, warn_at, changed_by) values (:amount, :per, :warn_at, :by)
      on conflict (id) do update
      set amount = excluded.amount, per = excluded.per, warn_at = excluded.warn_at, changed_by = excluded.changed_by,
        changed_at = clock_timestamp()
      returning amount, per
    )
    insert into callkeeper.emergency_stop_history (what, amount, per, by, why)
    select 'set', amount, per, :by, :why from changed
    """
).bindparams(
    sa.bindparam("amount", type_=sa.BigInteger),
    sa.bindparam("per", type_=pg.INTERVAL),
    sa.bindparam("warn_at", type_=sa.Integer),
    *_BINDS[1:],
)


def set_stop(
    connection: sa.Connection, *, amount: int, per: timedelta, warn_at: int = 80, by: str, why: str = ""
) -> None:
    """Set it (micro-USD in any window of `per`), new or known. A latch stays. Raises EmergencyStopInvalid."""
    if not 1 <= amount <= _HIGHEST:
        raise EmergencyStopInvalid(f"amount {amount} is out of range: 1 to {_HIGHEST} micro-USD")
    if not _WINDOWS[0] <= per <= _WINDOWS[1]:
        raise EmergencyStopInvalid(f"per {per} is out of range: 1 hour to 31 days")
    if not 1 <= warn_at <= 100:  # noqa: PLR2004  # it is a percentage
        raise EmergencyStopInvalid(f"warn-at {warn_at} is out of range: 1 to 100 percent")
    connection.execute(SET, {"amount": amount, "per": per, "warn_at": warn_at, "by": by, "why": why})


def remove_stop(connection: sa.Connection, *, by: str, why: str) -> bool:
    """Nothing stops calls any more; noted. False when there was none. Raises EmergencyStopInvalid without a `why`."""
    stop = _locked(connection)
    if stop is None:
        return False
    _reasoned(by, why)
    connection.execute(REMOVE, {"used": stop.used, "by": by, "why": why.strip()})
    resolve_alert(connection, STOPPED_ALERT)
    resolve_alert(connection, NEAR_ALERT)
    return True


def release(connection: sa.Connection, *, by: str, why: str) -> bool:
    """Open the latch; noted. False when it is not closed.

    Raises EmergencyStopInvalid while as much is used as the stop allows, or without a `by` and a `why`.
    """
    stop = _locked(connection)
    if stop is None or stop.latched_at is None:
        return False
    _reasoned(by, why)
    if stop.reached:
        raise EmergencyStopInvalid(
            f"{stop.used} of {stop.amount} micro-USD are used in its window, so it would latch again at once:"
            " wait until the window has moved on, or set a higher amount first"
        )
    connection.execute(RELEASE, {"used": stop.used, "by": by.strip(), "why": why.strip()})
    resolve_alert(connection, STOPPED_ALERT)
    return True


def _reasoned(by: str, why: str) -> None:
    for name, value in (("by", by), ("why", why)):
        if not value.strip():
            raise EmergencyStopInvalid(f"{name} is empty: say who does it and why, it is kept")


HISTORY = statement(
    "select at, what, by, why, amount, used, per from callkeeper.emergency_stop_history order by id desc limit :at_most"
)


def history(connection: sa.Connection, *, at_most: int = 50) -> list[Mapping[str, Any]]:
    """What became of the stop, the latest first."""
    return [dict(row) for row in connection.execute(HISTORY, {"at_most": at_most}).mappings()]
