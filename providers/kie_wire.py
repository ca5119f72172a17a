"""KIE's envelope, `{"code", "msg", "data"}`: its code is believed before the HTTP status, for 200 carries most errors.

Sources: KIE's documentation (docs.kie.ai: response codes, rate limits, the get-task page).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

import httpx
from httpx_sse import ServerSentEvent

from providers.contract import JSON, Account, Failed, Missing
from providers.errors import Fate, ProviderError, Remedy
from providers.http import ACCEPT, Reply, request
from providers.kie_failures import CONTENT, failure
from providers.replies import SERVER_ERROR, TIMEOUTS, TOO_MANY, is_success, malformed, rejected
from providers.text import retry_after, safe_text

# For maintenance the documentation asks for a long wait and does not say how long: seconds.
MAINTENANCE_WAIT = 300.0

_GOOD = frozenset({0, 200})
_BAD_REQUEST = 400
_MAINTENANCE = 455
_UNKNOWN_TASK = frozenset({404, 422})  # of a poll: no record, or none yet
_ENDED_BADLY = frozenset({408, 501, 531})  # of a poll: nothing for ten minutes, failed, failed and paid back
_TASK_ID = re.compile(r"[!-~]{1,200}")
_NUMBER = re.compile(r"-?\d{1,6}", re.ASCII)

_CREDITS = ("provider_credits_exhausted", Remedy.OPERATOR)
_BY_CODE: Mapping[int, tuple[str, Remedy]] = {
    400: ("request_invalid", Remedy.CUSTOMER),
    401: ("provider_auth_invalid", Remedy.OPERATOR),
    402: _CREDITS,
    403: ("provider_forbidden", Remedy.OPERATOR),
    404: ("model_not_found", Remedy.CUSTOMER),
    409: ("request_conflict", Remedy.RETRY),
    413: ("content_policy", Remedy.CUSTOMER),  # the given audio is somebody's work
    422: ("request_invalid", Remedy.CUSTOMER),
    429: ("rate_limited", Remedy.THROTTLED),
    433: _CREDITS,  # of the sub-key
    451: ("input_unreachable", Remedy.CUSTOMER),
    455: ("provider_maintenance", Remedy.THROTTLED),
    501: ("task_failed", Remedy.NOBODY),
    505: ("provider_feature_off", Remedy.NOBODY),
    531: ("task_failed", Remedy.NOBODY),
}
_TOO_LARGE = 413
# As HTTP statuses these come from whoever stands in between, too, and mean what they mean for everyone.
_BY_STATUS: Mapping[int, tuple[str, Remedy]] = {
    **{code: verdict for code, verdict in _BY_CODE.items() if code < SERVER_ERROR},
    _TOO_LARGE: ("request_too_large", Remedy.CUSTOMER),
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What KIE said around its data. `code` is None where it said none, which its own clients take for success."""

    code: int | None
    words: str
    data: JSON

    @property
    def bad(self) -> int | None:
        """The code of an error, or None."""
        return None if self.code in _GOOD else self.code


def envelope(reply: Reply) -> Envelope | None:
    """The reply as KIE writes them, or None when somebody on the way may have written it."""
    body = reply.json()
    if not isinstance(body, dict):
        return None
    given, code = body.get("code"), whole(body.get("code"))
    words = next((body[name] for name in ("msg", "message") if isinstance(body.get(name), str)), None)
    if given is not None and code is None:
        return None
    if code is None and words is None and not isinstance(body.get("data"), dict):
        return None
    return Envelope(code, words or "", body.get("data"))


def whole(value: JSON) -> int | None:
    """A whole number, or one written as text (at most six digits); None for everything else."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def task_id_in(data: JSON) -> str | None:
    """The task's id in either spelling; None when there is none, or when two differ."""
    if not isinstance(data, dict):
        return None
    given = {data[name] for name in ("taskId", "task_id") if isinstance(data.get(name), str)}
    task_id = given.pop() if len(given) == 1 else ""
    return task_id if _TASK_ID.fullmatch(task_id) else None


