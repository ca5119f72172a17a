"""What apps call. Each takes the app's own SQLAlchemy connection or session, and joins its transaction."""

from collections.abc import AsyncIterator, Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from actors import job_types
from actors.follow import Frame, followers
from store import reads, signals
from store import submit as store_submit
from store.errors import JobNotFound
from store.models import Submitted
from store.states import State


def submit(
    connection: sa.Connection | Session,
    job_type: str,
    request: BaseModel | Mapping[str, Any],
    *,
    user_id: str | None = None,
    account_id: str | None = None,
    idempotency_key: str | None = None,
    delay: timedelta = timedelta(0),
    visibility: str | None = None,
    watermark: bool = False,
    app: str | None = None,
    priority: int = 0,
) -> Submitted:
    """Submit a job inside the caller's transaction: job, credits, first event and message commit or roll back with it.

    `account_id` pays, by default the user's own. The same `idempotency_key` of the same user gives the same job, unless
    that one failed, was cancelled or timed out. `visibility` (public or private; by default the paying account's
    baseline), `watermark` and the price are frozen with the job: whoever brings it home, and however late, uses these.
    `app` names the part of yours that asks, for its budgets. `priority`, -100 to 100: each step passes jobs of up to
    ten turns before it. Raises SubmitRefused (UnknownJobType, BadRequest and the other InvalidRequest classes,
    AccountNotFound, InsufficientCredits, IdempotencyConflict, QueueFull, NeverFits) with `code`, `retryable` and
    `retry_after`; nothing is written then and the transaction is still usable. On async connections and sessions:
    `await session.run_sync(submit, ...)`.
    """
    new = job_types.prepare(
        job_type,
        request,
        user_id=user_id,
        account_id=account_id,
        idempotency_key=idempotency_key,
        delay=delay,
        visibility=visibility,
        watermark=watermark,
        app=app,
        priority=priority,
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


def job(connection: sa.Connection | Session, job_id: UUID, *, user_id: str | None = None) -> Mapping[str, Any]:
    """The job as its owner may see it: status, progress, result or error, credits, assets. Raises JobNotFound.

    With `user_id`, only that user's jobs are found.
    """
    found = reads.job(_plain(connection), job_id)
    if found is None or (user_id is not None and found["user_id"] != user_id):
        raise JobNotFound(job_id)
    return found


def follow(
    engine: sa.Engine, job_id: UUID, *, after: int = 0, user_id: str | None = None, tokens: bool = False
) -> Iterator[Frame]:
    """The job's milestones with seq > `after`, as they happen; ends by itself after the terminal one.

    With `tokens` also what is never stored: tokens and progress. To resume, give the `after` of the last frame seen: no
    milestone is missed or repeated. With `user_id`, only that user's jobs are found. Raises JobNotFound at the first
    step. All followers of a process share two connections, which are not the engine's: of it only the URL is used.
    """
    return followers(engine).follow(job_id, after=after, user_id=user_id, tokens=tokens)


def follow_async(
    engine: sa.Engine | AsyncEngine,
    job_id: UUID,
    *,
    after: int = 0,
    user_id: str | None = None,
    tokens: bool = False,
) -> AsyncIterator[Frame]:
    """`follow` for an event loop."""
    return followers(engine).follow_async(job_id, after=after, user_id=user_id, tokens=tokens)


def _plain(connection: sa.Connection | Session) -> sa.Connection:
    return connection.connection() if isinstance(connection, Session) else connection
