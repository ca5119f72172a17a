"""What Replicate's answers mean. Pure: a reply or an object goes in, an outcome or an error comes out.

Sources: Replicate's HTTP API reference (statuses, error bodies, data removal) and its Python client
(progress in logs).
"""

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from providers.contract import JSON, Failed, Media, Outcome, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.output import kind_of, urls_in
from providers.replies import SERVER_ERROR, TIMEOUTS, TOO_MANY, malformed, rejected, unsettled
from providers.text import retry_after, safe_text

# Where the account's key may go with a download, by the documentation of output files.
DELIVERY_HOSTS = ("replicate.delivery", ".replicate.delivery")
ENDED = frozenset({"succeeded", "failed", "canceled", "aborted"})

_LIVING = frozenset({"starting", "processing"})
_POLICY = re.compile(r"(?i)nsfw|flagged as sensitive|\(E005\)")
_PROGRESS = re.compile(r"(\d{1,3})%\|")
_RESETS_IN = re.compile(r"(?i)resets? in ~?\s*(\d{1,6}(?:\.\d{1,3})?)\s*s")
_TASK_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_LOG_TAIL = 4096
_MAX_METRICS = 32
_REFUSALS: dict[int, tuple[str, Remedy]] = {
    400: ("request_invalid", Remedy.CUSTOMER),
    401: ("provider_auth_invalid", Remedy.OPERATOR),
    402: ("provider_credits_exhausted", Remedy.OPERATOR),
    403: ("provider_forbidden", Remedy.OPERATOR),
    404: ("model_not_found", Remedy.CUSTOMER),
    410: ("model_not_found", Remedy.CUSTOMER),
    413: ("request_too_large", Remedy.CUSTOMER),
    422: ("request_invalid", Remedy.CUSTOMER),
    429: ("rate_limited", Remedy.THROTTLED),
}


def own_words(reply: Reply) -> Mapping[str, JSON] | None:
    """The body of an error as Replicate writes them, or None when somebody on the way may have written it."""
    body = reply.json()
    if not isinstance(body, dict):
        return None
    return body if any(isinstance(body.get(name), str) for name in ("detail", "title")) else None


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not the one asked for.

    REJECTED only where Replicate itself says, with 4xx and a body of its own, that it did not take the
    request. A proxy's page, a timeout status, a redirect and every 5xx leave it open: AMBIGUOUS.
    """
    body = own_words(reply)
    wait = _wait(reply, body)
    if body is None or not 400 <= reply.status < SERVER_ERROR or reply.status in TIMEOUTS:  # noqa: PLR2004
        return unsettled(reply, wait=wait)
    words = safe_text(": ".join(str(body[name]) for name in ("title", "detail") if body.get(name)))
    return rejected(reply, _REFUSALS.get(reply.status, ("request_refused", Remedy.NOBODY)), words, wait=wait)


def task_id_in(body: JSON) -> str | None:
    """The prediction's id, when it is one that can safely stand in a path."""
    task_id = body.get("id") if isinstance(body, dict) else None
    return task_id if isinstance(task_id, str) and _TASK_ID.fullmatch(task_id) else None


def outcome(prediction: Mapping[str, JSON], handle: Mapping[str, JSON], base_url: str) -> Outcome:
    """What a prediction object says of its run.

    Raises ProviderError (`output_missing`, RETRY) for a success that shows no output and does not say it
    was removed: by the documentation that cannot last, so the caller looks again, and decides after how
    many looks to give up.
    """
    status = prediction.get("status")
    if not isinstance(status, str) or not status:
        raise malformed("a prediction without a status")
    if status == "succeeded":
        return _success(prediction, handle, base_url)
    if status == "failed":
        message = safe_text(prediction.get("error") or "the provider gave no reason")
        code = "content_policy" if _POLICY.search(message) else "task_failed"
        return Failed(code, message, usage=_usage(prediction.get("metrics")))
    if status in ENDED:
        words = "cancelled at the provider" if status == "canceled" else "its deadline passed before it started"
        return Failed("task_cancelled", words, cancelled=True, usage=_usage(prediction.get("metrics")))
    return Running(progress(prediction.get("logs")), safe_text(status, 40), known=status in _LIVING)


def progress(logs: JSON) -> float | None:
    """The last percentage of a progress bar in the logs, as 0..1."""
    marks = _PROGRESS.findall(logs[-_LOG_TAIL:]) if isinstance(logs, str) else []
    return min(int(marks[-1]), 100) / 100 if marks else None


def _success(prediction: Mapping[str, JSON], handle: Mapping[str, JSON], base_url: str) -> Succeeded | Failed:
    output, usage = prediction.get("output"), _usage(prediction.get("metrics"))
    if output is None and prediction.get("data_removed") is True:
        return Failed("output_lost", "the provider has removed the output; it does so an hour after the end")
    if output in (None, "", []) and not (output == [] and handle.get("output") == "json"):
        raise ProviderError(
            "output_missing", "succeeded, but no output is shown", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY, status=200
        )
    match handle.get("output"):
        case "json":
            return Succeeded(value=output, usage=usage)
        case "text":
            text = _text(output)
            wrong = Failed("result_wrong_type", "text was asked for, and the output is something else")
            return wrong if text is None else Succeeded(text=text, usage=usage)
    media = _media(output, handle.get("media_kind"), base_url)
    if not media:
        return Failed("result_wrong_type", "files were asked for, and the output names none")
    return Succeeded(media=media, usage=usage)


def _text(output: JSON) -> str | None:
    if isinstance(output, list) and all(isinstance(part, str) for part in output):
        return "".join(output)
    return output if isinstance(output, str) else None


def _media(output: JSON, kind: JSON, base_url: str) -> list[Media]:
    return [
        Media(url=url, kind=str(kind or kind_of(url)), authorised=_may_see_key(url, base_url))
        for url in urls_in(output)
    ]


def _may_see_key(url: str, base_url: str) -> bool:
    try:
        there, api = urlsplit(url), urlsplit(base_url)
        host = there.hostname or ""
        if (there.scheme, host, there.port) == (api.scheme, api.hostname, api.port):
            return True
        exact, below = DELIVERY_HOSTS
        return there.scheme == "https" and there.port in (None, 443) and (host == exact or host.endswith(below))
    except ValueError:
        return False


def _usage(metrics: JSON) -> dict[str, int | float | str]:
    # The set of metrics is open by documentation: official models have units of their own.
    if not isinstance(metrics, dict):
        return {}
    return {
        safe_text(name, 60): safe_text(value, 60) if isinstance(value, str) else value
        for name, value in list(metrics.items())[:_MAX_METRICS]
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }


def _wait(reply: Reply, body: Mapping[str, JSON] | None) -> float | None:
    said = retry_after(reply.headers.get("retry-after"))
    if said is None and reply.status == TOO_MANY and body is not None:
        found = _RESETS_IN.search(str(body.get("detail")))
        return retry_after(found.group(1)) if found else None
    return said
