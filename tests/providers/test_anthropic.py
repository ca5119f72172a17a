"""The Anthropic kind against the sandbox."""

import asyncio

import pytest

from providers.contract import Account, Failed, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import make_client
from providers.registry import get_kind

KIND = get_kind("anthropic-sync").provider
HELLO = {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}


def run(account, call):
    async def main():
        async with make_client() as client:
            return await KIND.run(client, account, call)

    return asyncio.run(main())


def lost(account, call):
    with pytest.raises(ProviderError) as caught:
        run(account, call)
    return caught.value


def test_a_message_is_answered_and_billed_once(sandbox, anthropic_account, make_call):
    found = run(anthropic_account, make_call(HELLO, handle=KIND.handle(HELLO)))
    assert isinstance(found, Succeeded)
    assert found.text.startswith("sandbox reply ")
    assert found.usage["output_tokens"] > 0
    (billed,) = sandbox.bill()
    assert (billed["kind"], billed["task_id"], billed["input"]) == ("anthropic", found.provider_id, HELLO)


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("refusal", "content_policy"),
        ("max_tokens", "output_truncated"),
        ("pause_turn", "output_truncated"),
        ("x", "output_unrecognised"),
    ],
)
def test_an_answer_that_is_no_result_fails_with_its_cost(sandbox, anthropic_account, make_call, reason, code):
    sandbox.script({"defaults": {"stop_reason": reason}})
    found = run(anthropic_account, make_call(HELLO))
    assert isinstance(found, Failed)
    assert found.code == code
    assert found.usage["input_tokens"] > 0
    assert found.provider_id == sandbox.bill()[0]["task_id"]


def test_tool_use_gives_the_blocks(sandbox, anthropic_account, make_call):
    sandbox.script({"defaults": {"stop_reason": "tool_use"}})
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    found = run(anthropic_account, make_call({**HELLO, "tools": tools}))
    assert found.value[-1]["name"] == "look"


@pytest.mark.parametrize(
    "fault", ["drop", "cut", {"status": 502, "body": "<html>"}, {"status": 200, "body": {"type": "message"}}]
)
def test_a_lost_answer_is_ambiguous_and_billed(sandbox, anthropic_account, make_call, fault):
    sandbox.script({"defaults": {"accept_then": fault}})
    assert lost(anthropic_account, make_call(HELLO)).fate is Fate.AMBIGUOUS
    assert sandbox.totals()["anthropic"] == 1


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ({"status": 413, "body": "<html>too large</html>"}, (Fate.REJECTED, Remedy.CUSTOMER)),
        (
            {"status": 529, "body": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}},
            (Fate.REJECTED, Remedy.THROTTLED),
        ),
        ({"status": 500, "body": "<html>"}, (Fate.AMBIGUOUS, Remedy.RETRY)),
        ({"status": 200, "body": "not json"}, (Fate.AMBIGUOUS, Remedy.RETRY)),
    ],
)
def test_errors_keep_their_fate_over_the_wire(sandbox, anthropic_account, make_call, reply, verdict):
    sandbox.script({"defaults": {"reply": reply}})
    error = lost(anthropic_account, make_call(HELLO))
    assert (error.fate, error.remedy) == verdict
    assert sandbox.totals()["all"] == 0


def test_a_revoked_key_is_the_operators(sandbox, make_call):
    error = lost(Account("test", sandbox.url, "revoked"), make_call(HELLO))
    assert (error.code, error.fate, error.remedy) == ("provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR)


@pytest.mark.parametrize(
    ("frozen", "sent"),
    [
        ({}, b"2023-06-01"),
        ({"anthropic_version": "2026-10-21"}, b"2026-10-21"),
        ({"anthropic_version": "x\r\ny: z"}, b"2023-06-01"),
    ],
)
def test_the_api_version_is_frozen_in_the_handle(raw_server, make_call, frozen, sent):
    seen = []

    async def answer(reader, writer):
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n")

    async def main():
        async with raw_server(answer) as url, make_client() as client:
            with pytest.raises(ProviderError):
                await KIND.run(client, Account("a", url, "k"), make_call(HELLO, handle=frozen))

    asyncio.run(main())
    assert b"anthropic-version: " + sent + b"\r\n" in seen[0].lower()


@pytest.mark.parametrize(
    "change",
    [
        {"stream": "perhaps"},
        {"max_tokens": 0},
        {"messages": []},
        {"temperature": 2},
        {"model": ""},
        {"messages": [{"role": "system", "content": "x"}]},
    ],
)
def test_a_wrong_request_never_leaves(sandbox, anthropic_account, make_call, change):
    error = lost(anthropic_account, make_call({**HELLO, **change}))
    assert (error.code, error.fate, error.remedy) == ("request_invalid", Fate.NOT_SENT, Remedy.CUSTOMER)
    assert sandbox.stats()["requests"]["message"] == 0
