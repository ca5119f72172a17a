"""Kind `replicate-prediction`: predictions at Replicate, by version, official model or deployment.

Creates are not idempotent there, and the API takes no key that would make them so; a prediction whose id
was lost is found again in the list by what was asked, where and when (Replicate's HTTP API reference).
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers.contract import JSON, Account, Call, Callback, Kind, Missing, Mode, Outcome
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply, request
from providers.replicate_find import search
from providers.replicate_words import DELIVERY_HOSTS, outcome, own_words, refusal, task_id_in
from providers.replies import is_success, malformed, validated
from providers.webhooks import unverified, verify

SEND_DEADLINE = timedelta(seconds=30)
POLL_DEADLINE = timedelta(seconds=10)

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_HASH = r"[0-9a-f]{64}"


class ReplicateRequest(BaseModel):
    """What an app submits. `output` says what shape is expected: files (any nesting), one text, or the JSON
    as it is.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = Field(default=None, pattern=rf"^(?:{_HASH}|{_NAME}(?::{_HASH})?)$")
    model: str | None = Field(default=None, pattern=rf"^{_NAME}$")
    deployment: str | None = Field(default=None, pattern=rf"^{_NAME}$")
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
        if call.callback_url is not None:
            body |= {"webhook": call.callback_url, "webhook_events_filter": ["completed"]}
        reply = await _ask(client, account, "POST", path, deadline=SEND_DEADLINE, json=body)
        if not is_success(reply):
            raise refusal(reply)
        task_id = task_id_in(reply.json())
        if task_id is None:
            raise ProviderError(
                "accepted_without_id",
                f"HTTP {reply.status} without a prediction's id",
                fate=Fate.AMBIGUOUS,
                remedy=Remedy.RETRY,
                status=reply.status,
            )
        return task_id

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the prediction. Raises ProviderError when the answer is not one, or is about another
        prediction.
        """
        reply = await _ask(client, account, "GET", f"/predictions/{_checked(task_id)}")
        if reply.status in _NOT_FOUND and own_words(reply) is not None:
            return Missing()
        if not is_success(reply):
            raise refusal(reply)
        body = reply.json()
        if task_id_in(body) != task_id:
            raise malformed("the answer is not about the prediction asked for", reply.status)
        return outcome(body, self._frozen(call), account.base_url)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """Predictions with this target and input, created in this call's window. See
        `providers.replicate_find`.
        """

        async def page(params: Mapping[str, str]) -> Any:
            reply = await _ask(client, account, "GET", "/predictions", params=params)
            if not is_success(reply):
                raise refusal(reply)
            return reply.json()

        return await search(
            page,
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
        reply = await _ask(client, account, "POST", f"/predictions/{_checked(task_id)}/cancel")
        if reply.status in _NOT_FOUND and own_words(reply) is not None:
            return False
        if not is_success(reply):
            raise refusal(reply)
        return True

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify by Standard Webhooks, then read the prediction's id. The rest of the body is not believed."""
        delivery_id = verify(headers, body, secrets=secrets, now=now)
        task_id = task_id_in(Reply(200, httpx.Headers(), body).json())
        if task_id is None:
            raise unverified("it names no prediction")
        return Callback(delivery_id, task_id)

    def _frozen(self, call: Call) -> dict[str, JSON]:
        # Polls come without the request: what was frozen at intent is all they need.
        return dict(call.handle) if "endpoint" in call.handle else self.handle(call.request) | dict(call.handle)


_NOT_FOUND = frozenset({404, 410})


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    path: str,
    *,
    deadline: timedelta = POLL_DEADLINE,
    json: JSON = None,
    params: Mapping[str, str] | None = None,
) -> Reply:
    return await request(
        client,
        method,
        account.base_url.rstrip("/") + path,
        deadline=deadline,
        headers={"authorization": f"Bearer {account.api_key}"},
        json=json,
        params=params,
    )


def _checked(task_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", task_id):
        raise ProviderError("request_unsendable", "not a prediction's id", fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)
    return task_id


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
