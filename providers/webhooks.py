"""Signatures on callbacks, checked on the raw bytes: Standard Webhooks, and the schemes of single vendors.

- Replicate signs `id.timestamp.body`, as Standard Webhooks say (standardwebhooks.com, Replicate's webhook pages).
- OpenRouter signs `timestamp,body` in hex (its cookbook on video webhooks); the comma is no slip.
- ElevenLabs signs `timestamp.body` in hex (its webhook documentation and Python client).
- HeyGen signs the body alone in hex (its webhook documentation): no time is signed, so a copy stays valid for ever.

All are HMAC-SHA256. Several secrets may be given, so that one can be rotated. Any doubt is a refusal.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from providers.errors import Fate, ProviderError, Remedy

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
TOLERANCE = timedelta(minutes=5)
MAX_BODY = 8 * 1024**2
MAX_ID = 256
MAX_DIGITS = 12
MAX_SIGNATURES = 16
_MAX_HEADER = 4096
_PREFIX = "whsec_"
_HEX = re.compile(r"[0-9a-fA-F]{64}")
_ID = re.compile(r"[\x21-\x7e]{1,200}")


@dataclass(frozen=True, slots=True)
class Stamped:
    """A scheme whose one header reads `t=<unix seconds>,<version>=<hex>`, over the time, `separator` and the body.

    `past` and `future` bound how far the signed time may be from ours.
    """

    header: str
    version: str
    separator: bytes
    past: timedelta = TOLERANCE
    future: timedelta = TOLERANCE


OPENROUTER = Stamped("x-openrouter-signature", "v1", b",")
# ElevenLabs tries again for half an hour after the first attempt, and its client takes what is no older than that.
ELEVENLABS = Stamped("elevenlabs-signature", "v0", b".", past=timedelta(minutes=30))
# The second is the name that older endpoints still use.
HEYGEN_HEADERS = ("heygen-signature", "signature")


def verify(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> str:
    """Check a Standard Webhook and return its delivery id (the same on every retry of one delivery).

    Any of `secrets` may have signed it. `now` is aware; the signed time may differ from it by at most five
    minutes, either way. Raises ProviderError (REJECTED, `callback_unverified`) on any doubt, and when there
    is no secret to check with.
    """
    given = _lowered(headers, body)
    delivery_id, timestamp, signatures = (given.get(name, "") for name in (ID, TIMESTAMP, SIGNATURE))
    if not (delivery_id.isascii() and 0 < len(delivery_id) <= MAX_ID):
        raise unverified("no delivery id")
    _in_window(timestamp, now, past=TOLERANCE, future=TOLERANCE)
    offered = [part[3:] for part in signatures.split(" ")[:MAX_SIGNATURES] if part.startswith("v1,")]
    signed = b".".join((delivery_id.encode(), timestamp.encode(), body))
    if not _any_matches([_digest(key, signed) for key in map(_key, secrets) if key], offered):
        raise unverified("no signature matches")
    return delivery_id


def sign(secret: str, delivery_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The three headers a sender puts on a Standard Webhook. `timestamp` is in seconds since 1970. ValueError on a
    bad secret.
    """
    key = _key(secret)
    if not key:
        raise ValueError("not a webhook secret")
    signature = _digest(key, b".".join((delivery_id.encode(), str(timestamp).encode(), body)))
    return {ID: delivery_id, TIMESTAMP: str(timestamp), SIGNATURE: f"v1,{signature}"}


def verify_stamped(
    scheme: Stamped, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
) -> None:
    """Check a callback of OpenRouter or ElevenLabs. Raises as `verify` does; the scheme knows no delivery id."""
    given = _lowered(headers, body).get(scheme.header, "")
    parts = [part.strip().partition("=") for part in given[:_MAX_HEADER].split(",")[: MAX_SIGNATURES + 1]]
    times = [value for name, _, value in parts if name == "t"]
    if len(times) != 1:
        raise unverified("no signed time, or several")
    _in_window(times[0], now, past=scheme.past, future=scheme.future)
    offered = [value for name, _, value in parts if name == scheme.version]
    _check_hex(times[0].encode() + scheme.separator + body, offered, secrets)


def sign_stamped(scheme: Stamped, secret: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The header a sender of that scheme puts on a callback. `timestamp` is in seconds since 1970."""
    signature = _hex_digest(secret, str(timestamp).encode() + scheme.separator + body)
    return {scheme.header: f"t={timestamp},{scheme.version}={signature}"}


def verify_heygen(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> None:
    """Check a callback of HeyGen. Raises as `verify` does.

    What passes may be a copy of any age: whoever acts on it must be ready to do so twice, and ask HeyGen first.
    """
    given = _lowered(headers, body)
    _check_hex(body, [given[name] for name in HEYGEN_HEADERS if name in given], secrets)


def sign_heygen(secret: str, body: bytes) -> dict[str, str]:
    """The header HeyGen puts on a callback."""
    return {HEYGEN_HEADERS[0]: _hex_digest(secret, body)}


def delivery_id_of(named: object, body: bytes) -> str:
    """An id for a delivery whose name the signature does not cover: the name, if usable, and the body's digest.

    With the name alone, somebody who replays an old body could use up the name of a delivery still to come.
    """
    digest = hashlib.sha256(body).hexdigest()[:32]
    return f"{named}:{digest}" if isinstance(named, str) and _ID.fullmatch(named) else digest


def unverified(why: str) -> ProviderError:
    """The one refusal of a callback."""
    return ProviderError("callback_unverified", f"callback refused: {why}", fate=Fate.REJECTED, remedy=Remedy.NOBODY)


def _lowered(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    if len(body) > MAX_BODY:
        raise unverified("its body is out of bounds")
    return {name.lower(): value for name, value in headers.items()}


def _in_window(timestamp: str, now: datetime, *, past: timedelta, future: timedelta) -> None:
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= MAX_DIGITS):
        raise unverified("no usable timestamp")
    if not -future.total_seconds() <= now.timestamp() - int(timestamp) <= past.total_seconds():
        raise unverified("its timestamp is out of tolerance")


def _check_hex(signed: bytes, offered: Sequence[str], secrets: Sequence[str]) -> None:
    plausible = [one.lower() for one in offered if _HEX.fullmatch(one)]
    # An empty secret would let anybody sign.
    if not _any_matches([_hex_digest(secret, signed) for secret in secrets if secret], plausible):
        raise unverified("no signature matches")


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        return b""


def _digest(key: bytes, signed: bytes) -> str:
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def _hex_digest(secret: str, signed: bytes) -> str:
    return hmac.digest(secret.encode("utf-8", "surrogateescape"), signed, hashlib.sha256).hex()


def _any_matches(expected: Sequence[str], offered: Sequence[str]) -> bool:
    # No early exit: the time taken must not tell which secret or which part came close.
    found = False
    for ours in expected:
        for theirs in offered:
            found |= hmac.compare_digest(ours.encode(), theirs.encode("utf-8", "surrogateescape"))
    return found
