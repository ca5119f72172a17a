"""Callbacks: an address that names the call and cannot be guessed, a door that keeps what it lets in, an actor behind.

A callback is a hint to poll now, and sometimes the only one to name a task whose id was lost. Nothing else in it is
believed.
"""

import base64
import hashlib
import hmac
import logging
from collections.abc import Mapping
from datetime import datetime
from uuid import UUID

import dramatiq
import sqlalchemy as sa

from actors.runtime import Runtime, runtime
from actors.settings import Settings
from providers.contract import AsyncProvider
from providers.errors import ProviderError
from providers.registry import UnknownKind, get_kind
from store import inbox
from store.models import CallState, ClaimedJob

log = logging.getLogger("callkeeper.callbacks")

MAX_BODY = 256 * 1024  # bytes
_MAC_BYTES = 16


class CallbackRefused(Exception):
    """The callback is not believed; nothing was kept. `status` is the HTTP status to answer with."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def callback_url(options: Settings, job: ClaimedJob, state: CallState) -> str | None:
    """Where the provider should call back about this very call; None when callbacks are not set up."""
    if options.callback_url is None or options.callback_secret is None:
        return None
    token = make_token(options.callback_secret.get_secret_value(), job.lease.job_id, state.generation)
    return f"{str(options.callback_url).rstrip('/')}/{state.kind}/{token}"


def make_token(secret: str, job_id: UUID, generation: int) -> str:
    """Names a call, and proves that we named it."""
    plain = job_id.bytes + generation.to_bytes(4, "big")
    return base64.urlsafe_b64encode(plain + _mac(secret, plain)).decode().rstrip("=")


def read_token(secret: str, token: str) -> tuple[UUID, int]:
    """Job and call generation. Raises CallbackRefused (404) for what is not ours."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    plain, proof = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
    if len(plain) != 20 or not hmac.compare_digest(proof, _mac(secret, plain)):  # noqa: PLR2004  # id and generation
        raise CallbackRefused(404, "no such callback address")
    return UUID(bytes=plain[:16]), int.from_bytes(plain[16:], "big")


def _mac(secret: str, plain: bytes) -> bytes:
    return hmac.new(secret.encode(), b"callkeeper callback " + plain, hashlib.sha256).digest()[:_MAC_BYTES]


def receive(
    connection: sa.Connection,
    options: Settings,
    *,
    kind: str,
    token: str,
    headers: Mapping[str, str],
    body: bytes,
    now: datetime,
) -> bool:
    """Verify a callback and keep it; to be answered 2xx only after the connection's transaction has committed.

    False when it had come before. A task nobody knows is kept too: the create that named it may not have come home yet.
    Raises CallbackRefused.
    """
    if len(body) > MAX_BODY:
        raise CallbackRefused(413, f"a callback has at most {MAX_BODY} bytes, this one {len(body)}")
    if options.callback_secret is None:
        raise CallbackRefused(404, "callbacks are not set up: CALLKEEPER_CALLBACK_SECRET is not set")
    job_id, generation = read_token(options.callback_secret.get_secret_value(), token)
    try:
        provider = get_kind(kind).provider
    except UnknownKind:
        raise CallbackRefused(404, "no such callback address") from None
    if not isinstance(provider, AsyncProvider):
        raise CallbackRefused(404, "no such callback address")
    known = options.kinds.get(kind)
    secrets = [] if known is None else [secret.get_secret_value() for secret in known.callback_secrets]
    try:
        callback = provider.parse_callback(headers, body, secrets=secrets, now=now)
    except ProviderError as error:
        raise CallbackRefused(401, error.message) from None
    return inbox.receive(connection, kind, callback.delivery_id, callback.task_id, job_id=job_id, generation=generation)


@dramatiq.actor(queue_name="results", priority=5)
def apply_callback(delivery: int) -> None:
    """Turn a kept callback into a poll. Doing it twice changes nothing."""
    apply(runtime(), delivery)


def apply(rt: Runtime, delivery: int) -> str | None:
    outcome = rt.db.once(inbox.apply, delivery)
    log.info("callback.applied delivery=%s outcome=%s", delivery, outcome)
    return outcome
