"""KIE's chat models: every answer's meaning, and the wire against the sandbox."""

import asyncio
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Account, Failed, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply, make_client
from providers.kie_llm_words import reading
from providers.registry import get_kind

KIND = get_kind("kie-llm").provider
CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 50, "messages": [{"role": "user", "content": "hello there"}]}
GPT = {"model": "gpt-5-2", "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]}
GEMINI = {"model": "gemini-2.5-pro", "messages": [{"role": "user", "content": "hi"}], "reasoning_effort": "low"}
AMBIGUOUS, REJECTED = Fate.AMBIGUOUS, Fate.REJECTED


def reply(body, status=200, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, httpx.Headers(headers), content)


def message(**changes):
    whole = {"id": "msg_1", "type": "message", "content": [{"type": "text", "text": "Hi"}], "stop_reason": "end_turn"}
    return {**whole, "usage": {"input_tokens": 3}, "credits_consumed": 1.5, **changes}


def completion(content="Hi", reason="stop", **changes):
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **changes}, "finish_reason": reason}
    usage = {"prompt_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}, "total_tokens": None}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": usage}


SPENT = {"input_tokens": 3, "credits": 1.5}
COUNTED = {"prompt_tokens": 3, "completion_tokens_details.reasoning_tokens": 2}
CALLS = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (message(), Succeeded(text="Hi", usage=SPENT, provider_id="msg_1")),
        (
            message(stop_reason="max_tokens"),
            Failed("output_truncated", "the answer is incomplete: max_tokens", usage=SPENT, provider_id="msg_1"),
        ),
        (
            message(stop_reason="refusal", content=[]),
            Failed("content_policy", "the model refused", usage=SPENT, provider_id="msg_1"),
        ),
        (message(credits_consumed="1"), Succeeded(text="Hi", usage={"input_tokens": 3}, provider_id="msg_1")),
        (completion(), Succeeded(text="Hi", usage=COUNTED, provider_id="chatcmpl-1")),
        (
            completion(None, "tool_calls", tool_calls=CALLS),
            Succeeded(
                value={"role": "assistant", "content": None, "tool_calls": CALLS},
                usage=COUNTED,
                provider_id="chatcmpl-1",
            ),
        ),
        (
            completion("Hi", "length"),
            Failed("output_truncated", "the answer is incomplete: length", usage=COUNTED, provider_id="chatcmpl-1"),
        ),
        (
            completion(None, "content_filter"),
            Failed(
                "content_policy",
                "the model's filter held the answer back",
                usage=COUNTED,
                provider_id="chatcmpl-1",
            ),
        ),
        (
            completion(""),
            Failed("output_missing", "the answer is empty: stop", usage=COUNTED, provider_id="chatcmpl-1"),
        ),
        (
            completion("x", "tool_calls"),
            Failed("output_missing", "the answer is empty: tool_calls", usage=COUNTED, provider_id="chatcmpl-1"),
        ),
        (
            completion("x", "bored"),
            Failed(
                "output_unrecognised",
                "the answer stopped for an unknown reason: bored",
                usage=COUNTED,
                provider_id="chatcmpl-1",
            ),
        ),
    ],
)
def test_an_answer_is_read(body, expected):
    assert reading(reply(body)) == expected


def error(kind, words="words", **more):
    return {"error": {"type": kind, "message": words, **more}}


