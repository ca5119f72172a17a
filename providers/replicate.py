"""Kind `replicate-prediction`: predictions at Replicate, by version, official model or deployment.

Creates are not idempotent there, and the API takes no key that would make them so; a prediction whose id
was lost is found again in the list by what was asked, where and when (Replicate's HTTP API reference).
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers import replicate_api as api
from providers.contract import JSON, Account, Call, Callback, Kind, Missing, Mode, Outcome
from providers.replicate_api import HASH, NAME, POLL_DEADLINE, SEND_DEADLINE
from providers.replicate_find import search
from providers.replicate_words import DELIVERY_HOSTS, outcome
from providers.replies import validated


class ReplicateRequest(BaseModel):
    """What an app submits. `output` says what shape is expected: files (any nesting), one text, or the JSON
    as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = Field(default=None, pattern=rf"^(?:{HASH}|{NAME}(?::{HASH})?)$")
    model: str | None = Field(default=None, pattern=rf"^{NAME}$")
    deployment: str | None = Field(default=None, pattern=rf"^{NAME}$")
    input: dict[str, JSON]
    output: Literal["media", "text", "json"] = "media"
    media_kind: Literal["image", "video", "audio", "file"] | None = None

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if sum(target is not None for target in (self.version, self.model, self.deployment)) != 1:
            raise ValueError("name exactly one of version, model and deployment")
        return self


class ReplicatePrediction:
    """The provider of kind `replicate-prediction`; holds no state."""

    request_model: type[BaseModel] = ReplicateRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`endpoint` (predictions, models or deployments), `target`, `output` and `media_kind`."""
        wanted = validated(ReplicateRequest, request)
        if wanted.version is not None:
            endpoint, target = "predictions", wanted.version
        elif wanted.model is not None:
            endpoint, target = "models", wanted.model
        else:
            endpoint, target = "deployments", str(wanted.deployment)
        return {
            "endpoint": endpoint,
            "target": target,
            "output": wanted.output,
            "media_kind": wanted.media_kind,
        }

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str:
        """POST one prediction. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        handle = self._frozen(call)
        body: dict[str, JSON] = {"input": dict(validated(ReplicateRequest, call.request).input)}
        path = f"/{handle['endpoint']}/{handle['target']}/predictions"
        if handle["endpoint"] == "predictions":
            path, body["version"] = "/predictions", handle["target"]
        return await api.create(client, account, path, body, call.callback_url)

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the prediction. Raises ProviderError when the answer is not one, or is about another
        prediction.
        """
        shown = await api.look(client, account, "predictions", task_id)
        return Missing() if shown is None else outcome(shown, self._frozen(call), account.base_url)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """Predictions with this target and input, created in this call's window. See
        `providers.replicate_find`.
        """
        return await search(
            api.pages(client, account, "predictions"),
            handle=self._frozen(call),
            wanted=validated(ReplicateRequest, call.request).input,
            base_url=account.base_url,
            started_at=call.started_at,
            send_deadline=SEND_DEADLINE,
        )

    async def cancel(
        self,
        client: httpx.AsyncClient,
        account: Account,
        call: Call,  # noqa: ARG002 - the contract's signature
        task_id: str,
    ) -> bool:
        """POST the cancel; a prediction that has ended stays as it is. False when Replicate does not know it."""
        return await api.cancel(client, account, "predictions", task_id)

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify by Standard Webhooks, then read the prediction's id. The rest of the body is not believed."""
        return api.callback(headers, body, secrets=secrets, now=now)

    def _frozen(self, call: Call) -> dict[str, JSON]:
        # Polls come without the request: what was frozen at intent is all they need.
        return dict(call.handle) if "endpoint" in call.handle else self.handle(call.request) | dict(call.handle)


KINDS = (
    Kind(
        name="replicate-prediction",
        mode=Mode.ASYNC,
        provider=ReplicatePrediction(),
        base_url="https://api.replicate.com/v1",
        send_deadline=SEND_DEADLINE,
        poll_deadline=POLL_DEADLINE,
        first_poll=timedelta(seconds=2),
        poll_every=timedelta(seconds=5),
        visibility_lag=timedelta(seconds=60),
        max_run=timedelta(minutes=35),
        stale_after=timedelta(minutes=20),
        result_life=timedelta(hours=1),
        finds_lost=True,
        cancels=True,
        signs_callbacks=True,
        shapes=("image", "video", "audio", "file", "text", "json"),
        meter="GPU seconds",
        media_hosts=DELIVERY_HOSTS,
    ),
)
