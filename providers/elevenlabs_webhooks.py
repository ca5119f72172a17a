"""What ElevenLabs's workspace webhooks say. How they are signed stands in `providers.webhooks`; there is no delivery
id, so one is made of the event (ElevenLabs's webhook documentation and its Python client).
"""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

import httpx

from providers.contract import Callback
from providers.elevenlabs_results import is_id
from providers.http import Reply
from providers.webhooks import ELEVENLABS, unverified, verify_stamped

_NAMES = ("dubbing_id", "voice_id", "project_id", "transcription_id", "request_id")


def parse(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> Callback:
    """The verified event's id for what it is about. A repeated delivery of one event gives the same delivery id.

    Raises ProviderError (REJECTED, `callback_unverified`) on any doubt.
    """
    verify_stamped(ELEVENLABS, headers, body, secrets=secrets, now=now)
    event = Reply(200, httpx.Headers(), body).json()
    data = event.get("data") if isinstance(event, dict) else None
    named = [data[name] for name in _NAMES if is_id(data.get(name))] if isinstance(data, dict) else []
    if not named:
        raise unverified("it names nothing of ours")
    told = f"{event.get('type')}:{event.get('event_timestamp')}:{named[0]}"
    return Callback(hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest(), named[0])
