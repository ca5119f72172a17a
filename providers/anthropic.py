"""Kind `anthropic-sync`: one Messages API request whose response, in one piece or as a stream, is the result.

Nothing of a lost response can be found again there, and a second request is a second bill (the API has no
idempotency key and no list of messages, by its reference and its Python client).
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Literal

import httpx
from httpx_sse import ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field

from providers.anthropic_words import reading, refusal
from providers.contract import JSON, Account, Call, Failed, Hear, Kind, Mode, Succeeded
from providers.http import ACCEPT, Reply, request
from providers.replies import is_success, validated
from providers.streams import MessageStory, told

# The published version of the API. A handle may freeze another one under `anthropic_version`.
API_VERSION = "2023-06-01"
SEND_DEADLINE = timedelta(minutes=10)

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class AnthropicMessage(BaseModel):
    """One turn: text, or content blocks as the API defines them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    role: Literal["user", "assistant"]
    content: str | list[dict[str, JSON]]


class AnthropicMetadata(BaseModel):
    """`user_id` is an opaque id for abuse tracking; the API offers no lookup by it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    user_id: str | None = Field(default=None, max_length=256)


class AnthropicRequest(BaseModel):
    """What an app submits: the Messages API's body in its own words. `max_tokens` counts output tokens; with `stream`
    the text is passed on to the job's followers while it comes. Newer models take no `temperature`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, max_length=256)
    max_tokens: int = Field(ge=1)
    messages: list[AnthropicMessage] = Field(min_length=1, max_length=100_000)
    system: str | list[dict[str, JSON]] | None = None
    stop_sequences: list[str] | None = None
    metadata: AnthropicMetadata | None = None
    tools: list[dict[str, JSON]] | None = None
    tool_choice: dict[str, JSON] | None = None
    thinking: dict[str, JSON] | None = None
    output_config: dict[str, JSON] | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    service_tier: Literal["auto", "standard_only"] | None = None
    stream: bool = False


class AnthropicSync:
    """The provider of kind `anthropic-sync`; holds no state."""

    request_model: type[BaseModel] = AnthropicRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`model` and `anthropic_version`."""
        return {"model": validated(AnthropicRequest, request).model, "anthropic_version": API_VERSION}

    async def run(self, client: httpx.AsyncClient, account: Account, call: Call) -> Succeeded | Failed:
        """POST one message and read its answer. See `providers.anthropic_words` for what each means."""
        return _read(await _ask(client, account, call, stream=False))

    async def stream(self, client: httpx.AsyncClient, account: Account, call: Call, hear: Hear) -> Succeeded | Failed:
        """The same as a stream of events. See `providers.streams` for what makes it whole."""

        def ask(take: Callable[[ServerSentEvent], None]) -> Awaitable[Reply]:
            return _ask(client, account, call, stream=True, hear=take)

        return await told(ask, MessageStory(hear), _read)


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    call: Call,
    *,
    stream: bool,
    hear: Callable[[ServerSentEvent], None] | None = None,
) -> Reply:
    wanted = validated(AnthropicRequest, call.request)
    body = wanted.model_dump(mode="json", exclude_none=True, exclude={"stream"})
    version = str(call.handle.get("anthropic_version", API_VERSION))
    return await request(
        client,
        "POST",
        f"{account.base_url.rstrip('/')}/v1/messages",
        deadline=SEND_DEADLINE,
        headers={
            "x-api-key": account.api_key,
            "anthropic-version": version if _DATE.fullmatch(version) else API_VERSION,
            **({"accept": ACCEPT} if stream else {}),
        },
        json={**body, "stream": True} if stream else body,
        hear=hear,
    )


def _read(reply: Reply) -> Succeeded | Failed:
    if not is_success(reply):
        raise refusal(reply)
    return reading(reply)


KINDS = (
    Kind(
        name="anthropic-sync",
        mode=Mode.SYNC,
        provider=AnthropicSync(),
        base_url="https://api.anthropic.com",
        send_deadline=SEND_DEADLINE,
        stale_after=timedelta(minutes=5),
        shapes=("text", "json"),
        meter="tokens",
    ),
)
