"""What apps call. Each takes the app's own SQLAlchemy connection or session, and joins its transaction."""

import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.orm import Session

from actors import job_types
from store import events, reads, signals
from store import submit as store_submit
from store.errors import JobNotFound
from store.models import Submitted
from store.states import TERMINAL, State


def submit(
    connection: sa.Connection | Session,
    job_type: str,
    request: BaseModel | Mapping[str, Any],
    *,
    user_id: str | None = None,
    account_id: str | None = None,
    idempotency_key: str | None = None,
    delay: timedelta = timedelta(0),
) -> Submitted:
    """Submit a job inside the caller's transaction: job, credits, first event and message commit or roll back with it.

    `account_id` pays, by default the user's own. The same `idempotency_key` of the same user gives the same job, unless
    that one failed, was cancelled or timed out. Raises SubmitRefused (UnknownJobType, BadRequest and the other
    InvalidRequest classes, AccountNotFound, InsufficientCredits, IdempotencyConflict); nothing is written then and the
    transaction is still usable. On async connections and sessions: `await session.run_sync(submit, ...)`.
    """
    new = job_types.prepare(
        job_type,
        request,
        user_id=user_id,
        account_id=account_id,
        idempotency_key=idempotency_key,
        delay=delay,
    )
    return store_submit.submit(connection, new)


def stop(connection: sa.Connection | Session, job_id: UUID, *, user_id: str | None = None) -> State:
    """Ask a job to end; the state it is in now. A finished job stays as it is. Raises JobNotFound.

    With `user_id`, only that user's jobs are found.
    """
    state = signals.request_stop(_plain(connection), job_id, user_id=user_id)
    if state is None:
        raise JobNotFound(job_id)
    return state


def job(connection: sa.Connection | Session, job_id: UUID) -> Mapping[str, Any]:
    """The job as its owner may see it: status, progress, result or error, credits, assets. Raises JobNotFound."""
    found = reads.job(_plain(connection), job_id)
    if found is None:
        raise JobNotFound(job_id)
    return found


def follow(engine: sa.Engine, job_id: UUID, *, after: int = 0, every: float = 0.3) -> Iterator[Mapping[str, Any]]:
    """The job's events with seq > `after`, as they happen; ends by itself after the terminal one. Raises JobNotFound.

    `every`: seconds between looks. Resume with the last seq seen; none is missed or repeated.
    """
    quiet = engine.execution_options(isolation_level="AUTOCOMMIT")
    while True:
        with quiet.connect() as connection:
            seen = events.read(connection, job_id, after=after)
            now = None if seen else job(connection, job_id)
        for event in seen:
            after = event["seq"]
            yield event
            if event["kind"] in TERMINAL:
                return
        if now is not None:
            if now["status"] in TERMINAL and now["event_seq"] <= after:
                return
            time.sleep(every)


def _plain(connection: sa.Connection | Session) -> sa.Connection:
    return connection.connection() if isinstance(connection, Session) else connection
