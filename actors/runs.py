"""Runs for apps: many jobs with one outcome, submitted whole, read whole, stopped whole."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actors import steps as plan
from actors.copy import customer_words
from actors.steps import NODE_DEADLINE, RUN_DEADLINE, Step
from store import runs as store_runs
from store.errors import InvalidRequest, PlanRefused, RunNotFound
from store.models import NewJob, NewRun, SubmittedRun

__all__ = ["NODE_DEADLINE", "RUN_DEADLINE", "Step", "response", "run", "runs", "stop_run", "submit_run"]

_MAX_WORD = 256  # bytes, as the table's own checks say
_MAX_EMAIL = 320
_MAX_TYPE = 128


def submit_run(
    connection: sa.Connection | Session,
    run_type: str,
    steps: Sequence[Step],
    *,
    user_id: str | None = None,
    account_id: str | None = None,
    idempotency_key: str | None = None,
    result_step: str | None = None,
    email: str | None = None,
    reuse: bool = False,
    watermark: bool = False,
    deadline: timedelta = RUN_DEADLINE,
    node_deadline: timedelta = NODE_DEADLINE,
) -> SubmittedRun:
    """Submit a plan inside the caller's transaction: the run, its jobs and all their credits, or nothing.

    `result_step` (by default the last one given; it may be one that a step will add) has the run's result. `email` is
    told of a failure. `reuse` allows outcomes of the user's other runs. `watermark` marks
    the result step's files. `node_deadline` counts from when a step could
    run. The same `idempotency_key` of the same user gives the same run, unless that one failed, was cancelled or timed
    out. Raises SubmitRefused (PlanRefused names the step) and ValueError for deadlines that contradict each other.
    """
    plan.check_limits(node_deadline, deadline)
    plan.check(steps)
    _check_words(run_type, idempotency_key, user_id, email)
    last = result_step or steps[-1].name
    jobs = [
        plan.prepare(
            step,
            user_id=user_id,
            account_id=account_id,
            node_limit=node_deadline,
            watermark=watermark and step.name == last,
        )
        for step in steps
    ]
    payer = _payer(jobs, account_id)
    new = NewRun(
        run_type=run_type,
        fingerprint=_fingerprint(run_type, jobs),
        result_step=last,
        node_limit=node_deadline,
        run_limit=deadline,
        user_id=user_id,
        account_id=payer,
        idempotency_key=idempotency_key,
        reuse=reuse,
        email=email,
        watermark=watermark,
    )
    return store_runs.create(_plain(connection), new, jobs)


def _payer(jobs: Sequence[NewJob], account_id: str | None) -> str | None:
    payers = {job.account_id for job in jobs} - {None}
    if len(payers) > 1:
        raise PlanRefused("(all)", f"steps are paid by {sorted(map(str, payers))}: a run has one account")
    return account_id or next(iter(payers), None)


def _check_words(run_type: str, idempotency_key: str | None, user_id: str | None, email: str | None) -> None:
    limits = (
        ("run_type", run_type, _MAX_TYPE),
        ("idempotency_key", idempotency_key, _MAX_WORD),
        ("user_id", user_id, _MAX_WORD),
        ("email", email, _MAX_EMAIL),
    )
    for field, value, limit in limits:
        if value is not None and not (0 < len(value.encode(errors="replace")) <= limit and "\x00" not in value):
            raise InvalidRequest(field, f"has {len(value)} characters: send 1 to {limit} bytes of text without NUL")
    if email is not None and ("@" not in email or any(sign.isspace() or sign in ",;<>" for sign in email)):
        raise InvalidRequest("email", f"is {email[:80]!r}: send one plain address, like someone@example.com")


def _fingerprint(run_type: str, jobs: Sequence[NewJob]) -> str:
    parts = sorted(
        (job.place.operation_key, sorted(job.place.depends_on), job.place.optional)
        for job in jobs
        if job.place is not None
    )
    return hashlib.sha256(json.dumps([run_type, parts]).encode()).hexdigest()


def run(connection: sa.Connection | Session, run_id: UUID) -> Mapping[str, Any]:
    """The run as its owner may see it: status, quality, warnings, failure, progress, steps. Raises RunNotFound."""
    found = store_runs.read(_plain(connection), run_id)
    if found is None:
        raise RunNotFound(run_id)
    return found


def runs(connection: sa.Connection | Session, *, at_most: int = 20) -> list[Mapping[str, Any]]:
    """The newest runs."""
    return store_runs.newest(_plain(connection), at_most=at_most)


def stop_run(connection: sa.Connection | Session, run_id: UUID, *, user_id: str | None = None) -> str:
    """Ask a run to end; its status now. What rests ends at once, the run with what works. Raises RunNotFound."""
    status = store_runs.request_stop(_plain(connection), run_id, user_id=user_id)
    if status is None:
        raise RunNotFound(run_id)
    return status


def response(found: Mapping[str, Any]) -> dict[str, Any]:
    """A run for clients, in two shapes that older ones can read: they look at `status`, `result.assetId`, `error`.

    Only warnings meant for customers are in it; nothing of providers or machines is.
    """
    status = found["status"]
    if status == "running":
        return {"status": status, "progress": found["progress"], "result": None, "error": None}
    if status != "completed":
        plain = "failed" if status == "timed_out" else status
        return {"status": plain, "result": None, "error": _error(found)}
    media = next((_media(step) for step in found["steps"] if step["step"] == found["result_step"]), [])
    result = {
        "assetId": media[0]["object_key"] if media else None,
        "quality": found["quality"],
        "warnings": [_warning(one) for one in found["warnings"] if one["customer_visible"]],
    }
    return {"status": status, "result": result, "error": None}


def _media(step: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((step["result"] or {}).get("media", []))


def _error(found: Mapping[str, Any]) -> dict[str, str]:
    why: str = found["failure_code"]
    return {"code": why.upper(), "message": customer_words(why).summary}


def _warning(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "code": one["code"],
        "stage": one["stage"],
        "severity": one["severity"],
        "customerVisible": one["customer_visible"],
        "details": one["details"],
    }


def _plain(connection: sa.Connection | Session) -> sa.Connection:
    return connection.connection() if isinstance(connection, Session) else connection
