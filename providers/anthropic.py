"""Kind `anthropic-sync`: one Messages API request whose response is the result.

Nothing of a lost response can be found again there, and a second request is a second bill (the API has no
idempotency key and no list of messages, by its reference and its Python client).
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers.anthropic_words import reading, refusal
from providers.contract import JSON, Account, Call, Failed, Kind, Mode, Succeeded
from providers.http import request
from providers.replies import is_success, validated

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
    """What an app submits: the Messages API's body without `stream`, in its own words. `max_tokens` counts
    output tokens.
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
    service_tier: Literal["auto", "standard_only"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _not_streamed(cls, given: Any) -> Any:
        if isinstance(given, dict) and "stream" in given:
            raise ValueError("leave `stream` out: this kind answers in one piece")
        return given


class AnthropicSync:
    """The provider of kind `anthropic-sync`; holds no state."""

    request_model: type[BaseModel] = AnthropicRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`model` and `anthropic_version`."""
        return {"model": validated(AnthropicRequest, request).model, "anthropic_version": API_VERSION}

    async def run(self, client: httpx.AsyncClient, account: Account, call: Call) -> Succeeded | Failed:
        """POST one message and read its answer. See `providers.anthropic_words` for what each means."""
        wanted = validated(AnthropicRequest, call.request)
        version = str(call.handle.get("anthropic_version", API_VERSION))
        reply = await request(
            client,
            "POST",
            f"{account.base_url.rstrip('/')}/v1/messages",
            deadline=SEND_DEADLINE,
            headers={
                "x-api-key": account.api_key,
                "anthropic-version": version if _DATE.fullmatch(version) else API_VERSION,
            },
            json=wanted.model_dump(mode="json", exclude_none=True),
        )
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
