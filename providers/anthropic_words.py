"""What Anthropic's answers mean. Pure: a reply goes in, an outcome or an error comes out.

Sources: the Messages API reference (stop reasons, error types) and the Python client (error codes under
`details`).
"""

import re
from collections.abc import Mapping

from providers.contract import JSON, Failed, Succeeded
from providers.errors import ProviderError, Remedy
from providers.http import Reply
from providers.replies import SERVER_ERROR, TIMEOUTS, malformed, rejected, unsettled
from providers.text import MAX_RETRY_AFTER, retry_after, safe_text

TOO_LARGE = 413
_MAX_USAGE = 32
_CREDITS = ("provider_credits_exhausted", Remedy.OPERATOR)
_THROTTLED = ("rate_limited", Remedy.THROTTLED)
_OVERLOADED = ("provider_overloaded", Remedy.THROTTLED)
_INVALID = ("request_invalid", Remedy.CUSTOMER)

# A code in the body says more than the type, and the type more than the status.
_BY_CODE: Mapping[str, tuple[str, Remedy]] = {
    "contract_spend_limit_reached": _CREDITS,
    "enforced_spend_limit_reached": _CREDITS,
    "organization_on_hold": ("provider_account_blocked", Remedy.OPERATOR),
    "ramp_limit_exceeded": _THROTTLED,
}
_BY_TYPE: Mapping[str, tuple[str, Remedy]] = {
    "invalid_request_error": _INVALID,
    "authentication_error": ("provider_auth_invalid", Remedy.OPERATOR),
    "billing_error": _CREDITS,
    "permission_error": ("provider_forbidden", Remedy.OPERATOR),
    "not_found_error": ("model_not_found", Remedy.CUSTOMER),
    "conflict_error": ("request_conflict", Remedy.RETRY),
    "request_too_large": ("request_too_large", Remedy.CUSTOMER),
    "rate_limit_error": _THROTTLED,
    "overloaded_error": _OVERLOADED,
}
_BY_STATUS: Mapping[int, tuple[str, Remedy]] = {
    400: _INVALID,
    401: _BY_TYPE["authentication_error"],
    402: _CREDITS,
    403: _BY_TYPE["permission_error"],
    404: _BY_TYPE["not_found_error"],
    409: _BY_TYPE["conflict_error"],
    TOO_LARGE: _BY_TYPE["request_too_large"],
    429: _THROTTLED,
    503: _OVERLOADED,
    529: _OVERLOADED,
}
# Their work may have been done, and billed, before these were said.
_OPEN_TYPES = frozenset({"api_error", "timeout_error"})
# The one hint taken from a message's text, which may change: all it can do is keep a blame off the customer.
_LOW_CREDIT = re.compile(r"(?i)credit balance")


