"""The settlement: status, outcome, credits, event, signals, notice and consequences commit together or not at all.

Two statements in one transaction. The first is the guarded transition, and takes the job's row lock. The second runs
on a newer snapshot, so that it sees a signal that was committed while the first one waited for that lock.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.exc import StatementError

from store.engine import is_transient
from store.errors import LeaseLost
from store.guards import CLOCK, CLOCK_STANDS, HELD, IS_OPEN, LAPSED, NOW, POLL_HELD, is_state, statement
from store.hygiene import clean_json, clean_text
from store.jobs import NO_LEASE, NO_POLL
from store.models import Lease, PollLease, Settlement
from store.states import State
from store.tables import jobs


def _end(*guard: sa.ColumnElement[bool]) -> Any:
    return (
        sa.update(jobs)
        .where(*guard)
        .values(
            status=sa.bindparam("status"),
            finished_at=CLOCK,
            next_check_at=None,
            event_seq=jobs.c.event_seq + 1,
            result=sa.bindparam("result", type_=pg.JSONB(none_as_null=True)),
            error_code=sa.bindparam("error_code"),
            error_message=sa.bindparam("error_message"),
            progress=sa.case(
                (sa.bindparam("status", type_=sa.Text) == sa.literal_column("'completed'"), 1.0),
                else_=jobs.c.progress,
            ),
            **NO_LEASE,
            **NO_POLL,
        )
        .returning(jobs.c.id, jobs.c.event_seq, jobs.c.mode, jobs.c.provider_task_id)
    )


# What the driver, the server or Python itself may say of words that cannot be written down.
_UNWRITABLE = (StatementError, ValueError, TypeError, RecursionError)

_AS_SEEN = (jobs.c.id == sa.bindparam("held_id"), jobs.c.epoch == sa.bindparam("held_epoch"))
_QUEUED = is_state(State.QUEUED)
_AT_REST = sa.or_(_QUEUED, sa.and_(is_state(State.WAITING), jobs.c.provider_task_id.is_not(None)))
_PAST_DEADLINE = sa.or_(sa.and_(_QUEUED, jobs.c.queue_deadline_at <= NOW), jobs.c.deadline_at <= NOW)

END_HELD = _end(HELD)
END_POLLED = _end(POLL_HELD)
END_LAPSED = _end(LAPSED)
END_AT_REST = _end(jobs.c.id == sa.bindparam("held_id"), _AT_REST)
END_OVERDUE = _end(*_AS_SEEN, IS_OPEN, _PAST_DEADLINE, ~CLOCK_STANDS)

AFTERMATH = statement(
    """
    with job as materialized (
      select *, coalesce((call_handle ->> 'cancels')::boolean, true) as cancels,
        :abandons_call and provider_task_id is not null and result_known_at is null and mode = 'async' as leaves
      from callkeeper.jobs where id = :job_id
    ), charge as materialized (
      select u.job_id, u.account_id, u.reserved_subscription, u.reserved_topup,
        least(c.charged, u.reserved_subscription) as committed_subscription,
        greatest(c.charged - u.reserved_subscription, 0) as committed_topup
      from callkeeper.usage_logs u
      cross join lateral (
        select case when :completed
          then least(
            coalesce(:cost, u.reserved_subscription + u.reserved_topup), u.reserved_subscription + u.reserved_topup
          )
          else 0 end as charged
      ) c
      where u.job_id = :job_id
    ), settled as (
      update callkeeper.usage_logs u
      set status = case when :completed then 'committed' else 'refunded' end, cost = :cost,
        committed_subscription = charge.committed_subscription, committed_topup = charge.committed_topup,
        settled_at = clock_timestamp()
      from charge
      where u.job_id = charge.job_id and u.status = 'reserved'
      returning u.job_id
    ), paid as (
      update callkeeper.accounts a
      set balance_subscription = a.balance_subscription + charge.reserved_subscription - charge.committed_subscription,
        reserved_subscription = a.reserved_subscription - charge.reserved_subscription,
        committed_subscription = a.committed_subscription + charge.committed_subscription,
        balance_topup = a.balance_topup + charge.reserved_topup - charge.committed_topup,
        reserved_topup = a.reserved_topup - charge.reserved_topup,
        committed_topup = a.committed_topup + charge.committed_topup
      from charge join settled on settled.job_id = charge.job_id
      where a.id = charge.account_id
      returning a.id
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
      select id, event_seq, status, attempt, epoch, :event_data || case when leaves
        then jsonb_build_object('upstream', case when cancels then 'cancel_owed' else 'left_running' end)
        else '{}'::jsonb end
      from job
    ), consumed as (
      update callkeeper.job_signals set consumed_at = clock_timestamp()
      where job_id = :job_id and consumed_at is null
    ), kept as (
      insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes, sha256)
      select :job_id, a.position, a.object_key, a.content_type, a.size_bytes, a.sha256
      from jsonb_to_recordset(:assets) as a (
        position int, object_key text, content_type text, size_bytes bigint, sha256 text
      )
    ), receipt as (
      insert into callkeeper.call_receipts
        (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)
      select id, provider_kind, :provider_id, call_generation, call_key, 'response', epoch
      from job where :provider_id is not null and call_key is not null
      on conflict do nothing
    ), notice as (
      insert into callkeeper.notices (key, job_id, user_id, body)
      select 'job-ended:' || id, id, user_id, jsonb_build_object(
        'job_id', id, 'job_type', job_type, 'status', status, 'error_code', error_code, 'finished_at', finished_at
      ) from job
      on conflict (key) do nothing
    ), cancellation as (
      insert into callkeeper.consequences (key, job_id, effect, body)
      select 'cancel-upstream:' || id || ':' || call_generation, id, 'cancel_upstream',
        jsonb_build_object('kind', provider_kind, 'task_id', provider_task_id, 'handle', call_handle)
      from job where leaves and cancels
      on conflict (key) do nothing
    ), overrun as (
      insert into callkeeper.alerts (subject, details)
      select 'cost-above-reservation:' || job_type,
        jsonb_build_object('job_id', id, 'price', price, 'cost', cast(:cost as bigint))
      from job where :completed and :cost > price
      on conflict (subject) do update
      set times = callkeeper.alerts.times + 1, last_at = clock_timestamp(), details = excluded.details,
        resolved_at = null
    )
    select count(*) from paid
    """
).bindparams(
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("completed", type_=sa.Boolean),
    sa.bindparam("abandons_call", type_=sa.Boolean),
    sa.bindparam("cost", type_=sa.BigInteger),
    sa.bindparam("event_data", type_=pg.JSONB),
    sa.bindparam("assets", type_=pg.JSONB),
    sa.bindparam("provider_id", type_=sa.Text),
)


def _settle(
    connection: sa.Connection,
    end: Any,
    binds: Mapping[str, Any],
    outcome: Settlement,
    *,
    upstream_ended: bool,
) -> bool:
    completed = outcome.status is State.COMPLETED
    row = connection.execute(
        end,
        {
            **binds,
            "status": str(outcome.status),
            "result": clean_json(outcome.result) if completed else None,
            "error_code": None if completed else _code(outcome),
            "error_message": None if completed else clean_text(outcome.error_message),
        },
    ).one_or_none()
    if row is None:
        return False
    event_data = dict(outcome.details)
    if not completed:
        event_data["error_code"] = _code(outcome)
    connection.execute(
        AFTERMATH,
        {
            "job_id": row.id,
            "completed": completed,
            "abandons_call": not upstream_ended,
            "cost": outcome.cost,
            "event_data": clean_json(event_data),
            "assets": [{"position": position, **asdict(asset)} for position, asset in enumerate(outcome.assets)],
            "provider_id": outcome.provider_id,
        },
    )
    return True


def _code(outcome: Settlement) -> str:
    """A code is a word of ours, in ASCII; whatever else comes is made to look like one."""
    return (outcome.error_code or "unknown").encode("ascii", "replace").decode().replace("\x00", "?")[:64]


def _settle_surely(
    connection: sa.Connection,
    end: Any,
    binds: Mapping[str, Any],
    outcome: Settlement,
    *,
    upstream_ended: bool,
) -> bool:
    """A failure can always be written: if its words cannot, its code alone is."""
    try:
        with connection.begin_nested():
            return _settle(connection, end, binds, outcome, upstream_ended=upstream_ended)
    except _UNWRITABLE as error:
        if outcome.status is State.COMPLETED or is_transient(error):
            raise
        bare = Settlement(status=outcome.status, error_code=outcome.error_code)
        return _settle(connection, end, binds, bare, upstream_ended=upstream_ended)


def complete(connection: sa.Connection, lease: Lease, outcome: Settlement) -> None:
    """Running → completed, by its holder. Raises LeaseLost."""
    if not _settle(connection, END_HELD, lease.binds, outcome, upstream_ended=True):
        raise LeaseLost(lease.job_id, "complete", epoch=lease.epoch, owner=lease.owner)


def end_held(connection: sa.Connection, lease: Lease, outcome: Settlement, *, upstream_ended: bool = True) -> None:
    """Running → failed, timed_out or cancelled, by its holder. Raises LeaseLost."""
    if not _settle_surely(connection, END_HELD, lease.binds, outcome, upstream_ended=upstream_ended):
        raise LeaseLost(lease.job_id, str(outcome.status), epoch=lease.epoch, owner=lease.owner)


def end_polled(connection: sa.Connection, lease: PollLease, outcome: Settlement, *, upstream_ended: bool) -> None:
    """Waiting → failed, timed_out or cancelled, by the holder of its poll. Raises LeaseLost."""
    if not _settle_surely(connection, END_POLLED, lease.binds, outcome, upstream_ended=upstream_ended):
        raise LeaseLost(lease.job_id, str(outcome.status), epoch=lease.epoch, owner=lease.owner)


def end_lapsed(connection: sa.Connection, job_id: UUID, *, epoch: int, outcome: Settlement) -> bool:
    """Running under a lapsed lease → failed. False when the lease lives again or somebody else decided."""
    binds = {"held_id": job_id, "held_epoch": epoch}
    return _settle_surely(connection, END_LAPSED, binds, outcome, upstream_ended=False)


def end_overdue(connection: sa.Connection, job_id: UUID, *, epoch: int, outcome: Settlement) -> bool:
    """Open and past its deadline → timed_out, whoever holds it. False when it is not (any more)."""
    binds = {"held_id": job_id, "held_epoch": epoch}
    return _settle_surely(connection, END_OVERDUE, binds, outcome, upstream_ended=False)


def cancel_at_rest(connection: sa.Connection, job_id: UUID, outcome: Settlement) -> bool:
    """queued, or waiting with a known task → cancelled at once; upstream's cancel is owed. False otherwise."""
    return _settle_surely(connection, END_AT_REST, {"held_id": job_id}, outcome, upstream_ended=False)
