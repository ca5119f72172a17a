"""What OpenRouter's answers about videos mean. Pure: a reply or an object goes in, an outcome or an error comes out.

Sources: OpenRouter's reference of its video generation API (statuses, URLs, usage, error bodies) and its Python client
(field names and types).
"""

import re
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

from providers.contract import JSON, Failed, Media, Outcome, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.replies import SERVER_ERROR, TIMEOUTS, is_success, malformed, rejected, unsettled
from providers.text import retry_after, safe_text

MAX_FILES = 16
_BAD_REQUEST, _FORBIDDEN = 400, 403
_LIVING = frozenset({"pending", "in_progress", "queued"})
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
# A failed job has a text and no code; these words are those of refused content.
_POLICY = re.compile(r"(?i)flagged|moderat|content.?policy|safety|nsfw|prohibited|sensitive|copyright")
_REFUSALS: Mapping[int, tuple[str, Remedy]] = {
    _BAD_REQUEST: ("request_invalid", Remedy.CUSTOMER),
    401: ("provider_auth_invalid", Remedy.OPERATOR),
    402: ("provider_credits_exhausted", Remedy.OPERATOR),
    _FORBIDDEN: ("provider_forbidden", Remedy.OPERATOR),
    404: ("model_not_found", Remedy.CUSTOMER),
    413: ("request_too_large", Remedy.CUSTOMER),
    422: ("request_invalid", Remedy.CUSTOMER),
    429: ("rate_limited", Remedy.THROTTLED),
}


def own_error(reply: Reply) -> Mapping[str, JSON] | None:
    """The error as OpenRouter writes it, or None when somebody on the way may have written the body."""
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) else None
    return error if isinstance(error, dict) and isinstance(error.get("message"), str) else None


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not the one asked for.

    REJECTED only where OpenRouter itself says, in an error body of its own, that it did not take the request: with
    a status of 4xx, or under a status of 2xx with a code of 4xx in the body, which counts before the status. A page of
    somebody else's, a timeout status (499 among them) and every 5xx leave it open: AMBIGUOUS.
    """
    error, wait = own_error(reply), retry_after(reply.headers.get("retry-after"))
    if error is None or not (is_success(reply) or _is_refusal(reply.status)):
        return unsettled(reply, wait=wait)
    said = error.get("code")
    code = said if isinstance(said, int) and said >= _BAD_REQUEST else reply.status
    words = safe_text(error["message"])
    if not _is_refusal(code):
        return unsettled(reply, wait=wait, words=words)
    verdict = _REFUSALS.get(code, ("request_refused", Remedy.NOBODY))
    if code in (_BAD_REQUEST, _FORBIDDEN) and _is_moderation(error):
        verdict = ("content_policy", Remedy.CUSTOMER)
    return rejected(reply, verdict, words, wait=wait)


def task_id_in(body: JSON) -> str | None:
    """The job's id, when it is one that can safely stand in a path."""
    task_id = body.get("id") if isinstance(body, dict) else None
    return task_id if isinstance(task_id, str) and _TASK_ID.fullmatch(task_id) else None


def outcome(job: Mapping[str, JSON], base_url: str) -> Outcome:
    """What a job object says of its run. `base_url` is the account's: files of its origin need the key.

    Raises ProviderError (`output_missing`, RETRY) for a completed job that names no file: the caller looks again, and
    decides after how many looks to give up.
    """
    status = job.get("status")
    if not isinstance(status, str) or not status:
        raise malformed("a video job without a status")
    usage = _usage(job)
    match status:
        case "completed":
            media = _media(job, base_url)
            if not media:
                raise ProviderError(
                    "output_missing",
                    "completed, but no file is named",
                    fate=Fate.AMBIGUOUS,
                    remedy=Remedy.RETRY,
                    status=200,
                )
            return Succeeded(media=media, usage=usage)
        case "failed":
            message = safe_text(job.get("error") or "the provider gave no reason")
            return Failed("content_policy" if _POLICY.search(message) else "task_failed", message, usage=usage)
        case "cancelled" | "expired":
            reason = safe_text(job.get("error") or "no reason given", 400)
            return Failed("task_cancelled", f"{status} at the provider: {reason}", cancelled=True, usage=usage)
    return Running(word=safe_text(status, 40), known=status in _LIVING)


def _is_refusal(status: int) -> bool:
    return _BAD_REQUEST <= status < SERVER_ERROR and status not in TIMEOUTS


def _is_moderation(error: Mapping[str, JSON]) -> bool:
    metadata = error.get("metadata")
    reasons = metadata.get("reasons") if isinstance(metadata, dict) else None
    return bool(reasons) or bool(_POLICY.search(safe_text(error["message"])))


def _media(job: Mapping[str, JSON], base_url: str) -> list[Media]:
    """The files: those behind OpenRouter's own content endpoint, or else its stored copies, whose URLs are signed."""
    named = _urls(job.get("unsigned_urls"), base_url) or _urls(job.get("urls"), base_url)
    return [Media(url=url, kind="video", authorised=_same_origin(url, base_url)) for url in named]


def _urls(given: JSON, base_url: str) -> list[str]:
    # A reference without a host is meant from the API's own; `polling_url` is written like that.
    texts = [one for one in given if isinstance(one, str) and one] if isinstance(given, list) else []
    try:
        return [urljoin(base_url, text) for text in texts[:MAX_FILES]]
    except ValueError:
        return []


def _same_origin(url: str, base_url: str) -> bool:
    try:
        there, api = ((one.scheme, one.hostname, one.port) for one in map(urlsplit, (url, base_url)))
    except ValueError:
        return False
    return there == api


def _usage(job: Mapping[str, JSON]) -> dict[str, int | float | str]:
    """`cost` in US dollars, whether it was billed to a key of one's own, and the id that the activity log knows."""
    told = job.get("usage")
    usage: dict[str, int | float | str] = {}
    if isinstance(told, dict):
        cost, own_key = told.get("cost"), told.get("is_byok")
        if isinstance(cost, int | float) and not isinstance(cost, bool):
            usage["cost"] = cost
        if isinstance(own_key, bool):
            usage["is_byok"] = str(own_key).lower()
    if isinstance(job.get("generation_id"), str):
        usage["generation_id"] = safe_text(job["generation_id"], 60)
    return usage
