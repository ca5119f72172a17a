"""Kinds `elevenlabs-async` and `elevenlabs-sync`.

No create there takes an idempotency key, and the vendor's own client sends a paid request again by itself; this one
never does. What was created and lost is found again where a list shows the mark that was planted (dubbings, voices);
a design's previews, an alignment, speech, sounds and transcriptions are in no list that could prove their absence.

Sources: ElevenLabs's API documentation and its Python client.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx
from pydantic import BaseModel

from providers import elevenlabs_results as results
from providers import elevenlabs_wire as wire
from providers.contract import JSON, Account, Call, Callback, Failed, Kind, Missing, Mode, Outcome, Succeeded
from providers.elevenlabs_find import DUBBINGS, VOICES, search
from providers.elevenlabs_requests import Dubbing, ElevenLabsAsyncRequest, ElevenLabsSyncRequest, VoiceDesign
from providers.elevenlabs_webhooks import parse
from providers.elevenlabs_words import refusal, unknown
from providers.errors import Fate, ProviderError, Remedy
from providers.replies import is_success, malformed, validated

SEND_DEADLINE = timedelta(minutes=3)
SYNC_DEADLINE = timedelta(minutes=10)
MAX_AUDIO = 256 * 1024**2  # bytes: 40,000 characters are about 50 minutes, in WAV at 44.1 kHz some 250 MB

# Operations whose result is a voice of the account.
_VOICES = frozenset({"voice_clone", "voice_save"})


class ElevenLabsAsync:
    """The provider of kind `elevenlabs-async`; holds no state.

    Only a dubbing takes its time. Clones, designs and saved voices are there once their create has answered: their
    task id is the voice's (of a design: its previews' ids, joined by dots), by which a poll sees them. An alignment
    has no id and is nowhere but in the answer, so its create gives the outcome itself.
    """

    request_model: type[BaseModel] = ElevenLabsAsyncRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`operation`, `output` (media, voice or json) and, of a dubbing, its `language`."""
        wanted = validated(ElevenLabsAsyncRequest, request).root
        if isinstance(wanted, Dubbing):
            return {"operation": wanted.operation, "output": "media", "language": wanted.target_lang}
        return {
            "operation": wanted.operation,
            "output": "json" if wanted.operation == "forced_alignment" else "voice",
        }

    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str | Succeeded:
        """POST once. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
        wanted = validated(ElevenLabsAsyncRequest, call.request).root
        outgoing = wire.outgoing(wanted, call.call_key)
        reply = await wire.ask(client, account, "POST", outgoing, deadline=SEND_DEADLINE)
        if not is_success(reply):
            raise refusal(reply)
        if wanted.operation == "forced_alignment":
            return results.alignment(reply)
        body = reply.json()
        name = "dubbing_id" if isinstance(wanted, Dubbing) else "voice_id"
        task_id = body.get(name) if isinstance(body, dict) else None
        if isinstance(wanted, VoiceDesign):
            task_id = results.previews(body)
        if task_id is None or not all(map(results.is_id, str(task_id).split(results.JOINT))):
            raise ProviderError(
                "accepted_without_id",
                f"HTTP {reply.status} without an id",
                fate=Fate.AMBIGUOUS,
                remedy=Remedy.RETRY,
                status=reply.status,
            )
        return str(task_id)

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """GET the dubbing or the voice. A design needs no request: its task id holds all there is to know."""
        handle, base_url = self._frozen(call), account.base_url.rstrip("/")
        if handle["operation"] == "voice_design":
            return results.design(_checked(task_id), base_url)
        path, name = _place(handle)
        reply = await wire.ask(client, account, "GET", wire.Outgoing(f"{path}/{_checked(task_id)}"))
        if unknown(reply):
            return Missing()
        if not is_success(reply):
            raise refusal(reply)
        body = reply.json()
        if not isinstance(body, dict) or body.get(name) != task_id:
            raise malformed("the answer is not about what was asked for", reply.status)
        if name == "voice_id":
            return results.voice(body)
        return results.dubbing(body, language=str(handle.get("language")), base_url=base_url)

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """What carries this call's mark. Always empty for designs and alignments, which no list shows: by our word
        they are lost, as they are at the provider.
        """
        operation = self._frozen(call)["operation"]
        if operation != "dubbing" and operation not in _VOICES:
            return ()
        shelf = VOICES if operation in _VOICES else DUBBINGS

        async def page(query: Mapping[str, str]) -> Any:
            reply = await wire.ask(client, account, "GET", wire.Outgoing(shelf.path, params=query))
            if not is_success(reply):
                raise refusal(reply)
            return reply.json()

        return await search(page, shelf, call_key=call.call_key, started_at=call.started_at)

    async def cancel(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> bool:
        """DELETE the dubbing or the voice: the API has no other end, and a voice nobody gets would keep its slot.

        A design has ended already, and leaves nothing behind.
        """
        handle = self._frozen(call)
        if handle["operation"] == "voice_design":
            return True
        reply = await wire.ask(client, account, "DELETE", wire.Outgoing(f"{_place(handle)[0]}/{_checked(task_id)}"))
        if unknown(reply):
            return False
        if not is_success(reply):
            raise refusal(reply)
        return True

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify a workspace webhook. None of these operations has one today; a verified one is a hint to look."""
        return parse(headers, body, secrets=secrets, now=now)

    def _frozen(self, call: Call) -> dict[str, JSON]:
        # Polls come without the request: what was frozen at intent is all they need.
        return dict(call.handle) if "operation" in call.handle else self.handle(call.request) | dict(call.handle)


