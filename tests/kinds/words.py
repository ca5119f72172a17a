"""What each vendor says when it refuses, fails, throttles, does not know a task, or makes up a new word: as its own
documentation writes it, and with the code that the row must show for it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tests.kinds.operations import Operation

Do = Mapping[str, Any]
PAGE = "<html>bad gateway</html>"


def reply(status: int, body: Any = None, **headers: str) -> Do:
    return {"reply": {"status": status, "body": body, "headers": {k.replace("_", "-"): v for k, v in headers.items()}}}


@dataclass(frozen=True)
class Vendor:
    """`refusals` end a job that was never taken, by the code it ends with; `operator` ones end none. `again` is tried
    again, at the cost of attempts."""

    refusals: Mapping[str, Do]
    operator: Mapping[str, Do]
    throttled: Mapping[str, Do]
    error_500: Do
    again: Mapping[str, Do]
    unknown_task: Do | None = None


def _replicate(status: int, words: str = "no") -> Do:
    return reply(status, {"title": "It says", "detail": words, "status": status})


def _eleven(status: int, word: str) -> Do:
    return reply(status, {"detail": {"status": word, "message": f"it says {word}"}})


def _claude(status: int, kind: str, **details: str) -> Do:
    error = {"type": kind, "message": "it says so", **({"details": details} if details else {})}
    return reply(status, {"type": "error", "error": error})


def _kie(code: int, words: str = "it says so", *, status: int = 200) -> Do:
    return reply(status, {"code": code, "msg": words, "data": None})


def _chat(status: int, kind: str, words: str = "it says so") -> Do:
    return reply(status, {"error": {"type": kind, "message": words}})


def _routed(status: int, words: str = "it says so", **more: Any) -> Do:
    return reply(status, {"error": {"code": status, "message": words, **more}})


def _heygen(status: int, code: str, words: str = "it says so") -> Do:
    return reply(status, {"error": {"code": code, "message": words}})


_ELEVEN = Vendor(
    refusals={
        "request_invalid": _eleven(400, "invalid_parameters"),
        "request_invalid listed": reply(422, {"detail": [{"loc": ["body", "text"], "msg": "Field required", "type": "m"}]}),
        "content_policy": _eleven(403, "content_policy_violation"),
        "voice_not_found": _eleven(404, "voice_not_found"),
        "model_not_found": _eleven(404, "model_gone"),
        "request_too_large": _eleven(413, "too_large"),
        "request_refused": _eleven(418, "teapot"),
    },
    operator={
        "provider_auth_invalid": _eleven(401, "invalid_api_key"),
        "provider_credits_exhausted": _eleven(401, "quota_exceeded"),
        "provider_account_blocked": _eleven(401, "detected_unusual_activity"),
        "provider_forbidden": _eleven(403, "missing_permissions"),
    },
    throttled={
        "rate_limited": _eleven(429, "too_many_concurrent_requests"),
        "provider_overloaded": _eleven(429, "system_busy"),
    },
    again={},
    error_500=_eleven(500, "internal_error"),
    unknown_task=_eleven(404, "not_found"),
)  # fmt: skip

_CLAUDE = Vendor(
    refusals={
        "request_invalid": _claude(400, "invalid_request_error"),
        "model_not_found": _claude(404, "not_found_error"),
        "request_too_large": _claude(413, "request_too_large"),
        "request_too_large at the edge": reply(413, PAGE),
        "request_refused": _claude(418, "teapot_error"),
    },
    operator={
        "provider_auth_invalid": _claude(401, "authentication_error"),
        "provider_credits_exhausted": _claude(402, "billing_error"),
        "provider_forbidden": _claude(403, "permission_error"),
        "provider_account_blocked": _claude(403, "permission_error", error_code="organization_on_hold"),
    },
    throttled={
        "rate_limited": _claude(429, "rate_limit_error"),
        "provider_overloaded": _claude(529, "overloaded_error"),
    },
    again={"request_conflict": _claude(409, "conflict_error")},
    error_500=_claude(500, "api_error"),
)

_KIE = Vendor(
    refusals={
        "request_invalid": _kie(422),
        "request_invalid by status": _kie(400, status=400),
        "model_not_found": _kie(404),
        "content_policy": _kie(413),
        "content_policy by its words": _kie(400, "Your prompt was flagged as violating content policies"),
        "input_unreachable": _kie(451),
        "task_failed": _kie(501),
        "task_failed and paid back": _kie(531),
        "provider_feature_off": _kie(505),
        "request_refused": _kie(418),
    },
    operator={
        "provider_auth_invalid": _kie(401),
        "provider_credits_exhausted": _kie(402),
        "provider_credits_exhausted of the sub-key": _kie(433),
        "provider_forbidden": _kie(403),
    },
    throttled={"rate_limited": _kie(429), "provider_maintenance": _kie(455), "rate_limited by status": reply(429, PAGE)},
    again={"request_conflict": _kie(409)},
    error_500=_kie(500, "Server exception, please try again later"),
    unknown_task=_kie(422, "recordInfo is null"),
)  # fmt: skip

_KIE_CHAT = Vendor(
    refusals={
        "request_invalid": _chat(400, "invalid_request_error"),
        "content_policy": _chat(400, "invalid_request_error", "This content was flagged as prohibited"),
        "model_not_found": _chat(404, "not_found_error"),
        "request_too_large": _chat(413, "request_too_large"),
        "request_invalid inside a success": _kie(422),
        "request_refused": _chat(418, "teapot_error"),
    },
    operator={
        "provider_auth_invalid": _chat(401, "authentication_error"),
        "provider_credits_exhausted": _kie(402),
        "provider_forbidden": _chat(403, "permission_error"),
    },
    throttled={"rate_limited": _chat(429, "rate_limit_error"), "provider_overloaded": _chat(529, "overloaded_error")},
    again={},
    error_500=_chat(500, "api_error"),
)

_REPLICATE = Vendor(
    refusals={
        "request_invalid": _replicate(422),
        "request_invalid 400": _replicate(400),
        "model_not_found": _replicate(404),
        "request_too_large": _replicate(413),
        "request_refused": _replicate(418),
    },
    operator={
        "provider_auth_invalid": _replicate(401),
        "provider_credits_exhausted": _replicate(402),
        "provider_forbidden": _replicate(403),
    },
    throttled={"rate_limited": _replicate(429, "Request was throttled. Your rate limit resets in ~3s.")},
    again={},
    error_500=_replicate(500),
    unknown_task=_replicate(404, "Not found"),
)

_OPENROUTER = Vendor(
    refusals={
        "request_invalid": _routed(400),
        "request_invalid 422": _routed(422),
        "model_not_found": _routed(404),
        "request_too_large": _routed(413),
        "content_policy": _routed(403, "no", metadata={"reasons": ["violence"]}),
        "content_policy in a success": reply(202, {"error": {"code": 400, "message": "flagged by moderation"}}),
        "request_refused": _routed(418),
    },
    operator={
        "provider_auth_invalid": _routed(401),
        "provider_credits_exhausted": _routed(402),
        "provider_forbidden": _routed(403),
    },
    throttled={"rate_limited": _routed(429)},
    again={},
    error_500=_routed(502),
    unknown_task=_routed(404),
)

_HEYGEN = Vendor(
    refusals={
        "request_invalid": _heygen(400, "invalid_parameter"),
        "request_invalid in a success": _heygen(200, "validation_error"),
        "content_policy": _heygen(400, "moderation"),
        "content_policy by its words": _heygen(400, "invalid_parameter", "violates our content policy"),
        "model_not_found": _heygen(404, "avatar_not_found"),
        "provider_forbidden": _heygen(403, "resource_access_denied"),
        "request_too_large": _heygen(413, "payload_too_large"),
        "request_refused": _heygen(418, "teapot"),
    },
    operator={
        "provider_auth_invalid": _heygen(401, "unauthorized"),
        "provider_credits_exhausted": _heygen(402, "insufficient_credit"),
        "provider_forbidden": _heygen(403, "forbidden"),
    },
    throttled={"rate_limited": _heygen(429, "rate_limit_exceeded"), "rate_limited by quota": _heygen(429, "quota_exceeded")},
    again={"request_conflict": _heygen(409, "conflict")},
    error_500=_heygen(500, "internal_error"),
    unknown_task=_heygen(404, "video_not_found"),
)  # fmt: skip

_VENDORS = {
    "replicate": _REPLICATE, "elevenlabs": _ELEVEN, "anthropic": _CLAUDE, "kie": _KIE, "openrouter": _OPENROUTER,
    "heygen": _HEYGEN,
}  # fmt: skip


def vendor_of(operation: Operation) -> Vendor:
    return _KIE_CHAT if operation.kind == "kie-llm" else _VENDORS[operation.vendor]


def ends(operation: Operation) -> Iterator[tuple[str, str, Do]]:
    """Each way in which a task that was taken can end badly, by the vendor's own word: name, our code, the script."""
    kind = operation.kind
    if operation.answers and kind in ("anthropic-sync", "kie-llm"):
        yield "refuses", "content_policy", {"stop_reason": "refusal"}
        yield "is cut", "output_truncated", {"stop_reason": "max_tokens"}
        yield "stops for a new reason", "output_unrecognised", {"stop_reason": "weather"}
        yield "is empty", "output_missing", {"stop_reason": "end_turn", "text": ""}
    if not operation.lives or operation.answers:
        return
    yield "fails", "task_failed", {"fail": "CUDA out of memory"}
    if operation.vendor == "kie":
        yield from _kie_ends(operation)
    elif operation.vendor == "replicate":
        yield "fails for its content", "content_policy", {"fail": "NSFW content detected. (E005)"}
        yield "is given up before it started", "task_cancelled", {"aborted": True}
        yield "shows no output", "output_missing", {"succeed_without_output": True, "output": None}
        if operation.name != "json":
            yield "made something else", "result_wrong_type", _something_else(operation)
    elif operation.vendor == "elevenlabs":
        yield "fails for its content", "content_policy", {"fail": "This violates our content policy"}
    elif operation.vendor == "openrouter":
        yield "fails for its content", "content_policy", {"fail": "Content was flagged by the provider"}
        yield "is cancelled there", "task_cancelled", {"stopped": True}
        yield "expires there", "task_cancelled", {"aborted": True}
        yield "names no file", "output_missing", {"succeed_without_output": True}
    elif operation.vendor == "heygen":
        yield "fails for its content", "content_policy", {"fail": "moderation: this is prohibited"}
        yield "shows no link", "output_missing", {"succeed_without_output": True}


