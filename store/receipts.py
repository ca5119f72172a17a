"""Task ids that were ever learned, kept whoever holds the job: the money behind them is spent.

One that is learned too late, when its job has ended, or was learned in time and never came onto the row, stands for
work that goes on for nobody: its cancel is owed and it is watched, from the statement on that first knows both.
"""

from collections.abc import Sequence
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.models import CallState
from store.tables import call_receipts

# The job's row is locked, so that an ending either sees the receipt or is seen here.
KEEP_RECEIPT = statement(
    """
    with job as materialized (
      select id, epoch, mode, call_generation, call_key, call_handle, provider_call_started_at, provider_task_id, status
      from callkeeper.jobs where id = :job_id
      for no key update
    ), receipt as (
      insert into callkeeper.call_receipts
        (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)
      select id, :kind, :task_id, :generation, :call_key, :source, epoch from job
      on conflict do nothing
      returning job_id, provider_kind, provider_task_id, call_key
    ), orphan as materialized (
      select job.*, r.provider_kind as kind, r.provider_task_id as task_id
      from job join receipt r on r.job_id = job.id and r.call_key = job.call_key
      where job.status in ('completed', 'failed', 'timed_out', 'cancelled') and job.mode = 'async'
        and job.provider_task_id is distinct from r.provider_task_id
    ), watch as (
      insert into callkeeper.upstream_watches
        (job_id, provider_kind, provider_task_id, call_generation, call_handle, call_started_at, check_at)
      select id, kind, task_id, call_generation, call_handle, provider_call_started_at, clock_timestamp() from orphan
      on conflict do nothing
    ), cancellation as (
      insert into callkeeper.consequences (key, job_id, effect, body)
      select 'cancel-upstream:' || id || ':' || task_id, id, 'cancel_upstream',
        jsonb_build_object('kind', kind, 'task_id', task_id, 'handle', call_handle)
      from orphan
      where coalesce((call_handle ->> 'cancels')::boolean, true)
      on conflict (key) do nothing
    )
    select count(*) from receipt
    """
).bindparams(
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("kind", type_=sa.Text),
    sa.bindparam("task_id", type_=sa.Text),
    sa.bindparam("generation", type_=sa.Integer),
    sa.bindparam("call_key", type_=pg.UUID),
    sa.bindparam("source", type_=sa.Text),
)


def keep_receipt(
    connection: sa.Connection, job_id: UUID, call: CallState, task_id: str, *, source: str = "late_create"
) -> None:
    """Keep a task id whoever holds the lease now: the money is spent. Doing it twice changes nothing."""
    binds = {
        "job_id": job_id,
        "kind": call.kind,
        "task_id": task_id,
        "generation": call.generation,
        "call_key": call.key,
        "source": source,
    }
    connection.execute(KEEP_RECEIPT, binds)


RECEIPTS_OF = (
    sa.select(call_receipts.c.provider_task_id)
    .where(
        call_receipts.c.job_id == sa.bindparam("job_id"),
        call_receipts.c.call_generation == sa.bindparam("generation"),
    )
    .order_by(call_receipts.c.id)
)

KNOWN_TASKS = sa.select(call_receipts.c.provider_task_id).where(
    call_receipts.c.provider_kind == sa.bindparam("kind"),
    call_receipts.c.provider_task_id == sa.any_(sa.bindparam("task_ids", type_=pg.ARRAY(sa.Text))),
)


def receipts_of(connection: sa.Connection, job_id: UUID, *, generation: int) -> list[str]:
    """Task ids this job's call is known to have, whoever learned them."""
    rows = connection.execute(RECEIPTS_OF, {"job_id": job_id, "generation": generation})
    return [row.provider_task_id for row in rows]


def unowned(connection: sa.Connection, kind: str, task_ids: Sequence[str]) -> list[str]:
    """Those of `task_ids` that no job has a receipt for, in the order given."""
    rows = connection.execute(KNOWN_TASKS, {"kind": kind, "task_ids": list(task_ids)})
    owned = {row.provider_task_id for row in rows}
    return [task_id for task_id in task_ids if task_id not in owned]
