"""Kind `heygen-video`: avatar videos by HeyGen's v3 API.

Every create carries our call key three times: as `Idempotency-Key`, which v3 documents to answer a repeat within 24
hours with the first answer; at the head of the title, by which a video whose id was lost is found in the list; and as
`callback_id`. The key's effect on this very endpoint is documented less surely than on the batch endpoints, so nothing
here relies on it: the kind does not promise an idempotent create, and finds by title.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

import httpx
from pydantic import BaseModel, ConfigDict, Field, model_validator

from providers.contract import JSON, Account, Call, Callback, Kind, Missing, Mode, Outcome, Running
from providers.errors import Fate, ProviderError, Remedy
from providers.heygen_words import is_unknown_video, outcome, own_error, refusal, task_id_in
from providers.http import Reply, request
from providers.replies import is_success, malformed, validated
from providers.webhooks import delivery_id_of, unverified, verify_heygen

SEND_DEADLINE = timedelta(seconds=60)
POLL_DEADLINE = timedelta(seconds=15)
# A video may be unknown for a moment after its create; a later "not found" is the truth.
VISIBILITY_LAG = timedelta(minutes=2)
PAGE = 100
MAX_PAGES = 20
EVENT_ID = "heygen-event-id"
_KEY = re.compile(r"[A-Za-z0-9_:.-]{1,255}")


class HeyGenVideoRequest(BaseModel):
    """What an app submits: the create endpoint's body without title key and callback, in its own words.

    `options` holds further fields of the API, for types of video whose fields are not named here.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    type: Literal["avatar", "image", "cinematic_avatar", "studio"] = "avatar"
    avatar_id: str | None = Field(default=None, min_length=1, max_length=128)
    image: dict[str, JSON] | None = None
    script: str | None = Field(default=None, min_length=1, max_length=5000)
    voice_id: str | None = Field(default=None, min_length=1, max_length=128)
    audio_url: str | None = Field(default=None, pattern=r"^https://")
    audio_asset_id: str | None = Field(default=None, min_length=1, max_length=128)
    title: str = Field(default="", max_length=160)
    resolution: Literal["720p", "1080p", "4k"] | None = None
    aspect_ratio: Literal["16:9", "9:16"] | None = None
    engine: dict[str, JSON] | None = None
    background: dict[str, JSON] | None = None
    remove_background: bool | None = None
    caption: dict[str, JSON] | None = None
    fit: str | None = Field(default=None, max_length=40)
    output_format: Literal["mp4", "webm"] | None = None
    voice_settings: dict[str, JSON] | None = None
    motion_prompt: str | None = Field(default=None, max_length=5000)
    expressiveness: str | None = Field(default=None, max_length=40)
    options: dict[str, JSON] = Field(default={}, max_length=32)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if sum(one is not None for one in (self.script, self.audio_url, self.audio_asset_id)) > 1:
            raise ValueError("name at most one of script, audio_url and audio_asset_id")
        if self.type == "avatar" and self.avatar_id is None:
            raise ValueError("a video of type avatar needs avatar_id")
        if self.type == "image" and self.image is None:
            raise ValueError("a video of type image needs image")
        if taken := sorted({*type(self).model_fields, "callback_url", "callback_id"} & self.options.keys()):
            raise ValueError(f"options must not name {taken[0]}")
        return self


