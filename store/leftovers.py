"""What an ending leaves behind for others: spend without a result, a task that may run on, the app's own effects."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import statement
from store.states import State

# A refund after one of these says nothing about the provider's bill.
PERHAPS_PAID = frozenset(
    {"reconcile_no_recovery", "reconcile_exhausted", "provider_task_lost", "output_missing", "output_lost"}
)

LEFT_BEHIND = statement(
    """
    with job as materialized (
      select * from callkeeper.jobs
      where id = :job_id and provider_call_started_at is not null and mode <> 'local'
    ), spend as (
      insert into callkeeper.unexplained_spend (
        job_id, call_generation, provider_kind, provider_task_id, call_key, call_started_at, error_code, price
      )
      select id, call_generation, provider_kind, provider_task_id, call_key, provider_call_started_at, error_code, price
      from job
      on conflict do nothing
    ), watch as (
      insert into callkeeper.upstream_watches
        (job_id, provider_kind, provider_task_id, call_generation, call_handle, call_started_at)
      select id, provider_kind, provider_task_id, call_generation, call_handle, provider_call_started_at from job
      where mode = 'async' and provider_task_id is not null
      on conflict do nothing
    )
    select count(*) from job
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID))

# In the order of registration; each waits for the one before it.
OWE_EFFECTS = statement(
    """
    with owed as materialized (
      select j.*, e.name, e.n, 'effect:' || j.id || ':' || e.name as key
      from callkeeper.jobs j
      cross join lateral jsonb_array_elements_text(j.effects -> cast(:outcome as text)) with ordinality as e (name, n)
      where j.id = :job_id
    )
    insert into callkeeper.consequences (key, job_id, effect, body, after)
    select key, id, 'app:' || name, jsonb_build_object(
        'job_id', id, 'job_type', job_type, 'user_id', user_id, 'status', status, 'error_code', error_code,
        'visibility', visibility, 'watermark', watermark
      ), lag(key) over (order by n)
    from owed
    on conflict (key) do nothing
    """
).bindparams(sa.bindparam("job_id", type_=pg.UUID), sa.bindparam("outcome", type_=sa.Text))


def outcome_of(state: State) -> str:
    """Under which of `completed`, `cancelled` and `failed` an ending's effects are registered."""
    return str(state) if state in (State.COMPLETED, State.CANCELLED) else "failed"
