"""What ElevenLabs's refusals mean. Pure: a reply goes in, an error comes out.

Sources: the error pages of ElevenLabs's API documentation and its Python client. The word in `detail` says more than
the HTTP status: a 401 may be an empty account, and there are two kinds of 429.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from providers.contract import JSON
from providers.errors import ProviderError, Remedy
from providers.http import Reply
from providers.replies import SERVER_ERROR, TIMEOUTS, rejected, unsettled
from providers.text import MAX_RETRY_AFTER, retry_after, safe_text

CONFLICT = 409
NOT_FOUND = frozenset({404, 410})

_FORBIDDEN = ("provider_forbidden", Remedy.OPERATOR)
_CREDITS = ("provider_credits_exhausted", Remedy.OPERATOR)
_NO_VOICE = ("voice_not_found", Remedy.CUSTOMER)
_INVALID = ("request_invalid", Remedy.CUSTOMER)

_BY_WORD: Mapping[str, tuple[str, Remedy]] = {
    "invalid_api_key": ("provider_auth_invalid", Remedy.OPERATOR),
    "missing_permissions": _FORBIDDEN,
    "quota_exceeded": _CREDITS,
    "voice_not_found": _NO_VOICE,
    "max_character_limit_exceeded": ("request_too_large", Remedy.CUSTOMER),
    # Of the account's own plan: it passes when calls of ours have ended.
    "too_many_concurrent_requests": ("rate_limited", Remedy.THROTTLED),
    # Of the whole service: it passes when others have ended.
    "system_busy": ("provider_overloaded", Remedy.THROTTLED),
}
# The exact words are not promised, only what they are about.
_BY_PART: tuple[tuple[re.Pattern[str], tuple[str, Remedy]], ...] = (
    (re.compile(r"unusual_activity"), ("provider_account_blocked", Remedy.OPERATOR)),
    (re.compile(r"quota|limit_reached"), _CREDITS),
    (re.compile(r"policy|moderat|prohibit|safety|voice.*verif"), ("content_policy", Remedy.CUSTOMER)),
    (re.compile(r"voice.*not_found|voice_does_not_exist"), _NO_VOICE),
)
_BY_STATUS: Mapping[int, tuple[str, Remedy]] = {
    400: _INVALID,
    401: ("provider_auth_invalid", Remedy.OPERATOR),
    402: _FORBIDDEN,
    403: _FORBIDDEN,
    404: ("model_not_found", Remedy.CUSTOMER),
    413: ("request_too_large", Remedy.CUSTOMER),
    422: _INVALID,
    429: ("rate_limited", Remedy.THROTTLED),
}


@dataclass(frozen=True, slots=True)
class Detail:
    """What an error body says: `words` are its own codes, lower case, the most telling first."""

    words: tuple[str, ...]
    message: str


def detail_of(reply: Reply) -> Detail | None:
    """The error as ElevenLabs writes it (an object, a list or a text under `detail`), or None when it is not."""
    body = reply.json()
    detail = body.get("detail") if isinstance(body, dict) else None
    if isinstance(detail, dict):
        words = tuple(detail[name].lower() for name in ("status", "code", "type") if isinstance(detail.get(name), str))
        message = detail.get("message")
        return Detail(words, safe_text(message or ", ".join(words))) if words or isinstance(message, str) else None
    if isinstance(detail, list):
        faults = [_fault(item) for item in detail if isinstance(item, dict) and isinstance(item.get("msg"), str)]
        return Detail((), safe_text("; ".join(faults))) if faults else None
    return Detail((), safe_text(detail)) if isinstance(detail, str) and detail else None


def refusal(reply: Reply) -> ProviderError:
    """The error for a reply that is not 2xx.

    REJECTED where ElevenLabs itself says, with 4xx and a body of its own, that it did not take the request.
    AMBIGUOUS for timeout statuses, every 5xx, what somebody on the way may have written, and 409: by the API's own
    declaration something is there already, which may be ours.
    """
    detail, wait = detail_of(reply), _wait(reply)
    if detail is None:
        return unsettled(reply, wait=wait)
    settled = 400 <= reply.status < SERVER_ERROR and reply.status not in TIMEOUTS  # noqa: PLR2004
    if not settled or reply.status == CONFLICT:
        return unsettled(reply, wait=wait, words=detail.message)
    return rejected(reply, verdict(detail, reply.status), detail.message, wait=wait)


def unknown(reply: Reply) -> bool:
    """Whether this answer to a GET or DELETE says, in ElevenLabs's words, that there is no such thing."""
    detail = detail_of(reply)
    if detail is None:
        return False
    return reply.status in NOT_FOUND or (400 <= reply.status < SERVER_ERROR and "voice_not_found" in detail.words)  # noqa: PLR2004


def verdict(detail: Detail, status: int) -> tuple[str, Remedy]:
    """Our code and the remedy. A known word first, then what a word is about, then the status."""
    for word in detail.words:
        if word in _BY_WORD:
            return _BY_WORD[word]
    for word in detail.words:
        for about, meaning in _BY_PART:
            if about.search(word):
                return meaning
    return _BY_STATUS.get(status, ("request_refused", Remedy.NOBODY))


def is_about_content(text: str) -> bool:
    """Whether a failed run's reason names the content. Words of the documentation; an unknown text is no blame."""
    return re.search(r"(?i)content polic|moderation|prohibited|terms of service", text) is not None


def _fault(item: Mapping[str, JSON]) -> str:
    loc = item.get("loc")
    place = ".".join(map(str, loc)) if isinstance(loc, list) else ""
    return f"{place}: {item['msg']}" if place else str(item["msg"])


def _wait(reply: Reply) -> float | None:
    milliseconds = reply.headers.get("retry-after-ms", "").strip()
    if milliseconds.isascii() and milliseconds.isdigit() and len(milliseconds) < 12:  # noqa: PLR2004
        return min(int(milliseconds) / 1000, MAX_RETRY_AFTER)
    return retry_after(reply.headers.get("retry-after"))
