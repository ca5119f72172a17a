"""The asynchronous kinds at KIE: one create and one record endpoint a family, the same envelope around all.

Creates are not idempotent there, a task whose id was lost is listed nowhere, and none can be cancelled: by
KIE's documentation only the callback, whose address carries our own id, brings a lost task home.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import httpx
from pydantic import BaseModel

from providers import kie_callback, kie_llm, kie_words
from providers.contract import JSON, Account, Call, Callback, Failed, Kind, Missing, Mode, Outcome
from providers.errors import Fate, ProviderError, Remedy
from providers.kie_market import KieKlingRequest, KieLipSyncRequest
from providers.kie_requests import (
    KieKontextRequest,
    KieLumaRequest,
    KieRequest,
    KieRunwayRequest,
    KieStandardRequest,
    KieSunoRequest,
    KieVeoRequest,
)
from providers.kie_wire import ask, checked, created, polled
from providers.replies import validated

BASE_URL = "https://api.kie.ai"
SEND_DEADLINE = timedelta(seconds=30)
POLL_DEADLINE = timedelta(seconds=10)
# Of result files, in the documentation's examples. They are fetched without the account's key.
MEDIA_HOSTS = (".aiquickdraw.com",)
# The documentation says both 14 days and "usually 24 hours"; the shorter one is planned with.
RESULT_LIFE = timedelta(hours=24)

CREATE_TASK = "/api/v1/jobs/createTask"
RECORD_INFO = "/api/v1/jobs/recordInfo"
TASK_DETAIL = "/api/v1/jobs/getTaskDetail"  # the same under its older name
# Suno's create insists on an address; when there is none to give, this one leads nowhere by RFC 2606.
NOWHERE = "https://callback.invalid/"


class KieTasks:
    """One family of tasks at KIE; holds no state but its own paths and words."""

    def __init__(
        self,
        request_model: type[KieRequest],
        read: kie_words.Reader,
        *,
        create_path: str = CREATE_TASK,
        poll_path: str = RECORD_INFO,
        insists_on_callback: bool = False,
    ) -> None:
        self.request_model: type[BaseModel] = request_model
        self._model, self._read = request_model, read
        self._create_path, self._poll_path = create_path, poll_path
        self._spare_callback = NOWHERE if insists_on_callback else None

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`poll` (the record's path), `model`, `output` (media, text or json) and `media_kind`."""
        return {"poll": self._poll_path, **validated(self._model, request).frozen()}

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str:
        """POST one task. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        body = validated(self._model, call.request).wire()
        callback = call.callback_url or self._spare_callback
        if callback is not None:
            body["callBackUrl"] = callback
        return created(await ask(client, account, "POST", self._create_path, deadline=SEND_DEADLINE, json=body))

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the task's record. Missing while KIE has none, which is so for some seconds after every create."""
        handle = self._frozen(call)
        path = handle["poll"] if handle["poll"] in (RECORD_INFO, TASK_DETAIL) else self._poll_path
        params = {"taskId": checked(task_id)}
        found = polled(await ask(client, account, "GET", path, deadline=POLL_DEADLINE, params=params), task_id)
        return found if isinstance(found, Failed | Missing) else self._read(found, handle)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:  # noqa: ARG002
        """Raises ProviderError (`find_unsupported`), always: KIE has no list, and no look means no word on absence."""
        raise ProviderError(
            "find_unsupported", "KIE lists no tasks to its key", fate=Fate.NOT_SENT, remedy=Remedy.NOBODY
        )

    async def cancel(
        self,
        client: httpx.AsyncClient,  # noqa: ARG002 - the contract's signature
        account: Account,  # noqa: ARG002
        call: Call,  # noqa: ARG002
        task_id: str,  # noqa: ARG002
    ) -> bool:
        """False: KIE has no way to stop a task; it goes on, and bills."""
        return False

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify by KIE's signature of task id and time. See `providers.kie_callback`."""
        return kie_callback.parse(headers, body, secrets=secrets, now=now)

    def _frozen(self, call: Call) -> dict[str, JSON]:
        # Polls come without the request: what was frozen at intent is all they need.
        return dict(call.handle) if "poll" in call.handle else self.handle(call.request) | dict(call.handle)


def _kind(
    name: str,
    provider: KieTasks,
    *,
    stale: int,
    max_run: int,
    look: int = 30,
    shapes: tuple[str, ...] = ("video",),
) -> Kind:
    """`stale` and `max_run` in minutes, `look` in seconds.

    The record endpoint takes ten requests a second for a key that may run a hundred tasks at once, so nobody
    looks more often than every 15 seconds; callbacks bring results home sooner. What is visible of a task
    whose id was lost is its callback at the end of its run: hence the lag.
    """
    return Kind(
        name=name,
        mode=Mode.ASYNC,
        provider=provider,
        base_url=BASE_URL,
        send_deadline=SEND_DEADLINE,
        poll_deadline=POLL_DEADLINE,
        first_poll=timedelta(seconds=look),
        poll_every=timedelta(seconds=look),
        visibility_lag=timedelta(minutes=stale),
        missing_grace=timedelta(minutes=5),
        max_run=timedelta(minutes=max_run),
        stale_after=timedelta(minutes=stale),
        result_life=RESULT_LIFE,
        signs_callbacks=True,
        shapes=shapes,
        meter="credits",
        media_hosts=MEDIA_HOSTS,
    )


_STANDARD = KieTasks(KieStandardRequest, kie_words.market_task)
_VEO = KieTasks(
    KieVeoRequest,
    kie_words.veo_task,
    create_path="/api/v1/veo/generate",
    poll_path="/api/v1/veo/record-info",
)
_SUNO = KieTasks(
    KieSunoRequest,
    kie_words.suno_task,
    create_path="/api/v1/generate",
    poll_path="/api/v1/generate/record-info",
    insists_on_callback=True,
)
_KONTEXT = KieTasks(
    KieKontextRequest,
    kie_words.kontext_task,
    create_path="/api/v1/flux/kontext/generate",
    poll_path="/api/v1/flux/kontext/record-info",
)
_LUMA = KieTasks(
    KieLumaRequest,
    kie_words.luma_task,
    create_path="/api/v1/modify/generate",
    poll_path="/api/v1/modify/record-info",
)
_KLING = KieTasks(KieKlingRequest, kie_words.kling_task)
_RUNWAY = KieTasks(
    KieRunwayRequest,
    kie_words.runway_task,
    create_path="/api/v1/runway/generate",
    poll_path="/api/v1/runway/record-detail",
)
_LIP_SYNC = KieTasks(KieLipSyncRequest, kie_words.market_task)

KINDS: tuple[Kind, ...] = (
    _kind(
        "kie-standard",
        _STANDARD,
        stale=10,
        max_run=30,
        look=15,
        shapes=("image", "video", "audio", "file", "text", "json"),
    ),
    _kind("kie-veo", _VEO, stale=25, max_run=40),
    _kind("kie-suno", _SUNO, stale=30, max_run=45, shapes=("audio",)),
    _kind("kie-kontext", _KONTEXT, stale=10, max_run=25, look=15, shapes=("image",)),
    _kind("kie-luma", _LUMA, stale=25, max_run=40),
    _kind("kie-kling3", _KLING, stale=25, max_run=40),
    _kind("kie-runway", _RUNWAY, stale=25, max_run=40),
    _kind("kie-lip-sync", _LIP_SYNC, stale=75, max_run=90),
    *kie_llm.KINDS,
)
