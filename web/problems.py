"""Every refusal as one JSON shape, and which status an error deserves. What nobody expected says nothing but so."""

import math
from collections.abc import Mapping, Sequence

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from actors.asked import BadRequest
from actors.callbacks import CallbackRefused
from actors.job_types import UnknownJobType
from store.engine import is_transient
from store.errors import (
    AccountNotFound,
    IdempotencyConflict,
    InsufficientCredits,
    InvalidRequest,
    JobNotFound,
    StoreError,
    SubmitRefused,
)
from store.hygiene import clean_text
from web.models import FieldProblem, Refusal, Refused

Fields = Sequence[tuple[str, str]]
_RETRY_AFTER = 2.0  # seconds; a restart of Postgres or of a pool that is exhausted takes about that
_CODES = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}


class Problem(Exception):
    """An answer that is not a success. `retry_after` in seconds, where trying again makes sense."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        fields: Fields = (),
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = fields
        self.headers = dict(headers or {})
        if retry_after is not None:
            self.headers["Retry-After"] = str(max(1, math.ceil(retry_after)))

    def answer(self) -> Response:
        fields = [FieldProblem(field=field, problem=problem) for field, problem in self.fields]
        body = Refused(error=Refusal(code=self.code, message=self.message, fields=fields))
        # A body that was not read to its end would be taken for the next request.
        headers = {"Cache-Control": "no-store", **self.headers}
        return Response(body.model_dump_json(), self.status, headers, media_type="application/json")


def not_found() -> Problem:
    """The same for a job that never was and for another user's."""
    return Problem(404, "not_found", "there is no such job: check the id")


def busy(what: str, *, retry_after: float = _RETRY_AFTER) -> Problem:
    return Problem(503, "unavailable", f"{what}: try again", retry_after=retry_after)


def invalid(fields: Fields) -> Problem:
    """422, with every field that has to change."""
    words = "; ".join(f"{field}: {problem}" for field, problem in fields)
    return Problem(422, "invalid_request", clean_text(words) or "", fields=fields)


def problem_of(error: Exception) -> Problem | None:
    """The answer that an error deserves; None for one that is a bug."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "refused")
        return Problem(error.status_code, code, error.detail, headers=error.headers)
    if isinstance(error, JobNotFound):
        return not_found()
    if isinstance(error, SubmitRefused):
        return _refused(error)
    if isinstance(error, CallbackRefused):
        return Problem(error.status, _CODES.get(error.status, "refused"), str(error))
    if isinstance(error, ClientDisconnect):
        return Problem(400, "incomplete", "the connection ended before the body did")
    if is_transient(error) or getattr(getattr(error, "orig", None), "sqlstate", None) == "57014":
        return busy("the database cannot be asked just now")
    if isinstance(error, StoreError):
        return busy(str(error))
    return None


def _refused(error: SubmitRefused) -> Problem:
    if isinstance(error, IdempotencyConflict):
        # Neither the key nor the job is named: an answer must not tell what others asked for.
        words = "this Idempotency-Key was used for another request: use a new key for a new request"
        return Problem(409, "idempotency_conflict", words)
    if isinstance(error, InsufficientCredits):
        words = f"{error.available} credits are available, this job reserves {error.needed}"
        return Problem(402, "insufficient_credits", words)
    if isinstance(error, AccountNotFound):
        return Problem(402, "insufficient_credits", "there is no account with credits to pay this job from")
    if isinstance(error, UnknownJobType):
        return invalid([("job_type", f"{error.name!r} is not offered here")])
    if isinstance(error, BadRequest):
        return invalid([(_in_request(path), words) for path, words in error.problems])
    if isinstance(error, InvalidRequest):
        return invalid([(_in_request(error.path), error.problem)])
    # Budgets are the operator's: their names and limits are not told.
    if not error.retryable:
        return Problem(422, error.code, "a limit of this deployment never lets such a job run")
    words = "as many jobs are queued as this deployment lets queue: try again"
    return Problem(429, error.code, words, retry_after=error.retry_after or _RETRY_AFTER)


_ELSEWHERE = {"idempotency_key": "Idempotency-Key", "account_id": "Authorization", "user_id": "Authorization"}


def _in_request(path: str) -> str:
    if path in _ELSEWHERE:
        return _ELSEWHERE[path]
    return "request" if path in ("", "(all)") else f"request.{path}"


async def answer_exception(_request: Request, error: Exception) -> Response:
    """For Starlette's own refusals: no such path, no such method."""
    problem = problem_of(error) or Problem(500, "failed", "this is a bug of ours; it has been logged")
    return problem.answer()
