"""What the answers of KIE's chat models mean. Pure: a reply goes in, an outcome or an error comes out.

Sources: KIE's documentation of its chat models; Claude's answer is Anthropic's message, see
`providers.anthropic_words`.
"""

from collections.abc import Mapping
from dataclasses import replace

from providers import anthropic_words
from providers.contract import JSON, Failed, Succeeded
from providers.errors import ProviderError, Remedy
from providers.http import Reply
from providers.kie_failures import CONTENT
from providers.kie_wire import envelope, refusal, whole
from providers.replies import SERVER_ERROR, TIMEOUTS, is_success, malformed, rejected, unsettled
from providers.text import retry_after, safe_text

_MAX_USAGE = 32
_MIN_ERROR = 400
_INVALID = ("request_invalid", Remedy.CUSTOMER)
_AUTH = ("provider_auth_invalid", Remedy.OPERATOR)
_CREDITS = ("provider_credits_exhausted", Remedy.OPERATOR)
_FORBIDDEN = ("provider_forbidden", Remedy.OPERATOR)
_NO_MODEL = ("model_not_found", Remedy.CUSTOMER)
_TOO_LARGE = ("request_too_large", Remedy.CUSTOMER)
_THROTTLED = ("rate_limited", Remedy.THROTTLED)
_OVERLOADED = ("provider_overloaded", Remedy.THROTTLED)

# Both vendors' words for their errors: KIE passes them on.
_BY_TYPE: Mapping[str, tuple[str, Remedy]] = {
    "invalid_request_error": _INVALID,
    "authentication_error": _AUTH,
    "billing_error": _CREDITS,
    "insufficient_quota": _CREDITS,
    "permission_error": _FORBIDDEN,
    "not_found_error": _NO_MODEL,
    "request_too_large": _TOO_LARGE,
    "rate_limit_error": _THROTTLED,
    "overloaded_error": _OVERLOADED,
}
_BY_STATUS: Mapping[int, tuple[str, Remedy]] = {
    400: _INVALID,
    401: _AUTH,
    402: _CREDITS,
    403: _FORBIDDEN,
    404: _NO_MODEL,
    413: _TOO_LARGE,
    422: _INVALID,
    429: _THROTTLED,
    529: _OVERLOADED,
}


def reading(reply: Reply) -> Succeeded | Failed:
    """The outcome of a chat, whatever its status.

    A message of Claude's is read as `providers.anthropic_words.reading` does; a chat completion succeeds with
    its text for `stop`, with the message as value for `tool_calls`, and fails as `output_truncated` for
    `length`, `content_policy` for `content_filter`. Raises ProviderError: REJECTED where KIE or the model says
    so, at whatever status, inside a 200, too; AMBIGUOUS for everything that settles nothing.
    """
    body, said = reply.json(), envelope(reply)
    if isinstance(body, dict) and isinstance(body.get("error"), dict):
        raise _refused(reply, body["error"])
    if (said is not None and said.bad is not None) or not is_success(reply):
        raise refusal(reply)
    if not isinstance(body, dict):
        raise malformed("not a chat's answer", reply.status)
    found = anthropic_words.reading(reply) if body.get("type") == "message" else _completion(body, reply.status)
    spent = body.get("credits_consumed")
    if not isinstance(spent, int | float) or isinstance(spent, bool):
        return found
    return replace(found, usage={**found.usage, "credits": spent})


def _completion(body: Mapping[str, JSON], status: int) -> Succeeded | Failed:
    choices, answer_id = body.get("choices"), body.get("id")
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    if not (isinstance(message, dict) and isinstance(reason, str) and isinstance(answer_id, str) and answer_id):
        raise malformed("a completion without an id, a message or a reason to have stopped", status)
    usage, named = _usage(body.get("usage")), safe_text(answer_id, 100)
    content = message.get("content")
    text = content if isinstance(content, str) and content else None
    if reason == "tool_calls" and isinstance(message.get("tool_calls"), list) and message["tool_calls"]:
        return Succeeded(text=text, value=message, usage=usage, provider_id=named)
    if reason == "stop" and text:
        return Succeeded(text=text, usage=usage, provider_id=named)
    code, why = _failure(reason)
    return Failed(code, why, usage=usage, provider_id=named)


def _failure(reason: str) -> tuple[str, str]:
    if reason == "content_filter":
        return "content_policy", "the model's filter held the answer back"
    if reason == "length":
        return "output_truncated", "the answer is incomplete: length"
    if reason in ("stop", "tool_calls"):
        return "output_missing", f"the answer is empty: {reason}"
    return "output_unrecognised", safe_text(f"the answer stopped for an unknown reason: {reason}", 120)


def _refused(reply: Reply, error: Mapping[str, JSON]) -> ProviderError:
    wait = retry_after(reply.headers.get("retry-after"))
    words = safe_text(f"{error.get('type') or f'HTTP {reply.status}'}: {error.get('message') or 'no message'}")
    verdict = _verdict(error, reply.status, words)
    return unsettled(reply, wait=wait, words=words) if verdict is None else rejected(reply, verdict, words, wait=wait)


def _verdict(error: Mapping[str, JSON], status: int, words: str) -> tuple[str, Remedy] | None:
    """Code and remedy of a refusal; None when the error leaves open what became of the request."""
    number = whole(error.get("code"))
    number = status if number is None else number
    told = (_BY_TYPE.get(str(error.get(name))) for name in ("code", "type"))
    verdict = next(filter(None, told), None) or _BY_STATUS.get(number)
    if verdict is _INVALID and CONTENT.search(words):
        return "content_policy", Remedy.CUSTOMER
    if verdict is not None or number in TIMEOUTS or not _MIN_ERROR <= number < SERVER_ERROR:
        return verdict
    return "request_refused", Remedy.NOBODY


def _usage(usage: JSON) -> dict[str, int | float | str]:
    """The counts, with a dot into nested groups."""
    flat: dict[str, int | float | str] = {}
    for name, value in usage.items() if isinstance(usage, dict) else ():
        group = value.items() if isinstance(value, dict) else [("", value)]
        for inner, item in group:
            if isinstance(item, int | float) and not isinstance(item, bool) and len(flat) < _MAX_USAGE:
                flat[safe_text(f"{name}.{inner}" if inner else name, 60)] = item
    return flat
