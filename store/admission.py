"""Asking the budgets: at submit, whether a job may queue; at its turn, whether it may start.

A start locks the job, then the budgets that speak of it, in the order of their ids; then counts what they have given
out, on a snapshot taken under those locks; then starts the job or parks it. Whoever gives a slot back needs no lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.budgets import ACCOUNTS, SLOTS_TAKEN, SPENT, STARTED_LATELY, WINDOW, account_of
from store.errors import NeverFits, QueueFull
from store.guards import statement
from store.jobs import claim_queued
from store.line import ACTORS, NEXT
from store.models import ClaimedJob, NewJob
from store.parking import park

_FULL_FOR = 5.0  # seconds after which a refused submit is worth another try


def _applies(*, kind: str, user: str, app: str, account: str) -> str:
    """Whether budget `b` speaks of a job; one's own row goes before the one for everybody."""

    def named(scope: str, value: str) -> str:
        return (
            f"(b.scope = '{scope}' and (b.name = {value} or (b.name = '*' and {value} is not null and not exists ("
            f" select from callkeeper.budgets own where own.measure = b.measure and own.scope = '{scope}'"
            f" and own.name = {value}))))"
        )

    return (
        f"(b.scope = 'global' or (b.scope = 'kind' and b.name = {kind})"
        f" or (b.scope = 'account' and b.name = {account}) or {named('user', user)} or {named('app', app)})"
    )


_NEW = _applies(kind=":kind", user=":user_id", app=":app", account=account_of(":kind", "null"))
_NEW_BINDS = (
    sa.bindparam("kind", type_=sa.Text),
    sa.bindparam("user_id", type_=sa.Text),
    sa.bindparam("app", type_=sa.Text),
    ACCOUNTS,
)

NEVER = statement(
    f"""
    select b.measure || ' ' || b.scope || case b.name when '' then '' else ':' || b.name end as budget, b.at_most,
      case b.measure when 'spend' then :price else 1 end as needed
    from callkeeper.budgets b
    where {_NEW} and (
      (b.measure in ('concurrency', 'rate') and b.at_most = 0) or (b.measure = 'spend' and b.at_most < :price)
    )
    order by b.id limit 1
    """
).bindparams(*_NEW_BINDS, sa.bindparam("price", type_=sa.BigInteger))

LOCK_QUEUED = statement(
    f"select b.id from callkeeper.budgets b where b.measure = 'queued' and {_NEW} order by b.id for update of b"
).bindparams(*_NEW_BINDS)

QUEUED = statement(
    """
    select b.measure || ' ' || b.scope || case b.name when '' then '' else ':' || b.name end as budget, b.at_most
    from callkeeper.budgets b
    where b.id = any(:ids) and b.at_most <= (
      select count(*) from callkeeper.jobs j
      where j.status = 'queued' and (
        b.scope = 'global' or (b.scope = 'kind' and j.provider_kind = b.name)
        or (b.scope = 'user' and j.user_id = :user_id) or (b.scope = 'app' and j.app = :app)
      )
    )
    order by b.id limit 1
    """
).bindparams(sa.bindparam("ids", type_=pg.ARRAY(sa.BigInteger)), *_NEW_BINDS[1:3])


def admit(connection: sa.Connection, job: NewJob) -> None:
    """Let a new job queue. Raises QueueFull or NeverFits. The limits asked stay locked until the caller commits."""
    binds: dict[str, Any] = {"kind": job.provider_kind, "user_id": job.user_id, "app": job.app, "accounts": {}}
    never = connection.execute(NEVER, {**binds, "price": job.price}).one_or_none()
    if never is not None:
        raise NeverFits(never.budget, limit=never.at_most, needed=never.needed)
    ids = list(connection.execute(LOCK_QUEUED, binds).scalars())
    if not ids:
        return
    asked = {"ids": ids, "user_id": job.user_id, "app": job.app}
    full = connection.execute(QUEUED, asked).one_or_none()
    if full is not None:
        raise QueueFull(full.budget, limit=full.at_most, retry_after=_FULL_FOR)


CHOOSE = statement(
    f"""
    with chosen as materialized {NEXT}
    select j.id, j.user_id, j.app, j.provider_kind, j.price, j.queue
    from callkeeper.jobs j
    where j.id = coalesce((select id from chosen), :job_id) and j.status = 'queued' and j.available_at <= now()
      and j.parked_on is null and not j.blocked and (
        j.queue_deadline_at > now() or exists (
          select from callkeeper.provider_gates g where g.provider_kind = j.provider_kind and g.stops_clocks
        )
      )
    for update of j skip locked
    """
).bindparams(ACTORS, sa.bindparam("job_id", type_=pg.UUID))

LOCK = statement(
    f"""
    select b.id from callkeeper.budgets b
    where b.measure in ('concurrency', 'rate', 'spend') and {_NEW}
    order by b.id for update of b
    """
).bindparams(*_NEW_BINDS)