def reading(reply: Reply) -> Succeeded | Failed:
    """The outcome of a 2xx reply.

    `end_turn` and `stop_sequence` succeed with the text blocks joined; `tool_use` with the content blocks
    as value, and the text if there is any. `refusal` fails as `content_policy`. An answer that was cut
    (`max_tokens`, `pause_turn`, a full context window) is incomplete by the API's reference and fails as
    `output_truncated`; so does one that stopped for a reason not known here, as `output_unrecognised`.
    Raises ProviderError (AMBIGUOUS, `malformed_response`) for anything that is not a message.
    """
    body = reply.json()
    if not isinstance(body, dict) or body.get("type") != "message":
        raise malformed("not a message", reply.status)
    content, reason, message_id = body.get("content"), body.get("stop_reason"), body.get("id")
    if not (isinstance(content, list) and all(isinstance(block, dict) for block in content)):
        raise malformed("a message without content blocks", reply.status)
    if not (isinstance(reason, str) and isinstance(message_id, str) and message_id):
        raise malformed("a message without an id or a stop reason", reply.status)
    usage, named = _usage(body.get("usage")), safe_text(message_id, 100)
    text = "".join(b["text"] for b in content if b.get("type") == "text" and isinstance(b.get("text"), str))
    if reason == "tool_use" and any(block.get("type") == "tool_use" for block in content):
        return Succeeded(text=text or None, value=content, usage=usage, provider_id=named)
    if reason in ("end_turn", "stop_sequence") and text:
        return Succeeded(text=text, usage=usage, provider_id=named)
    code, why = _failure(reason, body)
    return Failed(code, why, usage=usage, provider_id=named)


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not 2xx.

    REJECTED where Anthropic says in its own error body that it did not take the request, and for 413, which
    its edge answers before anything is forwarded. AMBIGUOUS for `api_error`, `timeout_error`, timeout
    statuses and whatever somebody on the way may have written.
    """
    error, wait = _own_error(reply), _wait(reply)
    if error is None and reply.status != TOO_LARGE:
        return unsettled(reply, wait=wait)
    words, verdict = _words(error or {}, reply), _verdict(error or {}, reply.status)
    if verdict is None:
        return unsettled(reply, wait=wait, words=words)
    return rejected(reply, verdict, words, wait=wait)


def _verdict(error: Mapping[str, JSON], status: int) -> tuple[str, Remedy] | None:
    """Code and remedy of a refusal; None when the error leaves open what became of the request."""
    details, kind = error.get("details"), error.get("type")
    code = details.get("error_code") if isinstance(details, dict) else None
    if isinstance(code, str) and code in _BY_CODE:
        return _BY_CODE[code]
    if isinstance(kind, str) and kind in _BY_TYPE:
        low = kind == "invalid_request_error" and _LOW_CREDIT.search(str(error.get("message")))
        return _CREDITS if low else _BY_TYPE[kind]
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if kind in _OPEN_TYPES or status in TIMEOUTS or not 400 <= status < SERVER_ERROR:  # noqa: PLR2004
        return None
    return "request_refused", Remedy.NOBODY


def _own_error(reply: Reply) -> Mapping[str, JSON] | None:
    body = reply.json()
    error = body.get("error") if isinstance(body, dict) and body.get("type") == "error" else None
    return error if isinstance(error, dict) and isinstance(error.get("type"), str) else None


def _failure(reason: str, body: Mapping[str, JSON]) -> tuple[str, str]:
    if reason == "refusal":
        details = body.get("stop_details")
        why = details.get("explanation") if isinstance(details, dict) else None
        return "content_policy", safe_text(why or "the model refused")
    if reason in ("max_tokens", "model_context_window_exceeded", "pause_turn"):
        return "output_truncated", f"the answer is incomplete: {reason}"
    if reason in ("end_turn", "stop_sequence", "tool_use"):
        return "output_missing", f"the answer is empty: {reason}"
    return "output_unrecognised", safe_text(f"the answer stopped for an unknown reason: {reason}", 120)


def _usage(usage: JSON) -> dict[str, int | float | str]:
    """Numbers and short words, with a dot into nested groups. Total input is the sum of the three input
    counts.
    """
    flat: dict[str, int | float | str] = {}
    for name, value in usage.items() if isinstance(usage, dict) else ():
        group = value.items() if isinstance(value, dict) else [("", value)]
        for inner, item in group:
            if isinstance(item, int | float | str) and not isinstance(item, bool) and len(flat) < _MAX_USAGE:
                key = safe_text(f"{name}.{inner}" if inner else name, 60)
                flat[key] = safe_text(item, 60) if isinstance(item, str) else item
    return flat


def _words(error: Mapping[str, JSON], reply: Reply) -> str:
    request_id = reply.headers.get("request-id", "")
    said = f"{error.get('type') or f'HTTP {reply.status}'}: {error.get('message') or 'no message'}"
    return safe_text(f"{said} (request {request_id})" if request_id else said)


def _wait(reply: Reply) -> float | None:
    milliseconds = retry_after(reply.headers.get("retry-after-ms"))
    if milliseconds is not None and reply.headers["retry-after-ms"].strip().isdigit():
        return min(int(reply.headers["retry-after-ms"]) / 1000, MAX_RETRY_AFTER)
    return retry_after(reply.headers.get("retry-after"))