def _kie_ends(operation: Operation) -> Iterator[tuple[str, str, Do]]:
    yield "fails for its content", "content_policy", {"fail": "500: Your prompt was flagged as sensitive"}
    yield "fails for somebody's work", "content_policy", {"fail": "413: matched an existing recording"}
    yield "fails for a parameter", "request_invalid", {"fail": "422: duration is not within the range"}
    yield "fails for its input", "input_unreachable", {"fail": "451: could not fetch the image"}
    if operation.name == "json":
        yield "shows nothing", "output_missing", {"output": {"resultObject": {}}}
    elif operation.name == "text":
        yield "made something else", "result_wrong_type", {"output": {"resultObject": {"n": 1}}}
    else:
        yield "shows no result", "output_missing", {"succeed_without_output": True}
    if operation.kind in ("kie-standard", "kie-lip-sync") and not operation.script:
        yield "made something else", "result_wrong_type", {"output": {"resultObject": {"text": "no file"}}}


def _something_else(operation: Operation) -> Do:
    if operation.kind == "replicate-training":
        return {"output": {"version": "somebody/else:" + "b" * 64}}
    return {"output": {"a": 1} if operation.name == "text" else 7}


def strange_word(operation: Operation) -> str | None:
    """A status that the vendor's documentation does not know, where there is a status at all."""
    if not operation.lives or operation.answers:
        return None
    return "9" if operation.kind in ("kie-veo", "kie-kontext", "kie-luma") else "pondering"
