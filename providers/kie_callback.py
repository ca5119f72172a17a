"""KIE's callbacks: the signature covers the task's id and a time, not the body, so nothing else of it is believed.

Source: KIE's webhook documentation. An account without a key gets them unsigned; those are refused here, as
is everything when no key is configured: they are told apart only by what the receiver put into its own URL.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime

import httpx

from providers.contract import JSON, Callback
from providers.http import Reply
from providers.kie_wire import task_id_in
from providers.text import safe_text
from providers.webhooks import MAX_BODY, MAX_DIGITS, TOLERANCE, unverified

TIMESTAMP, SIGNATURE = "x-webhook-timestamp", "x-webhook-signature"

_MAX_STATE = 40


def parse(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> Callback:
    """Check a callback and read whose it is. Any of `secrets` may have signed it, so that a key can be rotated.

    `now` is aware; the signed time may differ from it by at most five minutes, either way. KIE sends no
    delivery id: ours is made of the task's id and the state it tells, so that repeats are one delivery.
    Raises ProviderError (REJECTED, `callback_unverified`) on any doubt.
    """
    given = {name.lower(): value for name, value in headers.items()}
    timestamp, signature = given.get(TIMESTAMP, ""), given.get(SIGNATURE, "")
    if len(body) > MAX_BODY:
        raise unverified("a body out of bounds")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= MAX_DIGITS):
        raise unverified("no usable timestamp")
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE.total_seconds():
        raise unverified("its timestamp is out of tolerance")
    told = Reply(200, httpx.Headers(), body).json()
    data = told.get("data") if isinstance(told, dict) else None
    task_id = task_id_in(data)
    if task_id is None or not isinstance(data, dict):
        raise unverified("it names no task")
    if not _signed(task_id, timestamp, signature, secrets):
        raise unverified("no signature matches")
    return Callback(f"{task_id}:{_state(told, data)}", task_id)


def sign(secret: str, task_id: str, timestamp: int) -> dict[str, str]:
    """The two headers a sender puts on a callback. `timestamp` is in seconds since 1970."""
    return {TIMESTAMP: str(timestamp), SIGNATURE: _digest(secret, task_id, str(timestamp))}


def _digest(secret: str, task_id: str, timestamp: str) -> str:
    # The key is the text from the account's settings, as it stands.
    signed = f"{task_id}.{timestamp}".encode()
    return base64.b64encode(hmac.digest(secret.encode(), signed, hashlib.sha256)).decode()


def _signed(task_id: str, timestamp: str, signature: str, secrets: Sequence[str]) -> bool:
    # No early exit: the time taken must not tell which secret came close. An empty one would be anybody's.
    found = False
    for secret in secrets:
        expected = _digest(secret, task_id, timestamp).encode()
        found |= bool(secret) & hmac.compare_digest(expected, signature.encode("utf-8", "surrogateescape"))
    return found


def _state(told: Mapping[str, JSON], data: Mapping[str, JSON]) -> str:
    for word in (*(data.get(name) for name in ("state", "status", "callbackType", "successFlag")), told.get("code")):
        if isinstance(word, str | int) and word != "":
            return safe_text(word, _MAX_STATE)
    return "-"