def created(reply: Reply) -> str:
    """The id of the task that a create made.

    An id is taken whatever stands beside it: it may be paid for, and a poll tells. Raises ProviderError:
    REJECTED where KIE says that it did not take the request; AMBIGUOUS with `accepted_without_id` for a 2xx
    that names no task, and for everything that leaves it open (code 500 and other 5xx among them).
    """
    said = envelope(reply)
    task_id = task_id_in(said.data) if said is not None else None
    if task_id is not None:
        return task_id
    if is_success(reply) and (said is None or said.bad is None):
        raise ProviderError(
            "accepted_without_id",
            f"HTTP {reply.status} without a task's id",
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
            status=reply.status,
        )
    raise refusal(reply)


def polled(reply: Reply, task_id: str) -> Mapping[str, JSON] | Failed | Missing:
    """What a poll showed: the task's data, its end by code alone, or that KIE has no record of it.

    A young task has no record for some seconds, so Missing proves a loss only once it has lasted. Raises
    ProviderError when nothing was learned of this task.
    """
    said = envelope(reply)
    if said is None:
        raise malformed("not an answer of KIE's", reply.status) if is_success(reply) else refusal(reply)
    named = task_id_in(said.data)
    if named is not None and named != task_id:
        raise malformed("the answer is not about the task asked for", reply.status)
    if said.bad in _UNKNOWN_TASK:
        return Missing()
    if said.bad in _ENDED_BADLY:
        return failure(said.bad, said.words)
    if said.bad is not None or not is_success(reply):
        raise refusal(reply)
    if said.data is None:
        return Missing()
    if not isinstance(said.data, dict):
        raise malformed("a task's record that is none", reply.status)
    return said.data


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not the one asked for.

    REJECTED by the body's code where it is one that means so; by a 4xx status where the body is KIE's own,
    and for 429, which is refused and not queued whoever says so. Everything else is AMBIGUOUS.
    """
    said, wait = envelope(reply), retry_after(reply.headers.get("retry-after"))
    bad = said.bad if said is not None else None
    code = reply.status if bad is None else bad
    words = safe_text(f"{code}: {(said.words if said else '') or 'no reason given'}")
    verdict = _verdict(bad, reply.status, words, own=said is not None)
    if verdict is not None:
        wait = MAINTENANCE_WAIT if wait is None and code == _MAINTENANCE else wait
        return rejected(reply, verdict, words, wait=wait)
    return ProviderError(
        "provider_unavailable" if code >= SERVER_ERROR else "unexpected_response",
        words if said is not None else f"HTTP {code} that does not say what became of the request",
        fate=Fate.AMBIGUOUS,
        remedy=Remedy.RETRY,
        status=reply.status,
        retry_after=wait,
    )


def _verdict(bad: int | None, status: int, words: str, *, own: bool) -> tuple[str, Remedy] | None:
    """Our code and the remedy; None when it stays open what became of the request."""
    if bad is None and not own and status != TOO_MANY:
        return None
    code, known = (status, _BY_STATUS) if bad is None else (bad, _BY_CODE)
    if code in (400, 422) and CONTENT.search(words):
        return "content_policy", Remedy.CUSTOMER
    if code in known:
        return known[code]
    if _BAD_REQUEST <= code < SERVER_ERROR and code not in TIMEOUTS:
        return "request_refused", Remedy.NOBODY
    return None


async def ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    path: str,
    *,
    deadline: timedelta,
    json: JSON = None,
    params: Mapping[str, str] | None = None,
    hear: Callable[[ServerSentEvent], None] | None = None,
) -> Reply:
    """One request under the account's key. `path` starts with a slash. Raises what `providers.http.request` does."""
    return await request(
        client,
        method,
        account.base_url.rstrip("/") + path,
        deadline=deadline,
        headers={"authorization": f"Bearer {account.api_key}"} | ({} if hear is None else {"accept": ACCEPT}),
        json=json,
        params=params,
        hear=hear,
    )


def checked(task_id: str) -> str:
    """The id, if it can be asked for. Raises ProviderError (`request_unsendable`)."""
    if not _TASK_ID.fullmatch(task_id):
        raise ProviderError("request_unsendable", "not a task's id", fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)
    return task_id
