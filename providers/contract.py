"""The contract every provider kind fulfils: create, poll, find, cancel, parse a callback; each at most one
request.

Nothing here knows of jobs, rows or queues. A provider module is a pure translation: our words to the
provider's wire and back. It never sleeps, never retries, never logs a credential; the caller owns deadlines
and decisions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

import httpx
from pydantic import BaseModel

JSON: TypeAlias = Any
Hear: TypeAlias = Callable[[str], None]  # takes the next piece of a text, at once

# What a result can be. Media shapes come as files; the others as text or as a JSON value.
SHAPES = ("image", "video", "audio", "file", "text", "json", "voice", "model", "transcript")


class Mode(StrEnum):
    ASYNC = "async"  # create answers with a task id; polls tell the rest
    SYNC = "sync"  # the response to the one request is the result


@dataclass(frozen=True, slots=True)
class Account:
    """Where and as whom we call. Never stored, never logged: rows name it by `name` only."""

    name: str
    base_url: str
    api_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One call as the job row knows it.

    `request` is the validated provider request, as JSON. `handle` is what was frozen at intent (account
    name, endpoint, model, output shape): polls and finds use it, never today's configuration. `call_key` is
    ours, unique per generation. `started_at` is the database's time of the intent. `callback_url` carries
    our signed id, or is None.
    """

    request: Mapping[str, JSON]
    handle: Mapping[str, JSON]
    call_key: str
    started_at: datetime
    callback_url: str | None = None


@dataclass(frozen=True, slots=True)
class Media:
    """A file to fetch, or one that came with the answer (`content`; `url` is then empty).

    `authorised` says whether the account's key may be sent to this host.
    """

    url: str = field(repr=False)  # may be signed: repr must not leak it
    kind: str  # image | video | audio | file
    authorised: bool = False
    content: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Running:
    """The task lives. `progress` is 0..1 or None; `word` is the provider's status word, `known` false for a
    new one.
    """

    progress: float | None = None
    word: str = ""
    known: bool = True


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The task ended well. At least one of `media`, `text`, `value` holds something.

    `usage` is what the provider says it metered (plain numbers and short strings): the cost meter's input.
    """

    media: Sequence[Media] = ()
    text: str | None = None
    value: JSON = None
    usage: Mapping[str, int | float | str] = field(default_factory=dict)
    provider_id: str | None = None  # a sync call's own id at the provider, for the receipt


@dataclass(frozen=True, slots=True)
class Failed:
    """The provider says the task ended without a result. `code` as in ProviderError; `cancelled` if it was
    stopped.
    """

    code: str
    message: str
    cancelled: bool = False
    usage: Mapping[str, int | float | str] = field(default_factory=dict)  # a run without a result costs, too
    provider_id: str | None = None


@dataclass(frozen=True, slots=True)
class Missing:
    """The provider does not know this task id (yet, or any more)."""


Outcome: TypeAlias = Running | Succeeded | Failed | Missing


@dataclass(frozen=True, slots=True)
class Callback:
    """A verified callback: a hint to poll now, nothing more."""

    delivery_id: str
    task_id: str


class KindProvider(Protocol):
    """Common to both modes. `request_model` validates what an app submits for this kind."""

    request_model: type[BaseModel]

    def handle(self, request: Mapping[str, JSON]) -> dict[str, JSON]:
        """What to freeze at intent beside the account's name: small, without secrets, enough for poll and
        find.
        """
        ...


@runtime_checkable
class AsyncProvider(KindProvider, Protocol):
    async def create(self, client: httpx.AsyncClient, account: Account, call: Call) -> str | Succeeded | Failed:
        """One POST. Returns the task id, or the outcome itself where the answer is all there will ever be.

        Raises ProviderError with its fate.
        """
        ...

    async def poll(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> Outcome:
        """One GET. Raises ProviderError when nothing was learned (never for a task that failed)."""
        ...

    async def find(self, client: httpx.AsyncClient, account: Account, call: Call) -> Sequence[str]:
        """Task ids at the provider that can only be this call or its twin (same input, same window), oldest
        first.

        Empty means: the provider showed its whole window and it is not there. Raises ProviderError if it
        could not look.
        """
        ...

    async def cancel(self, client: httpx.AsyncClient, account: Account, call: Call, task_id: str) -> bool:
        """Ask for an end. True when the provider took the request or the task had already ended."""
        ...

    def parse_callback(
        self, headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime
    ) -> Callback:
        """Verify on the raw bytes. Raises ProviderError (REJECTED, `callback_unverified`) on any doubt."""
        ...


@runtime_checkable
class SyncProvider(KindProvider, Protocol):
    async def run(self, client: httpx.AsyncClient, account: Account, call: Call) -> Succeeded | Failed:
        """One request whose response is the result. Raises ProviderError with its fate."""
        ...


@runtime_checkable
class StreamingProvider(SyncProvider, Protocol):
    """One whose request has a field `stream`; when it is true, `stream` is called instead of `run`."""

    async def stream(self, client: httpx.AsyncClient, account: Account, call: Call, hear: Hear) -> Succeeded | Failed:
        """As `run`, while the text is passed on as it comes. Fails as `stream_cut` where the end mark is missing."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One provider kind: how it behaves in time, and what it can do."""

    name: str
    mode: Mode
    provider: AsyncProvider | SyncProvider
    base_url: str
    send_deadline: timedelta  # the one create (or sync) request, connect to last byte
    poll_deadline: timedelta = timedelta(seconds=10)
    first_poll: timedelta = timedelta(seconds=2)
    poll_every: timedelta = timedelta(seconds=5)
    visibility_lag: timedelta = timedelta(seconds=10)  # until a created task is sure to be listed
    missing_grace: timedelta = timedelta(seconds=30)  # after the intent: until then "unknown task" proves nothing
    max_run: timedelta = timedelta(minutes=30)
    stale_after: timedelta = timedelta(minutes=20)
    result_life: timedelta | None = None  # how long a finished result stays fetchable
    finds_lost: bool = False
    cancels: bool = False
    shapes: tuple[str, ...] = ("image",)  # of SHAPES; a request's handle names its own as `output`
    meter: str = ""  # what the provider's usage counts, for people: "GPU seconds", "tokens"
    idempotent_create: bool = False  # a create repeated under the same key is billed once
    signs_callbacks: bool = False
    key_header: str = "authorization"  # what carries the key with a download; as `Bearer …` in this one, else as it is
    media_hosts: tuple[str, ...] = ()  # a leading dot matches subdomains
    max_bytes: int = 2 * 1024**3
