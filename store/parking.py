"""Jobs whose turn came while a budget was full: out of the line, holding nobody, until there is room again."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.budgets import ACCOUNTS, SLOTS_TAKEN, SPENT, STARTED_LATELY, account_of
from store.guards import CLOCK, statement
from store.queue import wake


def _wants(job: str, *, scope: str, subject: str) -> str:
    """Whether a job draws on the budget of that scope and subject."""
    return (
        f"({scope} = 'global' or ({scope} = 'kind' and {job}.provider_kind = {subject})"
        f" or ({scope} = 'account' and {account_of(f'{job}.provider_kind', 'null')} = {subject})"
        f" or ({scope} = 'user' and {job}.user_id = {subject}) or ({scope} = 'app' and {job}.app = {subject}))"
    )


# With the one whose turn it is go those behind it that want the same, so that a full tenant is passed in one step.
PARK = statement(
    f"""
    with own as materialized (
      select id, queue, price from callkeeper.jobs where id = :job_id and status = 'queued' and parked_on is null
      for update
    ), behind as materialized (
      select j.id from (
        select line.id from callkeeper.jobs line, own
        where line.queue = own.queue and line.parked_on is null and line.status = 'queued' and line.turn is not null
        order by line.queue, line.parked_on, line.turn
        limit 1000
      ) near join callkeeper.jobs j on j.id = near.id, own
      where j.id <> own.id and {_wants("j", scope=":scope", subject=":subject")}
        and (:measure <> 'spend' or (
          j.price >= own.price and not exists (select from callkeeper.spending p where p.job_id = j.id)
        ))
        and j.status = 'queued' and j.parked_on is null and j.turn is not null
      for update of j skip locked
    ), moved as (
      update callkeeper.jobs j
      set parked_on = :key, event_seq = event_seq + 1,
        turn = coalesce(j.turn, callkeeper.next_turn(j.queue, j.user_id) - 10 * j.priority),
        queue_deadline_at = greatest(queue_deadline_at, clock_timestamp() + :opens_in + queue_limit),
        deadline_at = greatest(deadline_at, clock_timestamp() + :opens_in + queue_limit + run_limit)
      where j.id in (select id from own union all select id from behind) and j.status = 'queued' and j.parked_on is null
      returning j.id, j.event_seq, j.attempt, j.epoch
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
      select id, event_seq, 'parked', attempt, epoch, jsonb_strip_nulls(jsonb_build_object(
        'budget', cast(:budget as text), 'opens_in', round(extract(epoch from :opens_in), 3)
      )) from moved
    )
    select count(*) from moved
    """
).bindparams(
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("key", type_=sa.Text),
    sa.bindparam("measure", type_=sa.Text),
    sa.bindparam("scope", type_=sa.Text),
    sa.bindparam("subject", type_=sa.Text),
    sa.bindparam("opens_in", type_=pg.INTERVAL),
    ACCOUNTS,
)


def park(
    connection: sa.Connection,
    job_id: UUID,
    *,
    key: str,
    measure: str,
    scope: str,
    subject: str,
    budget: str,
    accounts: Mapping[str, str],
    opens_in: timedelta | None,
) -> int:
    """Put a queued job aside with those near it that want the same; how many. `opens_in`: if time alone will let it in.

    Time in which nothing could have started counts for no deadline.
    """
    binds = {
        "job_id": job_id,
        "key": key,
        "measure": measure,
        "scope": scope,
        "subject": subject,
        "budget": budget,
        "accounts": dict(accounts),
        "opens_in": opens_in,
    }
    return int(connection.execute(PARK, binds).scalar_one())


# By skipping from one key to the next in the index, however many are parked under each.
PARKED_KEYS = statement(
    """
    select distinct k.key from unnest(:queues) q (name) cross join lateral (
      with recursive parked (key) as (
        (
          select j.parked_on from callkeeper.jobs j
          where j.queue = q.name and j.status = 'queued' and j.turn is not null and j.parked_on > :after
          order by j.parked_on limit 1
        )
        union all
        select (
          select j.parked_on from callkeeper.jobs j
          where j.queue = q.name and j.status = 'queued' and j.turn is not null and j.parked_on > parked.key
          order by j.parked_on limit 1
        )
        from parked where parked.key is not null
      )
      select key from parked where key is not null limit :at_most
    ) k
    order by k.key limit :at_most
    """
).bindparams(
    sa.bindparam("queues", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("after", type_=sa.Text),
    sa.bindparam("at_most", type_=sa.Integer),
)


def parked_keys(connection: sa.Connection, *, queues: Sequence[str], after: str = "", at_most: int = 500) -> list[str]:
    """The next keys, in their order, under which jobs are parked. Fewer than `at_most`: there are no more."""
    binds = {"queues": list(queues), "after": after, "at_most": at_most}
    return list(connection.execute(PARKED_KEYS, binds).scalars())


# Room is what the limit leaves, less those in line already who are ahead of the first parked one and want the same.
_freed = (
    statement(
        f"""
        with first as materialized (
          select f.key, head.id, head.turn, head.price from unnest(:keys) f (key) cross join lateral (
            select id, turn, price from callkeeper.jobs
            where queue = any(:queues) and parked_on = f.key and status = 'queued' and turn is not null
            order by turn limit 1
          ) head
        ), room as materialized (
          select first.key, case
            when b.id is null then 500
            when b.measure = 'spend' then
              (b.at_most >= first.price + {SPENT.format(subject="sub.name", only="")} or b.at_most < first.price)::int
            else b.at_most
              - case b.measure when 'rate' then {STARTED_LATELY} else {SLOTS_TAKEN.format(subject="sub.name")} end
              - (
                select count(*) from (
                  select line.id from callkeeper.jobs line
                  where line.queue = any(:queues) and line.parked_on is null and line.status = 'queued'
                    and line.turn <= first.turn and {_wants("line", scope="b.scope", subject="sub.name")}
                  limit b.at_most
                ) ahead
              )
            end as jobs
          from first left join callkeeper.budgets b on b.id = split_part(first.key, '/', 1)::bigint
          cross join lateral (
            select case b.name when '*' then substr(first.key, strpos(first.key, '/') + 1) else b.name end as name
          ) sub
        ), heads as materialized (
          select head.id from room cross join lateral (
            select j.id from callkeeper.jobs j
            where j.queue = any(:queues) and j.parked_on = room.key and j.status = 'queued' and j.turn is not null
            order by j.turn
            limit least(greatest(room.jobs, 0), 500)
            for update skip locked
          ) head
        )
        update callkeeper.jobs j
        set parked_on = null
        from heads
        where j.id = heads.id and j.status = 'queued' and j.parked_on is not null
        returning j.id, j.queue, j.actor
        """
    )
    .bindparams(
        sa.bindparam("queues", type_=pg.ARRAY(sa.Text)),
        sa.bindparam("keys", type_=pg.ARRAY(sa.Text)),
        ACCOUNTS,
    )
    .columns(sa.column("id", pg.UUID), sa.column("queue", sa.Text), sa.column("actor", sa.Text))
    .cte("moved")
)
_sent, _notify = wake(_freed, queue=_freed.c.queue, actor=_freed.c.actor, available_at=CLOCK)
RELEASE = sa.select(_freed.c.id, _notify).add_cte(_sent)


def release(
    connection: sa.Connection, *, queues: Sequence[str], accounts: Mapping[str, str], keys: Sequence[str]
) -> int:
    """Put jobs that are parked under `keys` back in line where their budget has room, first turn first; how many.

    Each gets a message: a hint like any other, the budget is asked again at their turn.
    """
    binds = {"queues": list(queues), "accounts": dict(accounts), "keys": list(keys)}
    return len(connection.execute(RELEASE, binds).all())
