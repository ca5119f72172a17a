"""Anthropic's answers, one by one."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.anthropic_words import reading, refusal
from providers.contract import Failed, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply

TEXT = {"type": "text", "text": "Hi"}
TOOL = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": 1}}
USAGE = {"input_tokens": 12, "output_tokens": 6, "service_tier": "standard"}


def message(**changes):
    whole = {"id": "msg_1", "type": "message", "content": [TEXT], "stop_reason": "end_turn", "usage": USAGE}
    return Reply(200, httpx.Headers(), json.dumps({**whole, **changes}).encode())


def done(**what):
    return Succeeded(usage=USAGE, provider_id="msg_1", **what)


def failed(code, words):
    return Failed(code, words, usage=USAGE, provider_id="msg_1")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, done(text="Hi")),
        ({"stop_reason": "stop_sequence"}, done(text="Hi")),
        ({"content": [{"type": "thinking", "thinking": "…"}, TEXT, TEXT]}, done(text="HiHi")),
        ({"content": [{"type": "later_kind", "text": "no"}, TEXT]}, done(text="Hi")),
        ({"stop_reason": "tool_use", "content": [TEXT, TOOL]}, done(text="Hi", value=[TEXT, TOOL])),
        ({"stop_reason": "tool_use", "content": [TOOL]}, done(value=[TOOL])),
        ({"stop_reason": "tool_use"}, failed("output_missing", "the answer is empty: tool_use")),
        ({"content": []}, failed("output_missing", "the answer is empty: end_turn")),
        ({"stop_reason": "max_tokens"}, failed("output_truncated", "the answer is incomplete: max_tokens")),
        ({"stop_reason": "pause_turn"}, failed("output_truncated", "the answer is incomplete: pause_turn")),
        (
            {"stop_reason": "model_context_window_exceeded"},
            failed("output_truncated", "the answer is incomplete: model_context_window_exceeded"),
        ),
        ({"stop_reason": "refusal", "content": []}, failed("content_policy", "the model refused")),
        (
            {"stop_reason": "refusal", "stop_details": {"type": "refusal", "explanation": "No."}},
            failed("content_policy", "No."),
        ),
        (
            {"stop_reason": "bored"},
            failed("output_unrecognised", "the answer stopped for an unknown reason: bored"),
        ),
    ],
)
def test_a_message_is_read(changes, expected):
    assert reading(message(**changes)) == expected


def test_usage_is_flat_and_holds_no_nothing():
    usage = {"input_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2}, "x": None, "y": True, "z": [1]}
    assert reading(message(usage=usage)).usage == {"input_tokens": 1, "cache_creation.ephemeral_5m_input_tokens": 2}
    assert reading(message(usage=None)).usage == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "error"},
        {"type": None},
        {"content": None},
        {"content": "Hi"},
        {"content": ["Hi"]},
        {"stop_reason": None},
        {"stop_reason": 4},
        {"id": None},
        {"id": ""},
    ],
)
def test_a_message_with_a_hole_is_ambiguous(changes):
    with pytest.raises(ProviderError) as caught:
        reading(message(**changes))
    assert (caught.value.code, caught.value.fate) == ("malformed_response", Fate.AMBIGUOUS)


def error(status, kind="x_error", message_text="words", *, code=None, headers=None):
    details = {"details": {"error_code": code}} if code else {}
    body = {"type": "error", "error": {"type": kind, "message": message_text, **details}}
    return refusal(Reply(status, httpx.Headers(headers or {}), json.dumps(body).encode()))


@pytest.mark.parametrize(
    ("status", "kind", "code", "expected", "remedy"),
    [
        (400, "invalid_request_error", None, "request_invalid", Remedy.CUSTOMER),
        (400, "invalid_request_error", "organization_on_hold", "provider_account_blocked", Remedy.OPERATOR),
        (400, "invalid_request_error", "enforced_spend_limit_reached", "provider_credits_exhausted", Remedy.OPERATOR),
        (401, "authentication_error", None, "provider_auth_invalid", Remedy.OPERATOR),
        (402, "billing_error", None, "provider_credits_exhausted", Remedy.OPERATOR),
        (403, "permission_error", None, "provider_forbidden", Remedy.OPERATOR),
        (404, "not_found_error", None, "model_not_found", Remedy.CUSTOMER),
        (409, "conflict_error", None, "request_conflict", Remedy.RETRY),
        (413, "request_too_large", None, "request_too_large", Remedy.CUSTOMER),
        (429, "rate_limit_error", None, "rate_limited", Remedy.THROTTLED),
        (429, "rate_limit_error", "contract_spend_limit_reached", "provider_credits_exhausted", Remedy.OPERATOR),
        (429, "rate_limit_error", "enforced_spend_limit_reached", "provider_credits_exhausted", Remedy.OPERATOR),
        (429, "rate_limit_error", "ramp_limit_exceeded", "rate_limited", Remedy.THROTTLED),
        (429, "rate_limit_error", "never_heard_of", "rate_limited", Remedy.THROTTLED),
        (529, "overloaded_error", None, "provider_overloaded", Remedy.THROTTLED),
        (503, "service_unavailable", None, "provider_overloaded", Remedy.THROTTLED),
        (503, "api_error", None, "provider_overloaded", Remedy.THROTTLED),
        (500, "overloaded_error", None, "provider_overloaded", Remedy.THROTTLED),
        (418, "teapot_error", None, "request_refused", Remedy.NOBODY),
    ],
)
def test_its_own_refusal_is_rejected(status, kind, code, expected, remedy):
    found = error(status, kind, code=code)
    assert (found.code, found.fate, found.remedy) == (expected, Fate.REJECTED, remedy)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, "api_error"),
        (504, "timeout_error"),
        (502, "api_error"),
        (500, "new_error"),
        (408, "x_error"),
        (499, "x"),
        (302, "x"),
    ],
)
def test_work_may_have_been_done_before_these(status, kind):
    assert error(status, kind).fate is Fate.AMBIGUOUS


@pytest.mark.parametrize("status", [302, 400, 401, 404, 408, 429, 499, 500, 502, 503, 504, 529])
@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'{"error": "x"}', b'{"type":"error","error":{}}', b"\xff"])
def test_somebody_elses_words_settle_nothing(status, body):
    found = refusal(Reply(status, httpx.Headers(), body))
    assert found.fate is Fate.AMBIGUOUS
    assert found.remedy is (Remedy.THROTTLED if status in (429, 529) else Remedy.RETRY)


def test_too_large_is_the_edges_word_in_any_form():
    found = refusal(Reply(413, httpx.Headers(), b"<html>413</html>"))
    assert (found.code, found.fate, found.remedy) == ("request_too_large", Fate.REJECTED, Remedy.CUSTOMER)


def test_our_empty_account_is_not_the_customers_fault():
    found = error(400, "invalid_request_error", "Your credit balance is too low to access the API.")
    assert (found.code, found.remedy) == ("provider_credits_exhausted", Remedy.OPERATOR)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after-ms": "1500", "retry-after": "12"}, 1.5),
        ({"retry-after-ms": "99999999"}, 3600.0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
    ],
)
def test_throttling_says_for_how_long(headers, seconds):
    assert error(429, "rate_limit_error", headers=headers).retry_after == seconds


def test_the_request_id_is_kept_for_support():
    assert "req_123" in error(400, "invalid_request_error", headers={"request-id": "req_123"}).message


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_never_a_success(body):
    with pytest.raises(ProviderError):
        reading(Reply(200, httpx.Headers(), body))


@given(st.integers(300, 599), st.binary(max_size=400))
def test_arbitrary_bytes_are_never_a_rejection(status, body):
    found = refusal(Reply(status, httpx.Headers(), body))
    assert found.fate is Fate.AMBIGUOUS or status == 413


PARTS = (
    st.none()
    | st.integers()
    | st.text(max_size=20)
    | st.lists(st.dictionaries(st.sampled_from(["type", "text"]), st.text(max_size=9)), max_size=3)
)


@given(st.fixed_dictionaries(dict.fromkeys(("id", "content", "stop_reason", "usage", "stop_details"), PARTS)))
def test_a_message_of_any_parts_is_an_outcome_or_ambiguous(parts):
    try:
        found = reading(message(**parts))
    except ProviderError as caught:
        found = caught
    if isinstance(found, Succeeded):
        assert found.text or found.value
    else:
        assert isinstance(found, Failed) or found.fate is Fate.AMBIGUOUS
