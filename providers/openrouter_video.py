"""Kind `openrouter-video`: videos by any model behind OpenRouter's video API.

A create is not idempotent there, and there is no list of jobs (the reference names four endpoints: submit, poll,
content, models): a job whose id was lost can only be named by its callback. One key sees the jobs of all users, so an
id proves nothing about whose job it is; the job's row does.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import httpx
from pydantic import BaseModel, ConfigDict, Field

from providers.contract import JSON, Account, Call, Callback, Kind, Missing, Mode, Outcome
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply, request
from providers.openrouter_words import outcome, own_error, refusal, task_id_in
from providers.replies import is_success, malformed, validated
from providers.webhooks import OPENROUTER, delivery_id_of, unverified, verify_stamped

SEND_DEADLINE = timedelta(seconds=60)
POLL_DEADLINE = timedelta(seconds=15)
DELIVERY = "x-openrouter-idempotency-key"
_NOT_FOUND = 404


class FrameUrl(BaseModel):
    """Where an image is: https, or a data URL where the model's route takes one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(pattern=r"^(?:https://|data:image/)")


class FrameImage(BaseModel):
    """The image that the video begins or ends with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["image_url"] = "image_url"
    image_url: FrameUrl
    frame_type: Literal["first_frame", "last_frame"]


class OpenRouterVideoRequest(BaseModel):
    """What an app submits: the submit endpoint's body without `callback_url`, in its own words. `duration` in seconds.

    Which values a model takes, `GET /videos/models` says; most models need a `prompt`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str = Field(min_length=1, max_length=256)
    prompt: str | None = Field(default=None, min_length=1, max_length=50_000)
    aspect_ratio: Literal["16:9", "9:16", "1:1", "4:3", "3:4", "3:2", "2:3", "21:9", "9:21"] | None = None
    duration: int | None = Field(default=None, ge=1, le=3600)
    resolution: str | None = Field(default=None, pattern=r"^[0-9]{1,5}[pkPK]$")
    size: str | None = Field(default=None, pattern=r"^[0-9]{1,5}x[0-9]{1,5}$")
    generate_audio: bool | None = None
    seed: int | None = None
    creativity: int | None = None
    upscale_factor: float | None = Field(default=None, gt=0)
    frame_images: list[FrameImage] | None = Field(default=None, min_length=1, max_length=2)
    input_references: list[dict[str, JSON]] | None = Field(default=None, min_length=1, max_length=64)
    provider: dict[str, JSON] | None = None
    previous_job_id: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,128}$")
    session_id: str | None = Field(default=None, min_length=1, max_length=256)
    user: str | None = Field(default=None, min_length=1, max_length=256)
    trace: dict[str, JSON] | None = None


class OpenRouterVideo:
    """The provider of kind `openrouter-video`; holds no state."""

    request_model: type[BaseModel] = OpenRouterVideoRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`model` and `output`; a poll needs neither."""
        return {"model": validated(OpenRouterVideoRequest, request).model, "output": "video"}

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str:
        """POST one job. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        wanted = validated(OpenRouterVideoRequest, call.request)
        body: dict[str, JSON] = wanted.model_dump(mode="json", exclude_none=True)
        # No API finds a job by it, but a person in OpenRouter's activity log does.
        body.setdefault("session_id", call.call_key)
        if call.callback_url is not None:
            body["callback_url"] = call.callback_url
        reply = await _ask(client, account, "POST", "/videos", deadline=SEND_DEADLINE, json=body)
        task_id = task_id_in(reply.json()) if is_success(reply) else None
        if task_id is not None:
            return task_id
        if not is_success(reply) or own_error(reply) is not None:
            raise refusal(reply)
        raise ProviderError(
            "accepted_without_id",
            f"HTTP {reply.status} without a video job's id",
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
            status=reply.status,
        )

    async def poll(
        self,
        client: httpx.AsyncClient,
        account: Account,
        call: Call,  # noqa: ARG002 - the contract's signature
        task_id: str,
    ) -> Outcome:
        """GET the job. Raises ProviderError when the answer is not one, or is about another job.

        The `polling_url` of the create is not used: it says nothing that the id does not, and might lead elsewhere.
        """
        reply = await _ask(client, account, "GET", f"/videos/{_checked(task_id)}")
        if reply.status == _NOT_FOUND and own_error(reply) is not None:
            return Missing()
        if not is_success(reply):
            raise refusal(reply)
        body = reply.json()
        if task_id_in(body) != task_id:
            raise malformed("the answer is not about the video job asked for", reply.status)
        return outcome(body, account.base_url)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:  # noqa: ARG002
        """There is nothing to look through: always ProviderError (AMBIGUOUS, `find_inconclusive`)."""
        raise ProviderError(
            "find_inconclusive", "OpenRouter has no list of video jobs", fate=Fate.AMBIGUOUS, remedy=Remedy.NOBODY
        )

    async def cancel(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> bool:  # noqa: ARG002
        """False: OpenRouter has no way to cancel a job, so nothing is asked."""
        return False

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify by OpenRouter's scheme, then read the job's id. The rest of the body is not believed."""
        verify_stamped(OPENROUTER, headers, body, secrets=secrets, now=now)
        told = Reply(200, httpx.Headers(), body).json()
        task_id = task_id_in(told.get("data")) if isinstance(told, dict) else None
        if task_id is None:
            raise unverified("it names no video job")
        named = {name.lower(): value for name, value in headers.items()}.get(DELIVERY)
        return Callback(delivery_id_of(named, body), task_id)


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    path: str,
    *,
    deadline: timedelta = POLL_DEADLINE,
    json: JSON = None,
) -> Reply:
    return await request(
        client,
        method,
        account.base_url.rstrip("/") + path,
        deadline=deadline,
        headers={"authorization": f"Bearer {account.api_key}"},
        json=json,
    )


def _checked(task_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", task_id):
        raise ProviderError("request_unsendable", "not a video job's id", fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)
    return task_id


KINDS = (
    Kind(
        name="openrouter-video",
        mode=Mode.ASYNC,
        provider=OpenRouterVideo(),
        base_url="https://openrouter.ai/api/v1",
        send_deadline=SEND_DEADLINE,
        poll_deadline=POLL_DEADLINE,
        # The documentation asks for a poll every 10 to 30 seconds; no job ends before.
        first_poll=timedelta(seconds=15),
        poll_every=timedelta(seconds=15),
        # Nothing to be listed in; this long a callback may name the job after the create's deadline.
        visibility_lag=timedelta(minutes=2),
        max_run=timedelta(minutes=45),
        stale_after=timedelta(minutes=20),
        # How long files stay is not documented (a copy names its own end). An hour is the least we count on.
        result_life=timedelta(hours=1),
        signs_callbacks=True,
        shapes=("video",),
        meter="US dollars",
        media_hosts=("openrouter.ai", ".openrouter.ai"),
    ),
)
