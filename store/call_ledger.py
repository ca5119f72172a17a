"""One row a priced call, from its intent to its cost; in millionths of a dollar, by prices in such a million tokens.

The row is written with the intent, in one statement. Without an emergency stop that is all; with one, whoever begins
locks the job, then the stop, counts on a snapshot taken under that lock, and begins or is refused. Booking a cost locks
no stop: it closes the row and adds to one of a few counters of its hour, in one statement.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store import emergency_stop as stop
from store.calls import FIRST_CALL, started, starting
from store.errors import LeaseLost, SpendingRefused
from store.guards import CALL_STARTED, HELD, NO_TASK, statement
from store.models import CallState, Lease
from store.tables import call_ledger, emergency_stop, jobs

_ERROR_CHARACTERS = 125  # at most four bytes each


@dataclass(frozen=True, slots=True)
class Spend:
    """What one call may cost: `price` of a million tokens as {"input": n, "output": n}, `reserved` for this call.

    Both in micro-USD. `may_run` bounds how long the request can be under way, `profile` is the app's name for the
    model.
    """

    account: str
    provider_model: str
    price: Mapping[str, int]
    reserved: int
    may_run: timedelta
    profile: str | None = None


# The next call of a job that is held goes on where the last one brought an answer, and left nothing running upstream.
_NEXT_CALL = (HELD, CALL_STARTED, NO_TASK, jobs.c.mode != sa.literal_column("'async'"))
_UNLIMITED = ~sa.exists().where(emergency_stop.c.id)


def _beginning(*guard: sa.ColumnElement[bool]) -> sa.Select[Any]:
    moved, marked = starting(*guard, also=(jobs.c.user_id, jobs.c.app, jobs.c.run_id))
    row = sa.select(
        moved.c.id,
        moved.c.call_generation,
        moved.c.epoch,
        moved.c.user_id,
        moved.c.app,
        moved.c.run_id,
        moved.c.provider_kind,
        sa.bindparam("spend_account", type_=sa.Text),
        sa.bindparam("spend_profile", type_=sa.Text),
        sa.bindparam("spend_provider_model", type_=sa.Text),
        sa.bindparam("spend_price", type_=pg.JSONB),
        sa.bindparam("spend_reserved", type_=sa.BigInteger),
        moved.c.provider_call_started_at,
        moved.c.provider_call_started_at + sa.bindparam("spend_may_run", type_=pg.INTERVAL),
    )
    columns = [
        "job_id", "generation", "epoch", "user_id", "app", "run_id", "provider_kind", "account", "profile",
        "provider_model", "price", "reserved", "started_at", "until",
    ]  # fmt: skip
    return marked.add_cte(sa.insert(call_ledger).from_select(columns, row).cte("entry"))


BEGIN_UNLIMITED = {False: _beginning(*FIRST_CALL, _UNLIMITED), True: _beginning(*_NEXT_CALL, _UNLIMITED)}
BEGIN = {False: _beginning(*FIRST_CALL), True: _beginning(*_NEXT_CALL)}
LOCK_HELD = sa.select(jobs.c.id).where(HELD).with_for_update()


def _binds(lease: Lease, kind: str, handle: Mapping[str, Any], quiet: timedelta, spend: Spend) -> dict[str, Any]:
    event = {"kind": kind, "reserved": spend.reserved}
    # Not the columns' own names: an update would set those of its table.
    spending = {f"spend_{name}": value for name, value in asdict(spend).items()}
    return {**lease.binds, "kind": kind, "handle": handle, "quiet": quiet, "event_data": event, **spending}


def begin_unlimited(
    connection: sa.Connection,
    lease: Lease,
    *,
    kind: str,
    handle: Mapping[str, Any],
    quiet: timedelta,
    spend: Spend,
    next_call: bool = False,
) -> CallState | None:
    """The intent and its row, in one statement. None when an emergency stop has to be asked, or the lease is lost.

    As `calls.mark_call_started`; `next_call`: this job has made one already under this lease, which is over.
    """
    row = connection.execute(BEGIN_UNLIMITED[next_call], _binds(lease, kind, handle, quiet, spend)).one_or_none()
    return None if row is None else started(row)


def begin_within(
    connection: sa.Connection,
    lease: Lease,
    *,
    kind: str,
    handle: Mapping[str, Any],
    quiet: timedelta,
    spend: Spend,
    next_call: bool = False,
) -> CallState | SpendingRefused:
    """The same under the emergency stop, in one transaction: reserved and used never exceed it. Raises LeaseLost.

    A refusal is returned, not raised: the latch that it may have closed has to be committed.
    """
    if connection.execute(LOCK_HELD, lease.binds).one_or_none() is None:
        raise LeaseLost(lease.job_id, "begin", epoch=lease.epoch, owner=lease.owner)
    refused = stop.refusal(connection, needed=spend.reserved)
    if refused is not None:
        return refused
    row = connection.execute(BEGIN[next_call], _binds(lease, kind, handle, quiet, spend)).one_or_none()
    if row is None:
        raise LeaseLost(lease.job_id, "begin", epoch=lease.epoch, owner=lease.owner)
    return started(row)


# Counted by the hour of the booking, under whose clock the row was closed.
_COUNTED = """
  counted as (
  insert into callkeeper.spending_hours as h (hour, part, cost, calls)
  select date_bin('1 hour', finished_at, timestamptz '2000-01-03 00:00:00+00'),
    get_byte(uuid_send(job_id), 15) % 8, sum(cost), count(*)
  from closed group by 1, 2 order by 1, 2
  on conflict (hour, part) do update set cost = h.cost + excluded.cost, calls = h.calls + excluded.calls
  )
