"""Submitting a job in the caller's own transaction: job, reservation, first event and message, or none of them.

One statement, so a refusal leaves nothing behind and the caller's transaction stays usable. The account's row is locked
first and gates the insert; the key's unique index decides between racers. A key that is seen to be used waits for no
one: its job may be settling, which holds the job and wants the account. The account is locked no harder than its update
needs: a row that refers to it, like a run's, holds it shared until its caller commits.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.orm import Session

from store.admission import admit
from store.errors import AccountNotFound, IdempotencyConflict, InsufficientCredits, StoreError
from store.guards import statement
from store.models import NewJob, Submitted
from store.states import State
from store.tables import accounts, jobs

SUBMIT = statement(
    """
    with used as materialized (
      select from callkeeper.jobs
      where coalesce(user_id, '') = coalesce(:user_id, '') and idempotency_key = :idempotency_key
        and status in ('queued', 'running', 'waiting', 'completed')
    ), payer as materialized (
      select id, least(balance_subscription, :price) as from_subscription
      from callkeeper.accounts
      where id = :account_id and balance_subscription + balance_topup >= :price
      for no key update
    ), job as (
      insert into callkeeper.jobs (
        user_id, account_id, job_type, provider_kind, queue, actor, mode, retry_safe, idempotency_key,
        request_fingerprint, price, max_attempts, queue_limit, run_limit, attempt_limit, available_at,
        queue_deadline_at, deadline_at, next_check_at, event_seq, stale_after, visibility, watermark, effects, heavy,
        run_id, step, stage, operation_key, depends_on, optional, blocked, round, app, priority, turn
      )
      select :user_id, :account_id, :job_type, :provider_kind, :queue, :actor, :mode, :retry_safe, :idempotency_key,
        :fingerprint, :price, :max_attempts, :queue_limit, :run_limit, :attempt_limit, coalesce(held.until, due.at),
        coalesce(held.until, run.until, due.at + :queue_limit),
        coalesce(held.until, run.until, due.at + :queue_limit + :run_limit),
        coalesce(held.until, due.at + interval '1 minute'), 1, :stale_after,
        coalesce(:visibility, (select visibility_baseline from callkeeper.accounts where id = :account_id), 'public'),
        :watermark, :effects, :heavy, :run_id, :step, :stage, :operation_key, :depends_on, :optional, :blocked, :round,
        :app, :priority, case when :delay <= interval '0' and not :blocked
          then callkeeper.next_turn(:queue, :user_id) - 10 * :priority end
      from (select clock_timestamp() + :delay as at) due
      left join lateral (
        select least(due.at + :run_limit, deadline_at) as until, deadline_at + interval '1 day' as last
        from callkeeper.runs where id = :run_id
      ) run on true
      left join lateral (select run.last as until where :blocked) held on true
      where not exists (select from used) and (:account_id is null or exists (select from payer))
        and (:admitted or not exists (select from callkeeper.budgets where measure <> 'weight'))
      on conflict do nothing
      returning id, account_id, queue, actor, available_at, attempt, price, blocked
    ), request as (
      insert into callkeeper.job_requests (job_id, request) select id, :request from job
    ), drawn as (
      update callkeeper.accounts a
      set balance_subscription = a.balance_subscription - payer.from_subscription,
        reserved_subscription = a.reserved_subscription + payer.from_subscription,
        balance_topup = a.balance_topup - (job.price - payer.from_subscription),
        reserved_topup = a.reserved_topup + (job.price - payer.from_subscription)
      from payer, job
      where a.id = payer.id
    ), reserved as (
      insert into callkeeper.usage_logs (job_id, account_id, reserved_subscription, reserved_topup)
      select job.id, payer.id, payer.from_subscription, job.price - payer.from_subscription from job, payer
    ), event as (
      insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data)
      select id, 1, 'queued', attempt, 0, :event_data from job
    ), addressed as materialized (
      select gen_random_uuid() as message_id, id, queue, actor, available_at from job where not blocked
    ), sent as (
      insert into dramatiq.queue (message_id, queue_name, state, message, available_at)
      select message_id, queue, 'queued', jsonb_build_object(
        'queue_name', queue, 'actor_name', actor, 'args', jsonb_build_array(id), 'kwargs', '{}'::jsonb,
        'options', '{}'::jsonb, 'message_id', message_id,
        'message_timestamp', floor(extract(epoch from clock_timestamp()) * 1000)::bigint
      ), available_at from addressed
    )
    select id, pg_notify('dramatiq.' || queue || '.enqueue', '') from job
    """
).bindparams(
    sa.bindparam("account_id", type_=sa.Text),
    sa.bindparam("user_id", type_=sa.Text),
    sa.bindparam("idempotency_key", type_=sa.Text),
    sa.bindparam("price", type_=sa.BigInteger),
    sa.bindparam("max_attempts", type_=sa.Integer),
    sa.bindparam("retry_safe", type_=sa.Boolean),
    sa.bindparam("queue_limit", type_=pg.INTERVAL),
    sa.bindparam("run_limit", type_=pg.INTERVAL),
    sa.bindparam("attempt_limit", type_=pg.INTERVAL),
    sa.bindparam("delay", type_=pg.INTERVAL),
    sa.bindparam("stale_after", type_=pg.INTERVAL),
    sa.bindparam("visibility", type_=sa.Text),
    sa.bindparam("watermark", type_=sa.Boolean),
    sa.bindparam("effects", type_=pg.JSONB),
    sa.bindparam("heavy", type_=sa.Boolean),
    sa.bindparam("run_id", type_=pg.UUID),
    sa.bindparam("step", type_=sa.Text),
    sa.bindparam("stage", type_=sa.Text),
    sa.bindparam("operation_key", type_=sa.Text),
    sa.bindparam("depends_on", type_=pg.ARRAY(sa.Text)),
    sa.bindparam("optional", type_=sa.Boolean),
    sa.bindparam("blocked", type_=sa.Boolean),
    sa.bindparam("round", type_=sa.Integer),
    sa.bindparam("request", type_=pg.JSONB),
    sa.bindparam("event_data", type_=pg.JSONB),
    sa.bindparam("app", type_=sa.Text),
    sa.bindparam("priority", type_=sa.Integer),
    sa.bindparam("admitted", type_=sa.Boolean),
)

_NOT_FREED = jobs.c.status.in_([sa.literal_column(f"'{s}'") for s in ("queued", "running", "waiting", "completed")])

WINNER = sa.select(jobs.c.id, jobs.c.status, jobs.c.request_fingerprint).where(
    sa.func.coalesce(jobs.c.user_id, sa.literal_column("''")) == sa.bindparam("owner"),
    jobs.c.idempotency_key == sa.bindparam("key"),
    _NOT_FREED,
)

# Whoever adds a step holds its run's lock, so there is a winner or there is none.
OPERATION = sa.select(jobs.c.id, jobs.c.status).where(
    jobs.c.run_id == sa.bindparam("run_id"),
    jobs.c.operation_key == sa.bindparam("operation_key"),
    _NOT_FREED,
)

AVAILABLE = sa.select(accounts.c.balance_subscription + accounts.c.balance_topup).where(
    accounts.c.id == sa.bindparam("account_id")
)


def submit(connection: sa.Connection | Session, job: NewJob) -> Submitted:
    """Write the job with the caller's connection; it exists when the caller commits.

    Raises IdempotencyConflict, AccountNotFound, InsufficientCredits, QueueFull or NeverFits; nothing is written then.
    """
    if isinstance(connection, Session):
        connection = connection.connection()
    admitted = False
    for _ in range(5):
        created = connection.execute(SUBMIT, {**_binds(job), "admitted": admitted}).one_or_none()
        if created is not None:
            return Submitted(job_id=created.id, status=State.QUEUED, created=True)
        known = _winner(connection, job)
        if known is not None:
            return known
        _check_account(connection, job)
        if not admitted:
            admit(connection, job)
            admitted = True
    raise StoreError(f"idempotency_key {job.idempotency_key!r} changes hands too fast: try again")


def _winner(connection: sa.Connection, job: NewJob) -> Submitted | None:
    if job.place is not None:
        binds = {"run_id": job.place.run_id, "operation_key": job.place.operation_key}
        step = connection.execute(OPERATION, binds).one_or_none()
        return None if step is None else Submitted(job_id=step.id, status=State(step.status), created=False)
    if job.idempotency_key is None:
        return None
    binds = {"owner": job.user_id or "", "key": job.idempotency_key}
    row = connection.execute(WINNER, binds).one_or_none()
    if row is None:
        return None
    if row.request_fingerprint != job.fingerprint:
        raise IdempotencyConflict(job.idempotency_key, row.id)
    return Submitted(job_id=row.id, status=State(row.status), created=False)


def _check_account(connection: sa.Connection, job: NewJob) -> None:
    if job.account_id is None:
        return
    available = connection.execute(AVAILABLE, {"account_id": job.account_id}).scalar_one_or_none()
    if available is None:
        raise AccountNotFound(job.account_id)
    if available < job.price:
        raise InsufficientCredits(job.account_id, needed=job.price, available=available)


def _binds(job: NewJob) -> dict[str, Any]:
    place = job.place
    return {
        "heavy": job.heavy,
        "run_id": place and place.run_id,
        "step": place and place.step,
        "stage": place and place.stage,
        "operation_key": place and place.operation_key,
        "depends_on": [] if place is None else list(place.depends_on),
        "optional": place is not None and place.optional,
        "blocked": place is not None and bool(place.depends_on),
        "round": 0 if place is None else place.round,
        "user_id": job.user_id,
        "account_id": job.account_id,
        "job_type": job.job_type,
        "provider_kind": job.provider_kind,
        "queue": job.queue,
        "actor": job.actor,
        "mode": job.mode,
        "retry_safe": job.retry_safe,
        "idempotency_key": job.idempotency_key,
        "fingerprint": job.fingerprint,
        "price": job.price,
        "max_attempts": job.max_attempts,
        "queue_limit": job.queue_limit,
        "run_limit": job.run_limit,
        "attempt_limit": job.attempt_limit,
        "delay": job.delay,
        "stale_after": job.stale_after,
        "visibility": job.visibility,
        "watermark": job.watermark,
        "effects": {outcome: list(names) for outcome, names in job.effects.items()},
        "request": job.request,
        "event_data": {"job_type": job.job_type},
        "app": job.app,
        "priority": job.priority,
    }