class HeyGenVideo:
    """The provider of kind `heygen-video`; holds no state."""

    request_model: type[BaseModel] = HeyGenVideoRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`output`, and `captioned`: whether the files of captions are part of the result."""
        return {"output": "video", "captioned": validated(HeyGenVideoRequest, request).caption is not None}

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str:
        """POST one video. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        wanted = validated(HeyGenVideoRequest, call.request)
        if not _KEY.fullmatch(call.call_key):
            raise _unsendable("the call key cannot stand in a header")
        body: dict[str, JSON] = {
            **wanted.model_dump(mode="json", exclude_none=True, exclude={"options"}),
            **wanted.options,
            # The key comes first: a title that is cut still holds it.
            "title": f"{call.call_key} {wanted.title}".rstrip(),
            "callback_id": call.call_key,
        }
        if call.callback_url is not None:
            body["callback_url"] = call.callback_url
        reply = await _ask(client, account, "POST", "", deadline=SEND_DEADLINE, json=body, key=call.call_key)
        task_id = task_id_in(_data(reply)) if is_success(reply) else None
        if task_id is not None:
            return task_id
        if not is_success(reply) or own_error(reply) is not None:
            raise refusal(reply)
        raise ProviderError(
            "accepted_without_id",
            f"HTTP {reply.status} without a video's id",
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
            status=reply.status,
        )

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the video. Raises ProviderError when the answer is not one, or is about another video.

        A video unknown within two minutes of the intent counts as running.
        """
        reply = await _ask(client, account, "GET", f"/{_checked(task_id)}")
        if is_unknown_video(reply):
            # By this machine's clock: if that is wrong, the grace is longer, or shorter by as much, and no more.
            fresh = datetime.now(UTC) - call.started_at < VISIBILITY_LAG
            return Running(word="not found yet") if fresh else Missing()
        if not is_success(reply) or own_error(reply) is not None:
            raise refusal(reply)
        video = _data(reply)
        if not isinstance(video, dict) or task_id_in(video) != task_id:
            raise malformed("the answer is not about the video asked for", reply.status)
        return outcome(video, call.handle)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """Videos whose title holds the call key. Raises ProviderError (AMBIGUOUS, `find_incomplete`) when the list does
        not end.
        """
        found: list[tuple[float, str]] = []
        query = {"title": call.call_key, "limit": str(PAGE)}
        for _ in range(MAX_PAGES):
            reply = await _ask(client, account, "GET", "", params=query)
            if not is_success(reply) or own_error(reply) is not None:
                raise refusal(reply)
            found += [match for listed in _listed(reply) if (match := _match(listed, call.call_key)) is not None]
            token = _next(reply)
            if token is None:
                # Shown newest first, with times in whole seconds: of the same second, the last shown is the oldest.
                found.reverse()
                return [task_id for _, task_id in sorted(found, key=lambda match: match[0])]
            query = {**query, "token": token}
        raise ProviderError(
            "find_incomplete", f"more than {MAX_PAGES} pages of that title", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY
        )

    async def cancel(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> bool:  # noqa: ARG002
        """False: HeyGen can delete a video, and says of no way to stop one, so nothing is asked."""
        return False

    def parse_callback(
        self,
        headers: Mapping[str, str],
        body: bytes,
        *,
        secrets: Sequence[str],
        now: datetime,  # noqa: ARG002 - nothing in this scheme is signed with a time
    ) -> Callback:
        """Verify by HeyGen's scheme, then read the video's id. An unsigned callback is refused like a forged one."""
        verify_heygen(headers, body, secrets=secrets)
        told = Reply(200, httpx.Headers(), body).json()
        data = told.get("event_data") if isinstance(told, dict) else None
        task_id = task_id_in({"video_id": data.get("video_id")}) if isinstance(data, dict) else None
        if task_id is None:
            raise unverified("it names no video")
        named = told.get("event_id") or {name.lower(): value for name, value in headers.items()}.get(EVENT_ID)
        return Callback(delivery_id_of(named, body), task_id)


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    path: str,
    *,
    deadline: timedelta = POLL_DEADLINE,
    json: JSON = None,
    params: Mapping[str, str] | None = None,
    key: str | None = None,
) -> Reply:
    return await request(
        client,
        method,
        f"{account.base_url.rstrip('/')}/v3/videos{path}",
        deadline=deadline,
        headers={"x-api-key": account.api_key} | ({} if key is None else {"idempotency-key": key}),
        json=json,
        params=params,
    )


def _data(reply: Reply) -> JSON:
    body = reply.json()
    return body.get("data") if isinstance(body, dict) else None


def _listed(reply: Reply) -> list[Mapping[str, JSON]]:
    data = _data(reply)
    if not isinstance(data, list) or not all(isinstance(listed, dict) for listed in data):
        raise malformed("a list without videos", reply.status)
    return data


def _match(listed: Mapping[str, JSON], call_key: str) -> tuple[float, str] | None:
    # The filter is by part of a title, and may be ignored: every title is looked at.
    task_id, created = task_id_in(listed), listed.get("created_at")
    if task_id is None or call_key not in str(listed.get("title")):
        return None
    return float(created) if isinstance(created, int | float) else 0.0, task_id


def _next(reply: Reply) -> str | None:
    """The token of the next page, or None after the last."""
    body = reply.json()
    if body.get("has_more") is not True:
        return None
    token = body.get("next_token")
    if not isinstance(token, str) or not token:
        raise ProviderError(
            "find_incomplete", "more pages, and no token for them", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY
        )
    return token


def _checked(task_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", task_id):
        raise _unsendable("not a video's id")
    return task_id


def _unsendable(why: str) -> ProviderError:
    return ProviderError("request_unsendable", why, fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)


KINDS = (
    Kind(
        name="heygen-video",
        mode=Mode.ASYNC,
        provider=HeyGenVideo(),
        base_url="https://api.heygen.com",
        send_deadline=SEND_DEADLINE,
        poll_deadline=POLL_DEADLINE,
        first_poll=timedelta(seconds=15),
        poll_every=timedelta(seconds=20),
        visibility_lag=VISIBILITY_LAG,
        max_run=timedelta(hours=2),
        stale_after=timedelta(minutes=30),
        # A link lives seven days, and each poll shows a fresh one; the video stays until somebody deletes it.
        result_life=timedelta(days=7),
        finds_lost=True,
        signs_callbacks=True,
        shapes=("video", "file"),
        meter="seconds of video",
        media_hosts=(".heygen.ai", ".heygen.com"),
    ),
)