"""

FINISH = statement(
    f"""
    with closed as (
      update callkeeper.call_ledger
      set status = cast(:ended_as as text), cost = coalesce(:cost, reserved), estimated = :estimated or :cost is null,
        input_tokens = :input_tokens, output_tokens = :output_tokens, error = :error, finished_at = clock_timestamp()
      where job_id = :job_id and generation = :generation and status = 'open'
      returning job_id, cost, finished_at
    ), {_COUNTED}
    select cost from closed
    """
).bindparams(
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("generation", type_=sa.Integer),
    sa.bindparam("ended_as", type_=sa.Text),
    sa.bindparam("cost", type_=sa.BigInteger),
    sa.bindparam("estimated", type_=sa.Boolean),
    sa.bindparam("input_tokens", type_=sa.BigInteger),
    sa.bindparam("output_tokens", type_=sa.BigInteger),
    sa.bindparam("error", type_=sa.Text),
)


def finish(
    connection: sa.Connection,
    job_id: UUID,
    generation: int,
    *,
    status: str,
    cost: int | None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    estimated: bool = False,
    error: str | None = None,
) -> bool:
    """Book what a call cost (micro-USD), whoever holds its job by now; `cost` None: as much as was reserved, estimated.

    `status`: ok, failed or aborted. `error`: a code, or a few words without secrets. False when it was booked before.
    """
    binds = {
        "job_id": job_id, "generation": generation, "ended_as": status, "cost": cost, "estimated": estimated,
        "input_tokens": input_tokens, "output_tokens": output_tokens, "error": error and error[:_ERROR_CHARACTERS],
    }  # fmt: skip
    return connection.execute(FINISH, binds).one_or_none() is not None


TOTALS = statement(
    """
    select count(*) as calls, coalesce(sum(input_tokens), 0)::bigint as input_tokens,
      coalesce(sum(output_tokens), 0)::bigint as output_tokens, coalesce(sum(cost), 0)::bigint as cost_micro_usd
    from callkeeper.call_ledger where job_id = :job_id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def totals(connection: sa.Connection, job_id: UUID) -> dict[str, int]:
    """What all calls of a job together have been booked at: calls, input_tokens, output_tokens and cost_micro_usd."""
    return dict(connection.execute(TOTALS, {"job_id": job_id}).mappings().one())


NOTE_ABORT = statement(
    """
    update callkeeper.call_ledger set error = :error
    where job_id = :job_id and generation = :generation and status = 'open'
    returning id
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))


def note_abort(connection: sa.Connection, job_id: UUID, generation: int, *, why: str) -> bool:
    """We hung up. Whether the provider stopped is unknown, so the call goes on counting until it can run no longer."""
    binds = {"job_id": job_id, "generation": generation, "error": why[:_ERROR_CHARACTERS]}
    return connection.execute(NOTE_ABORT, binds).one_or_none() is not None


CLOSE_OVERDUE = statement(
    f"""
    with due as materialized (
      select id from callkeeper.call_ledger where status = 'open' and until <= now()
      order by until limit :at_most for update skip locked
    ), closed as (
      update callkeeper.call_ledger l
      set status = case when error is null then 'unknown' else 'aborted' end, cost = reserved, estimated = true,
        finished_at = clock_timestamp()
      from due where l.id = due.id and l.status = 'open' and l.until <= now()
      returning l.job_id, l.cost, l.finished_at
    ), {_COUNTED}
    select count(*) from closed
    """
).bindparams(sa.bindparam("at_most", type_=sa.Integer))


def close_overdue(connection: sa.Connection, *, at_most: int = 500) -> int:
    """Calls that can run no longer and whose cost nobody booked: ours, at what was reserved for them; how many."""
    return int(connection.execute(CLOSE_OVERDUE, {"at_most": at_most}).scalar_one())


FORGET_HOURS = sa.text("delete from callkeeper.spending_hours where hour < now() - interval '40 days'")


def forget_hours(connection: sa.Connection) -> None:
    """Counters of hours that no window reaches back to."""
    connection.execute(FORGET_HOURS)
