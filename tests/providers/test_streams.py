"""Streamed answers: the same outcome as in one piece, its text passed on as it comes; without an end mark, a failure."""

import asyncio
import json

import pytest
from httpx_sse import ServerSentEvent
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Account, Failed, StreamingProvider, Succeeded
from providers.errors import Fate, ProviderError
from providers.http import make_client
from providers.registry import KINDS
from providers.streams import CompletionStory, MessageStory

HELLO = {"model": "claude-x", "max_tokens": 20, "messages": [{"role": "user", "content": "hello"}], "stream": True}
GPT = {"model": "gpt-5-2", "messages": [{"role": "user", "content": "hello"}], "stream": True}
ASKED = [("anthropic-sync", HELLO), ("kie-llm", HELLO), ("kie-llm", GPT)]
TEXT = "one two three four five \N{LLAMA} six"
WORDS = ["type", "index", "delta", "choices", "message", "text", "content_block", "tool_calls", "error", "usage"]


@pytest.fixture
def account(sandbox):
    def of(kind):
        return Account("test", sandbox.kie_url if kind == "kie-llm" else sandbox.url, "good")

    return of


def stream(kind, account, call):
    pieces = []

    async def main():
        async with make_client() as client:
            return await KINDS[kind].provider.stream(client, account, call, pieces.append)

    return asyncio.run(main()), pieces


def test_these_kinds_stream():
    streaming = {name for name, kind in KINDS.items() if isinstance(kind.provider, StreamingProvider)}
    assert {"anthropic-sync", "kie-llm"} <= streaming


@pytest.mark.parametrize(("kind", "request_"), ASKED)
def test_a_stream_is_the_answer_in_pieces(sandbox, account, make_call, kind, request_):
    sandbox.script({"defaults": {"text": TEXT}})
    found, pieces = stream(kind, account(kind), make_call(request_))
    (billed,) = sandbox.bill()
    assert isinstance(found, Succeeded)
    assert (found.text, "".join(pieces), found.provider_id) == (TEXT, TEXT, billed["task_id"])
    assert len(pieces) > 2
    assert billed["input"]["stream"] is True
    assert found.usage


@pytest.mark.parametrize(("kind", "request_"), ASKED)
@pytest.mark.parametrize("events", [1, 2, 3, 4, 5])
def test_a_stream_without_its_end_mark_fails_with_what_came(sandbox, account, make_call, kind, request_, events):
    sandbox.script({"defaults": {"text": TEXT, "cut_stream": True, "events": events}})
    found, pieces = stream(kind, account(kind), make_call(request_))
    assert (type(found), found.code) == (Failed, "stream_cut")
    assert TEXT.startswith("".join(pieces))
    assert sandbox.totals()["all"] == 1


@pytest.mark.parametrize(("kind", "request_"), ASKED)
def test_a_stream_that_was_cut_before_it_began_is_a_lost_answer(sandbox, account, make_call, kind, request_):
    sandbox.script({"defaults": {"cut_stream": True, "events": 0}})
    with pytest.raises(ProviderError) as caught:
        stream(kind, account(kind), make_call(request_))
    assert caught.value.fate is Fate.AMBIGUOUS


@pytest.mark.parametrize(("kind", "request_"), ASKED)
def test_an_error_within_the_stream_is_named(sandbox, account, make_call, kind, request_):
    sandbox.script({"defaults": {"text": TEXT, "stream_error": True}})
    found, pieces = stream(kind, account(kind), make_call(request_))
    assert (found.code, "overloaded_error: Overloaded" in found.message) == ("stream_cut", True)
    assert pieces


@pytest.mark.parametrize(("kind", "request_"), ASKED)
def test_tools_come_in_pieces_too(sandbox, account, make_call, kind, request_):
    sandbox.script({"defaults": {"stop_reason": "tool_use"}})
    found, _ = stream(kind, account(kind), make_call({**request_, "tools": [{"name": "tool"}]}))
    assert found.value


@pytest.mark.parametrize(("kind", "request_"), ASKED)
def test_a_refusal_before_the_stream_is_a_refusal(sandbox, account, make_call, kind, request_):
    refused = {"type": "error", "error": {"type": "rate_limit_error", "message": "slower"}}
    sandbox.script({"defaults": {"reply": {"status": 429, "body": refused}}})
    with pytest.raises(ProviderError) as caught:
        stream(kind, account(kind), make_call(request_))
    assert (caught.value.code, caught.value.fate) == ("rate_limited", Fate.REJECTED)


def test_arguments_are_put_together():
    message, completion = MessageStory(lambda _: None), CompletionStory(lambda _: None)
    for said in (
        {"type": "message_start", "message": {"id": "m"}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "input": {}}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a":'}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
    ):
        message.take(ServerSentEvent(data=json.dumps(said)))
    for call in (
        {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": '{"a"'}},
        {"index": 0, "function": {"arguments": ":1}"}},
    ):
        completion.take(ServerSentEvent(data=json.dumps({"choices": [{"delta": {"tool_calls": [call]}}]})))
    assert message.whole()["content"][0]["input"] == {"a": 1}
    (call,) = completion.whole()["choices"][0]["message"]["tool_calls"]
    assert (call["id"], call["function"]) == ("c", {"name": "look", "arguments": '{"a":1}'})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["message_start", "content_block_delta", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("story", [MessageStory, CompletionStory])
@given(events=st.lists(st.text(max_size=20) | JSON.map(json.dumps), max_size=8))
def test_no_event_breaks_it(story, events):
    told = story(lambda _: None)
    for data in events:
        told.take(ServerSentEvent(data=data))
    json.dumps(told.whole())
