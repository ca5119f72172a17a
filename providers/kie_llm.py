"""Kind `kie-llm`: one chat request at KIE whose response is the result, in Claude's words or in OpenAI's.

Claude's models have one endpoint; GPT's and Gemini's have one each, with the model in its path. There is no
task, no list and no callback: a lost answer stays lost, and a second request is a second bill (KIE's
documentation of its chat models).
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Literal, Self

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers.contract import JSON, Account, Call, Failed, Hear, Kind, Mode, Succeeded
from providers.http import Reply
from providers.kie_llm_words import reading
from providers.kie_wire import ask
from providers.replies import validated
from providers.streams import CompletionStory, MessageStory, told

SEND_DEADLINE = timedelta(minutes=10)
CLAUDE = "claude"


class KieMessage(BaseModel):
    """One turn: text, or content blocks in the words of the model's own API."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[dict[str, JSON]] | None = None
    tool_calls: list[dict[str, JSON]] | None = None
    tool_call_id: str | None = Field(default=None, max_length=256)


class KieLlmRequest(BaseModel):
    """What an app submits: the chat's body; with `stream` the text is passed on to the job's followers while it comes.

    `max_tokens` (of the output) and `thinkingFlag` are Claude's, `reasoning_effort` is the others'; a system
    message is the others', too, since Claude's page lists no field for one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    model: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    messages: list[KieMessage] = Field(min_length=1, max_length=100_000)
    tools: list[dict[str, JSON]] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    thinking_flag: bool | None = Field(default=None, alias="thinkingFlag")
    reasoning_effort: Literal["low", "high"] | None = None
    stream: bool = False

    @property
    def is_claude(self) -> bool:
        return self.model.startswith(CLAUDE)

    @model_validator(mode="after")
    def _fits_its_model(self) -> Self:
        foreign = ("reasoning_effort",) if self.is_claude else ("max_tokens", "thinking_flag")
        for name in foreign:
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is not taken by {self.model}")
        if self.is_claude and any(turn.role not in ("user", "assistant") for turn in self.messages):
            raise ValueError("Claude's messages are the user's and the assistant's")
        if any(turn.content is None and not turn.tool_calls for turn in self.messages):
            raise ValueError("a message has content or tool calls")
        return self


class KieLlm:
    """The provider of kind `kie-llm`; holds no state."""

    request_model: type[BaseModel] = KieLlmRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`model` and `path`."""
        wanted = validated(KieLlmRequest, request)
        return {"model": wanted.model, "path": _path(wanted)}

    async def run(self, client: httpx.AsyncClient, account: Account, call: Call) -> Succeeded | Failed:
        """POST one chat and read its answer. See `providers.kie_llm_words` for what each means."""
        wanted = validated(KieLlmRequest, call.request)
        return reading(await _ask(client, account, wanted, hear=None))

    async def stream(self, client: httpx.AsyncClient, account: Account, call: Call, hear: Hear) -> Succeeded | Failed:
        """The same as a stream of events. See `providers.streams` for what makes it whole."""
        wanted = validated(KieLlmRequest, call.request)

        def ask(take: Callable[[ServerSentEvent], None]) -> Awaitable[Reply]:
            return _ask(client, account, wanted, hear=take)

        return await told(ask, MessageStory(hear) if wanted.is_claude else CompletionStory(hear), reading)


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    wanted: KieLlmRequest,
    *,
    hear: Callable[[ServerSentEvent], None] | None,
) -> Reply:
    body = wanted.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not wanted.is_claude:
        del body["model"]  # it stands in the path
    # Said either way: left out, it would be a stream there.
    body["stream"] = hear is not None
    return await ask(client, account, "POST", _path(wanted), deadline=SEND_DEADLINE, json=body, hear=hear)


def _path(wanted: KieLlmRequest) -> str:
    return "/claude/v1/messages" if wanted.is_claude else f"/{wanted.model}/v1/chat/completions"


KINDS = (
    Kind(
        name="kie-llm",
        mode=Mode.SYNC,
        provider=KieLlm(),
        base_url="https://api.kie.ai",
        send_deadline=SEND_DEADLINE,
        stale_after=timedelta(minutes=5),
        shapes=("text", "json"),
        meter="tokens and credits",
    ),
)
