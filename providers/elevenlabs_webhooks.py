"""ElevenLabs's workspace webhooks: `ElevenLabs-Signature: t=<seconds>,v0=<hex>`, HMAC-SHA256 over `t.body`.

The secret is used as it is (ElevenLabs's webhook documentation and its Python client, whose check of the time looks
at the past only and compares in plain; this one does better). There is no delivery id: one is made of the event.
"""

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime

import httpx

from providers.contract import Callback
from providers.elevenlabs_results import is_id
from providers.http import Reply
from providers.webhooks import MAX_BODY, MAX_DIGITS, MAX_SIGNATURES, TOLERANCE, unverified

SIGNATURE = "elevenlabs-signature"
_NAMES = ("dubbing_id", "voice_id", "project_id", "transcription_id", "request_id")


def verify(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> None:
    """Check a callback on its raw bytes. Any of `secrets` may have signed it; the signed time may differ from `now`
    by five minutes, either way. Raises ProviderError (REJECTED, `callback_unverified`) on any doubt.
    """
    given = next((value for name, value in headers.items() if name.lower() == SIGNATURE), "")
    fields = [part.strip().partition("=") for part in given.split(",")[: MAX_SIGNATURES + 1]]
    stamps = [value for name, _, value in fields if name == "t"]
    offered = [value for name, _, value in fields if name == "v0"]
    if len(stamps) != 1 or not (stamps[0].isascii() and stamps[0].isdigit() and len(stamps[0]) <= MAX_DIGITS):
        raise unverified("no usable timestamp")
    if len(body) > MAX_BODY or abs(now.timestamp() - int(stamps[0])) > TOLERANCE.total_seconds():
        raise unverified("its timestamp is out of tolerance, or its body out of bounds")
    found = False
    for secret in filter(None, secrets):
        ours = _digest(secret, stamps[0], body)
        for theirs in offered:
            # No early exit: the time taken must not tell which secret came close.
            found |= hmac.compare_digest(ours.encode(), theirs.encode("utf-8", "surrogateescape"))
    if not found:
        raise unverified("no signature matches")


def sign(secret: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The header a sender puts on a callback. `timestamp` is in seconds since 1970."""
    return {SIGNATURE: f"t={timestamp},v0={_digest(secret, str(timestamp), body)}"}


def parse(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> Callback:
    """The verified event's id for what it is about. A repeated delivery of one event gives the same delivery id."""
    verify(headers, body, secrets=secrets, now=now)
    event = Reply(200, httpx.Headers(), body).json()
    data = event.get("data") if isinstance(event, dict) else None
    named = [data[name] for name in _NAMES if is_id(data.get(name))] if isinstance(data, dict) else []
    if not named:
        raise unverified("it names nothing of ours")
    told = f"{event.get('type')}:{event.get('event_timestamp')}:{named[0]}"
    return Callback(hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest(), named[0])


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.digest(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hex()
