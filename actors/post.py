"""Telling an address of the app's or an operator's, over HTTP: signed as Standard Webhooks, under a key that stays.

Whoever is told twice recognises it by the key. The address itself may be a secret, so nothing here repeats it.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import Any

import httpx

_DEADLINE = 10.0


class NotDelivered(Exception):
    """This try failed; the row is tried again later."""


async def post(
    client: httpx.AsyncClient, url: str, message: Mapping[str, Any], *, key: str, secret: str | None, what: str
) -> None:
    """POST `message` as JSON; unsigned without a `secret`. Raises NotDelivered, which calls the address `what`."""
    body = json.dumps(message, separators=(",", ":")).encode()
    stamp = str(int(time.time()))
    headers = {"content-type": "application/json", "webhook-id": key, "webhook-timestamp": stamp}
    if secret is not None:
        headers["webhook-signature"] = sign(secret, key, stamp, body)
    try:
        response = await client.post(url, content=body, headers=headers, timeout=_DEADLINE)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise NotDelivered(f"{what} cannot be reached: {type(error).__name__}") from None
    if not response.is_success:
        raise NotDelivered(f"{what} answered {response.status_code}")


def sign(secret: str, message_id: str, stamp: str, body: bytes) -> str:
    """`v1,` and base64 of the HMAC-SHA256 over `id.timestamp.body` (Standard Webhooks)."""
    key = base64.b64decode(secret.removeprefix("whsec_")) if secret.startswith("whsec_") else secret.encode()
    signed = b".".join((message_id.encode(), stamp.encode(), body))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
