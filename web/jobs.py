"""Jobs over HTTP: submit, look, list, stop. Each answers for the token's own user and nobody else."""

import base64
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from actors import job_types, public
from actors.job_types import UnknownJobType
from store import pages
from store.models import Submitted as StoreSubmitted
from store.states import TERMINAL
from web import models
from web.auth import User, user_of
from web.bodies import json_answer, read_model, read_query
from web.desk import Desk
from web.problems import invalid, not_found

KEY = re.compile(r"[!-~](?:[ -~]{0,254}[!-~])?")


async def submit(desk: Desk, request: Request) -> Response:
    """201 for a new job, 200 for one that its key already stands for, with its status now."""
    user = await user_of(desk, request)
    key = _idempotency_key(request)
    wanted = await read_model(request, models.SubmitJob)
    if wanted.job_type not in job_types.offered(desk.options.web_job_types):
        raise UnknownJobType(wanted.job_type)
    # Without a key, a submit whose answer was lost is not known to be one: repeating it could run it twice.
    transact = desk.transact_once if key is None else desk.transact
    done: StoreSubmitted = await transact(
        public.submit,
        wanted.job_type,
        wanted.request,
        user_id=user.user_id,
        account_id=user.account_id,
        idempotency_key=key,
        delay=timedelta(seconds=wanted.delay_seconds),
    )
    answer = models.Submitted(job_id=done.job_id, status=done.status, created=done.created)
    place = f"{request.scope.get('root_path', '')}/jobs/{done.job_id}"
    return json_answer(answer, 201 if done.created else 200, headers={"Location": place})


def _idempotency_key(request: Request) -> str | None:
    given = request.headers.getlist("idempotency-key")
    if len(given) > 1:
        raise invalid([("Idempotency-Key", "is given more than once: send it once")])
    if given and not KEY.fullmatch(given[0]):
        raise invalid([("Idempotency-Key", "must be 1 to 256 visible ASCII characters")])
    return given[0] if given else None


async def show(desk: Desk, request: Request) -> Response:
    user = await user_of(desk, request)
    return json_answer(as_job(await find(desk, request, user)))


async def find(desk: Desk, request: Request, user: User) -> Mapping[str, Any]:
    """The path's job if it is this user's. Raises what is answered with 404."""
    return await desk.once(public.job, job_id_of(request), user_id=user.user_id)


def job_id_of(request: Request) -> UUID:
    """Raises Problem 404: what is not an id names no job."""
    try:
        return UUID(request.path_params["job_id"])
    except ValueError:
        raise not_found() from None


async def stop(desk: Desk, request: Request) -> Response:
    """200 when it has ended, by this or before; 202 when its holder was asked to end it."""
    user = await user_of(desk, request)
    job_id = job_id_of(request)
    status = await desk.transact(public.stop, job_id, user_id=user.user_id)
    return json_answer(models.Stopped(job_id=job_id, status=status), 200 if status in TERMINAL else 202)


async def listed(desk: Desk, request: Request) -> Response:
    """A page of the user's jobs, newest first."""
    user = await user_of(desk, request)
    query = read_query(request, models.JobQuery)
    rows = await desk.once(
        pages.of_user,
        user.user_id,
        before=_read_cursor(query.cursor),
        status=query.status and str(query.status),
        job_type=query.job_type,
        at_most=query.limit + 1,
    )
    here = rows[: query.limit]
    more = make_cursor(here[-1]) if len(rows) > query.limit else None
    return json_answer(models.JobPage(jobs=[models.JobSummary(**_summary(row)) for row in here], next=more))


def make_cursor(row: Mapping[str, Any]) -> str:
    """Names the last row of a page; only its key, so that a page never shifts when jobs come or go."""
    plain = json.dumps([row["created_at"].isoformat(), str(row["id"])])
    return base64.urlsafe_b64encode(plain.encode()).decode().rstrip("=")


def _read_cursor(cursor: str | None) -> tuple[datetime, UUID] | None:
    if cursor is None:
        return None
    try:
        at, last = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        return datetime.fromisoformat(at).astimezone(UTC), UUID(last)
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError):
        raise invalid([("cursor", "cannot be read: send the `next` of the page before, as it was")]) from None


def as_job(row: Mapping[str, Any]) -> models.Job:
    """What the owner may see. What only operators need (the provider's task, leases) stays here."""
    return models.Job(
        **_summary(row),
        credits=row["credits"],
        charged=row["charged"],
        result=row["result"],
        assets=[models.Asset(**asset) for asset in row["assets"]],
    )


def _summary(row: Mapping[str, Any]) -> dict[str, Any]:
    same = (
        "id", "job_type", "status", "attempt", "max_attempts", "progress", "price", "created_at", "started_at",
        "finished_at",
    )  # fmt: skip
    code = row["error_code"]
    error = None if code is None else models.JobError(code=code, message=row["error_message"])
    return {**{name: row[name] for name in same}, "error": error, "last_event": row["event_seq"]}