_SUBJECT = "case b.scope when 'user' then :user_id when 'app' then :app else b.name end"
MEASURE = statement(
    f"""
    select b.id || '/' || case b.name when '*' then {_SUBJECT} else '' end as key, b.measure, b.scope, b.at_most,
      case b.scope when 'user' then :user_id when 'app' then :app else b.name end as subject,
      b.measure || ' ' || b.scope || case b.name when '' then '' else ':' || b.name end as budget,
      case b.measure when 'concurrency' then {SLOTS_TAKEN.format(subject=_SUBJECT)} when 'rate' then {STARTED_LATELY}
        else {SPENT.format(subject=":user_id", only="")} end as used,
      case b.measure when 'spend' then {SPENT.format(subject=":user_id", only=" and u.status <> 'reserved'")}
        else 0 end as settled,
      case b.measure
        when 'rate' then extract(epoch from b.recent[cardinality(b.recent) - b.at_most + 1] + b.per - clock_timestamp())
        when 'spend' then extract(epoch from {WINDOW} + b.per - clock_timestamp()) end as seconds,
      exists (select from callkeeper.spending p where p.job_id = :job_id) as paid
    from callkeeper.budgets b
    where b.id = any(:ids)
    order by b.id
    """
).bindparams(
    sa.bindparam("ids", type_=pg.ARRAY(sa.BigInteger)),
    sa.bindparam("job_id", type_=pg.UUID),
    *_NEW_BINDS[1:],
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A budget that speaks of a job. `used` includes `settled`; `seconds` until its window lets something new in."""

    key: str
    budget: str
    measure: str
    scope: str
    subject: str
    at_most: int
    used: int
    settled: int
    seconds: float | None
    paid: bool  # the job was let through by the spend budgets at an earlier start

    def needs(self, price: int) -> int:
        if self.measure != "spend":
            return 1
        return 0 if self.paid else price

    def never(self, price: int) -> bool:
        return self.needs(price) > self.at_most

    def full(self, price: int) -> bool:
        return self.needs(price) > 0 and self.used + self.needs(price) > self.at_most

    def opens_in(self, price: int) -> float | None:
        """Seconds until it can let the job in at the earliest; None where that depends on others' ends."""
        if self.measure == "spend" and self.settled + self.needs(price) <= self.at_most:
            return None
        return None if self.seconds is None else max(float(self.seconds), 0.0)


@dataclass(frozen=True, slots=True)
class Refused:
    """A job that no budget in force will ever let start."""

    job_id: UUID
    budget: str
    limit: int
    needed: int


@dataclass(frozen=True, slots=True)
class Parked:
    """How many jobs were put aside, the one at its turn and those behind it that want the same."""

    jobs: int
    budget: str


NOTE_START = statement(
    """
    with noted as (
      update callkeeper.budgets b
      set recent = b.recent[greatest(cardinality(b.recent) - b.at_most + 2, 1):] || clock_timestamp()
      where b.id = any(:ids) and b.measure = 'rate'
    )
    insert into callkeeper.spending (job_id, user_id)
    select :job_id, :user_id
    where :priced and exists (select from callkeeper.budgets b where b.id = any(:ids) and b.measure = 'spend')
    on conflict (job_id) do nothing
    """
).bindparams(
    sa.bindparam("ids", type_=pg.ARRAY(sa.BigInteger)),
    sa.bindparam("job_id", type_=pg.UUID),
    sa.bindparam("user_id", type_=sa.Text),
    sa.bindparam("priced", type_=sa.Boolean),
)

Outcome = ClaimedJob | Parked | Refused | None


def claim_within(
    connection: sa.Connection,
    job_id: UUID,
    *,
    actors: Sequence[str],
    owner: str,
    term: timedelta,
    accounts: Mapping[str, str],
) -> Outcome:
    """The next in line, started if every budget has room; else parked, or refused. None when nobody is in line.

    One transaction: its locks make the limits exact, whoever else claims.
    """
    job = connection.execute(CHOOSE, {"job_id": job_id, "actors": list(actors)}).one_or_none()
    if job is None:
        return None
    binds = {"kind": job.provider_kind, "user_id": job.user_id, "app": job.app, "accounts": dict(accounts)}
    ids = list(connection.execute(LOCK, binds).scalars())
    asked = {**binds, "ids": ids, "job_id": job.id}
    asked.pop("kind")
    measured = [Measured(**row) for row in connection.execute(MEASURE, asked).mappings()] if ids else []
    for one in measured:
        if one.never(job.price):
            return Refused(job.id, one.budget, one.at_most, one.needs(job.price))
    full = next((one for one in measured if one.full(job.price)), None)
    if full is not None:
        wait = full.opens_in(job.price)
        many = park(
            connection, job.id, key=full.key, measure=full.measure, scope=full.scope, subject=full.subject,
            budget=full.budget, accounts=accounts, opens_in=None if wait is None else timedelta(seconds=wait),
        )  # fmt: skip
        return Parked(many, full.budget)
    claimed = claim_queued(connection, job.id, owner=owner, term=term)
    if ids and claimed is not None:
        priced = job.price > 0 and job.user_id is not None
        started = {"ids": ids, "job_id": job.id, "user_id": job.user_id, "priced": priced}
        connection.execute(NOTE_START, started)
    return claimed