@pytest.mark.parametrize(
    ("status", "body", "code", "fate", "remedy"),
    [
        (200, {"code": 402, "msg": "no credits"}, "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
        (200, {"code": 455, "msg": "maintenance"}, "provider_maintenance", REJECTED, Remedy.THROTTLED),
        (200, {"code": 429, "msg": "slow down"}, "rate_limited", REJECTED, Remedy.THROTTLED),
        (200, {"code": 401, "message": "no"}, "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
        (200, {"code": 422, "msg": "bad"}, "request_invalid", REJECTED, Remedy.CUSTOMER),
        (200, {"code": 500, "msg": "oops"}, "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
        (200, {"code": 200, "msg": "success", "data": None}, "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (400, error("invalid_request_error"), "request_invalid", REJECTED, Remedy.CUSTOMER),
        (400, error("invalid_request_error", "it was flagged"), "content_policy", REJECTED, Remedy.CUSTOMER),
        (401, error("authentication_error"), "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
        (401, error(None), "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
        (429, error("x", code="insufficient_quota"), "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
        (429, error("rate_limit_error"), "rate_limited", REJECTED, Remedy.THROTTLED),
        (529, error("overloaded_error"), "provider_overloaded", REJECTED, Remedy.THROTTLED),
        (418, error("teapot"), "request_refused", REJECTED, Remedy.NOBODY),
        (200, error("not_found_error"), "model_not_found", REJECTED, Remedy.CUSTOMER),
        (200, error("x", code=402), "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
        (200, error("api_error"), "unexpected_response", AMBIGUOUS, Remedy.RETRY),
        (500, error("api_error"), "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
        (408, error("timeout"), "unexpected_response", AMBIGUOUS, Remedy.RETRY),
        (502, b"<html>", "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
        (400, b"<html>", "unexpected_response", AMBIGUOUS, Remedy.RETRY),
        (200, b"data: {}\n\n", "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (200, [], "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (200, {"type": "message"}, "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (200, {"choices": []}, "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (200, {**completion(), "id": ""}, "malformed_response", AMBIGUOUS, Remedy.RETRY),
        (200, {**completion(), "choices": [{"message": "x"}]}, "malformed_response", AMBIGUOUS, Remedy.RETRY),
    ],
)
def test_no_answer_is_an_error_with_its_fate(status, body, code, fate, remedy):
    with pytest.raises(ProviderError) as caught:
        reading(reply(body, status))
    assert (caught.value.code, caught.value.fate, caught.value.remedy) == (code, fate, remedy)


@given(st.integers(100, 599), st.binary(max_size=300))
def test_any_bytes_are_an_error(status, raw):
    with pytest.raises(ProviderError):
        reading(Reply(status, httpx.Headers(), raw))


@pytest.fixture
def account(sandbox, key):
    return Account("test", sandbox.kie_url, key)


def run(account, call):
    async def main():
        async with make_client() as client:
            return await KIND.run(client, account, call)

    return asyncio.run(main())


def lost(account, call):
    with pytest.raises(ProviderError) as caught:
        run(account, call)
    return caught.value


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (CLAUDE, "/claude/v1/messages"),
        (GPT, "/gpt-5-2/v1/chat/completions"),
        (GEMINI, "/gemini-2.5-pro/v1/chat/completions"),
    ],
)
def test_each_shape_is_asked_and_read(sandbox, account, make_call, request_, path):
    sandbox.script({"defaults": {"text": "a reply"}})
    assert KIND.handle(request_) == {"model": request_["model"], "path": path}
    found = run(account, make_call(request_))
    (billed,) = sandbox.bill()
    assert (found.text, found.provider_id, billed["path"]) == ("a reply", billed["task_id"], path)
    assert found.usage
    assert billed["input"]["stream"] is False
    assert ("model" in billed["input"]) is (request_ is CLAUDE)


@pytest.mark.parametrize("request_", [CLAUDE, GPT])
@pytest.mark.parametrize(
    ("reason", "code"),
    [("max_tokens", "output_truncated"), ("refusal", "content_policy"), ("novel", "output_unrecognised")],
)
def test_ends_that_are_no_answer(sandbox, account, make_call, request_, reason, code):
    sandbox.script({"defaults": {"stop_reason": reason}})
    assert run(account, make_call(request_)).code == code


@pytest.mark.parametrize("request_", [CLAUDE, GPT])
def test_tools_are_a_value(sandbox, account, make_call, request_):
    sandbox.script({"defaults": {"stop_reason": "tool_use"}})
    assert run(account, make_call({**request_, "tools": [{"name": "tool"}]})).value


@pytest.mark.parametrize(
    "fault", ["drop", "cut", {"status": 502, "body": "<html>"}, {"status": 200, "body": {"code": 500}}]
)
def test_a_lost_answer_is_ambiguous_and_billed(sandbox, account, make_call, fault):
    sandbox.script({"defaults": {"accept_then": fault}})
    assert lost(account, make_call(GPT)).fate is AMBIGUOUS
    assert sandbox.totals()["kie"] == 1


def test_a_revoked_key_is_the_operators(sandbox, make_call):
    caught = lost(Account("test", sandbox.kie_url, "revoked"), make_call(CLAUDE))
    assert (caught.code, caught.fate, caught.remedy) == ("provider_auth_invalid", REJECTED, Remedy.OPERATOR)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"stream": "perhaps"}, "stream"),
        ({"model": "../v1"}, "model"),
        ({"model": "a/b"}, "model"),
        ({"messages": []}, "messages"),
        ({"temperature": 1}, "temperature"),
        ({"messages": [{"role": "user"}]}, "a message has content or tool calls"),
        ({"messages": [{"role": "system", "content": "x"}]}, "Claude's messages"),
        ({"reasoning_effort": "low"}, "reasoning_effort is not taken by claude-sonnet-4-5"),
        ({"model": "gpt-5-2"}, "max_tokens is not taken by gpt-5-2"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_request_never_leaves(sandbox, account, make_call, change, fault):
    caught = lost(account, make_call({**CLAUDE, **change}))
    assert (caught.code, caught.fate, caught.remedy) == ("request_invalid", Fate.NOT_SENT, Remedy.CUSTOMER)
    assert fault in caught.message
    assert sandbox.stats()["requests"]["message"] == 0


def test_thinking_keeps_its_name_on_the_wire(sandbox, account, make_call):
    run(account, make_call({**CLAUDE, "thinkingFlag": True}))
    assert sandbox.bill()[0]["input"]["thinkingFlag"] is True
