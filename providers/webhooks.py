"""Standard Webhooks: signatures on callbacks, as Replicate sends them.

Signed is `id.timestamp.body` with HMAC-SHA256; the key is the base64 after `whsec_`; the header holds one
or more `v1,<base64>` separated by spaces (standardwebhooks.com, and Replicate's webhook documentation).
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from providers.errors import Fate, ProviderError, Remedy

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = timedelta(minutes=5)
MAX_BODY = 8 * 1024**2
MAX_ID = 256
MAX_DIGITS = 12
MAX_SIGNATURES = 16
_PREFIX = "whsec_"


def verify(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> str:
    """Check a callback on its raw bytes and return its delivery id (the same on every retry of one delivery).

    Any of `secrets` may have signed it, so that a secret can be rotated. `now` is aware; the signed time
    may differ from it by at most five minutes, either way. Raises ProviderError (REJECTED,
    `callback_unverified`) on any doubt, and when there is no secret to check with.
    """
    given = {name.lower(): value for name, value in headers.items()}
    delivery_id, timestamp, signatures = (given.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (delivery_id.isascii() and 0 < len(delivery_id) <= MAX_ID and len(body) <= MAX_BODY):
        raise unverified("no delivery id, or a body out of bounds")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= MAX_DIGITS):
        raise unverified("no usable timestamp")
    if abs(now.timestamp() - int(timestamp)) > TOLERANCE.total_seconds():
        raise unverified("its timestamp is out of tolerance")
    offered = [part[3:] for part in signatures.split(" ")[:MAX_SIGNATURES] if part.startswith("v1,")]
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    if not _any_matches([_digest(key, signed) for key in map(_key, secrets) if key], offered):
        raise unverified("no signature matches")
    return delivery_id


def sign(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers a sender puts on a callback. `timestamp` is in seconds since 1970. ValueError on a
    bad secret.
    """
    key = _key(secret)
    if not key:
        raise ValueError("not a webhook secret")
    signature = _digest(key, b".".join((delivery_id.encode(), str(timestamp).encode(), body)))
    return {ID: delivery_id, TIMESTAMP: str(timestamp), SIGNATURE: f"v1,{signature}"}


def unverified(why: str) -> ProviderError:
    """The one refusal of a callback."""
    return ProviderError("callback_unverified", f"callback refused: {why}", fate=Fate.REJECTED, remedy=Remedy.NOBODY)


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _digest(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _any_matches(expected: Sequence[str], offered: Sequence[str]) -> bool:
    # No early exit: the time taken must not tell which secret or which part came close.
    found = False
    for ours in expected:
        for theirs in offered:
            found |= hmac.compare_digest(ours.encode(), theirs.encode("utf-8", "surrogateescape"))
    return found