class ElevenLabsSync:
    """The provider of kind `elevenlabs-sync`; holds no state."""

    request_model: type[BaseModel] = ElevenLabsSyncRequest

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """`operation` and `output` (audio or transcript)."""
        operation = validated(ElevenLabsSyncRequest, request).root.operation
        return {"operation": operation, "output": "transcript" if operation == "transcription" else "audio"}

    async def run(self, client: httpx.AsyncClient, account: Account, call: Call) -> Succeeded | Failed:
        """POST once and read the answer: sound comes as bytes, a transcription as text and value."""
        wanted = validated(ElevenLabsSyncRequest, call.request).root
        outgoing = wire.outgoing(wanted, call.call_key)
        reply = await wire.ask(client, account, "POST", outgoing, deadline=SYNC_DEADLINE, max_bytes=MAX_AUDIO)
        if not is_success(reply):
            raise refusal(reply)
        return results.transcript(reply) if wanted.operation == "transcription" else results.audio(reply)


def _place(handle: Mapping[str, JSON]) -> tuple[str, str]:
    """Where one is seen by its id, and the name of that id."""
    return ("/v1/voices", "voice_id") if handle["operation"] in _VOICES else ("/v1/dubbing", "dubbing_id")


def _checked(task_id: str) -> str:
    if not all(map(results.is_id, task_id.split(results.JOINT))):
        raise ProviderError("request_unsendable", "not an id of ElevenLabs", fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)
    return task_id


_BASE_URL = "https://api.elevenlabs.io"

KINDS = (
    Kind(
        name="elevenlabs-async",
        mode=Mode.ASYNC,
        provider=ElevenLabsAsync(),
        base_url=_BASE_URL,
        send_deadline=SEND_DEADLINE,
        poll_deadline=wire.POLL_DEADLINE,
        first_poll=timedelta(seconds=2),
        poll_every=timedelta(seconds=10),
        visibility_lag=timedelta(seconds=60),
        max_run=timedelta(hours=1),
        stale_after=timedelta(minutes=15),
        finds_lost=True,
        cancels=True,
        shapes=("audio", "video", "voice", "json"),
        meter="seconds of media",
        media_hosts=(".elevenlabs.io",),
        key_header=wire.KEY_HEADER,
    ),
    Kind(
        name="elevenlabs-sync",
        mode=Mode.SYNC,
        provider=ElevenLabsSync(),
        base_url=_BASE_URL,
        send_deadline=SYNC_DEADLINE,
        stale_after=timedelta(minutes=5),
        shapes=("audio", "transcript"),
        meter="characters, or seconds of audio",
    ),
)
