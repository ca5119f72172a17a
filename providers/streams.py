"""Answers that come as a stream of events: passed on piece by piece, put together again, whole only with an end mark.

Sources: the Messages API's streaming page (events, deltas, `message_stop`); OpenAI's for chat completions (chunks, a
`finish_reason`, `[DONE]`), whose shape KIE's other models follow.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import httpx
from httpx_sse import ServerSentEvent

from providers.contract import JSON, Failed, Hear, Succeeded
from providers.errors import ProviderError
from providers.http import Reply
from providers.text import safe_text, tidy

_MAX_BLOCKS = 1_000


class Story(Protocol):
    """An answer in the making. `begun`: there is some of it; `ended`: its end mark came; `trouble`: it broke off."""

    begun: bool
    ended: bool
    trouble: str

    def take(self, event: ServerSentEvent) -> None:
        """One event of the stream; what is not understood is passed over."""
        ...

    def whole(self) -> dict[str, JSON]:
        """The answer as it would have come in one piece."""
        ...


async def told(
    ask: Callable[[Callable[[ServerSentEvent], None]], Awaitable[Reply]],
    story: Story,
    read: Callable[[Reply], Succeeded | Failed],
) -> Succeeded | Failed:
    """The outcome of a request whose answer may be a stream; one that breaks off fails as `stream_cut`.

    What came before it began, an error or an answer in one piece, is read as ever. Raises what both of them do.
    """
    why = "the stream ended without its end mark"
    try:
        reply = await ask(story.take)
    except ProviderError as error:
        if not story.begun:
            raise
        why = error.message
    else:
        if not story.begun:
            return read(reply)
    if story.ended:
        return read(Reply(200, httpx.Headers(), json.dumps(story.whole()).encode()))
    return Failed("stream_cut", f"the answer broke off: {story.trouble or why}")


class MessageStory:
    """A message of Anthropic's."""

    def __init__(self, hear: Hear) -> None:
        self.begun = self.ended = False
        self.trouble = ""
        self._hear = hear
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._json: dict[int, str] = {}

    def take(self, event: ServerSentEvent) -> None:
        said = _object(event.data)
        match said.get("type"):
            case "message_start" if isinstance(said.get("message"), dict):
                self.begun, self._message = True, dict(said["message"])
            case "content_block_start" | "content_block_delta" if self.begun:
                self._block(said)
            case "message_delta" if isinstance(said.get("delta"), dict):
                self._message |= said["delta"]
                self._message["usage"] = _object(self._message.get("usage")) | _object(said.get("usage"))
            case "message_stop":
                self.ended = self.begun
            case "error":
                self.trouble = _trouble(said)
        if "credits_consumed" in said:
            self._message["credits_consumed"] = said["credits_consumed"]

    def _block(self, said: Mapping[str, Any]) -> None:
        index = said.get("index")
        if not isinstance(index, int) or not 0 <= index < _MAX_BLOCKS:
            return
        if isinstance(said.get("content_block"), dict):
            self._blocks[index] = dict(said["content_block"])
        block, delta = self._blocks.get(index), said.get("delta")
        if block is None or not isinstance(delta, dict):
            return
        for name in ("text", "thinking", "signature"):
            if isinstance(delta.get(name), str):
                block[name] = f"{block.get(name) or ''}{delta[name]}"
        if isinstance(delta.get("text"), str):
            self._hear(delta["text"])
        if isinstance(delta.get("partial_json"), str):
            self._json[index] = self._json.get(index, "") + delta["partial_json"]

    def whole(self) -> dict[str, JSON]:
        for index, text in self._json.items():
            self._blocks[index]["input"] = _object(text)
        return {**self._message, "content": [self._blocks[index] for index in sorted(self._blocks)]}


class CompletionStory:
    """A chat completion in OpenAI's words. A reason to have stopped is an end mark, too."""

    def __init__(self, hear: Hear) -> None:
        self.begun = self.ended = False
        self.trouble = ""
        self._hear = hear
        self._answer: dict[str, Any] = {}
        self._text = ""
        self._calls: dict[int, dict[str, Any]] = {}
        self._reason: str | None = None

    def take(self, event: ServerSentEvent) -> None:
        if event.data.strip() == "[DONE]":
            self.ended = self.begun
            return
        said = _object(event.data)
        if isinstance(said.get("error"), dict):
            self.trouble = _trouble(said)
        self._answer |= {name: said[name] for name in ("id", "model", "usage", "credits_consumed") if said.get(name)}
        choices = said.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else None
        if choice is None:
            return
        self.begun = True
        delta = _object(choice.get("delta"))
        if isinstance(delta.get("content"), str) and delta["content"]:
            self._text += delta["content"]
            self._hear(delta["content"])
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._call(_object(call))
        if isinstance(choice.get("finish_reason"), str):
            self._reason, self.ended = choice["finish_reason"], True

    def _call(self, given: Mapping[str, Any]) -> None:
        index = given.get("index")
        if not isinstance(index, int) or not 0 <= index < _MAX_BLOCKS:
            return
        call = self._calls.setdefault(index, {"function": {"arguments": ""}})
        function = _object(given.get("function"))
        call |= {name: given[name] for name in ("id", "type") if given.get(name)}
        if function.get("name"):
            call["function"]["name"] = function["name"]
        if isinstance(function.get("arguments"), str):
            call["function"]["arguments"] += function["arguments"]

    def whole(self) -> dict[str, JSON]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text or None}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return {**self._answer, "choices": [{"index": 0, "message": message, "finish_reason": self._reason}]}


def _trouble(said: Mapping[str, Any]) -> str:
    error = _object(said.get("error"))
    return safe_text(f"{error.get('type') or 'error'}: {error.get('message') or 'no message'}")


def _object(given: object) -> dict[str, Any]:
    """`given`, or what it says as JSON, if that is an object; else an empty one."""
    if isinstance(given, str):
        try:
            given = tidy(json.loads(given))
        except (ValueError, RecursionError):
            return {}
    return given if isinstance(given, dict) else {}
