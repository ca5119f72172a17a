"""What one process shares: settings, database, event loop, HTTP client, leases, media store. Built at first use."""

import asyncio
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial
from typing import Any, TypeVar

import httpx
import uvloop
from pydantic import SecretStr

from actors.admission import Admission
from actors.announce import Announcer
from actors.gates import Gates
from actors.lease import Held, Keeper, guarded
from actors.rollout import Flags
from actors.settings import VENDOR_KEYS, KindSettings, Settings, settings
from providers.contract import Account, Kind
from providers.errors import Fate, ProviderError, Remedy
from providers.http import make_client, make_looking_client
from providers.media_check import MediaCheck
from providers.registry import get_kind
from store import rollout
from store.engine import Database, make_engine
from store.media import MediaStore

T = TypeVar("T")

_LOOP_DATABASE_THREADS = 4


class NoCredentials(Exception):
    """This process has no key for a kind; an operator must set one. Nothing was sent."""


Request = Callable[[httpx.AsyncClient], Coroutine[Any, Any, T]]


class _Lane:
    """One worker thread's way to the providers: a loop and a connection of its own, so no thread waits for another.

    Polls and downloads, many at a time and nobody's in particular, share the process's loop instead.
    """

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.client = make_client()


class Runtime:
    """The process's shared machinery: database, leases, and one event loop for all that waits."""

    def __init__(self, options: Settings) -> None:
        self.options = options
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"
        url = options.require_database_url()
        self.db = Database(make_engine(url, name=f"callkeeper {self.owner}", pool_size=options.threads + 8))
        self._beat_db = Database(
            make_engine(url, name="callkeeper heartbeat", pool_size=1, statement_timeout_ms=3_000), patience=0
        )
        self.keeper = Keeper(self._beat_db, term=options.lease, beat=options.beat, margin=options.lease_margin)
        self.gates = Gates(self)
        self.flags = Flags(lambda: self.db.once(rollout.read))
        self.admission = Admission(self)
        self.announcer = Announcer(self.db)
        self.draining = threading.Event()
        self.on_waiting: Callable[[], None] = lambda: None  # a job began to wait here: the poller's to hear
        self._lanes = threading.local()
        self._threads = ThreadPoolExecutor(_LOOP_DATABASE_THREADS, thread_name_prefix="callkeeper-db")
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="callkeeper-loop", daemon=True)

    @cached_property
    def media(self) -> MediaStore:
        return MediaStore(self.options.media_url)

    @cached_property
    def looking(self) -> httpx.AsyncClient:
        """For polls and finds, on the event loop."""
        return make_looking_client()

    @cached_property
    def client(self) -> httpx.AsyncClient:
        """For everything else on the event loop: downloads, cancels, notices."""
        return make_client()

    @cached_property
    def media_check(self) -> MediaCheck:
        """For what was fetched, on the event loop."""
        return MediaCheck()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def start(self) -> None:
        self._thread.start()
        self.keeper.start()
        self.admission.start()

    def stop(self) -> None:
        self.admission.stop()
        self.keeper.stop()
        self.announcer.stop()
        with suppress(Exception):
            self.submit(self.media_check.close()).result(timeout=3)
        with suppress(Exception):
            self.submit(self.client.aclose()).result(timeout=2)
            self.submit(self.looking.aclose()).result(timeout=2)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=2)
        self._threads.shutdown(wait=False)
        self.db.dispose()
        self._beat_db.dispose()

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Request[T], *, deadline: timedelta) -> T:
        """Run one request to its end whatever happens to a lease: its answer may be money spent."""
        lane = self._lane()
        return lane.loop.run_until_complete(within(work(lane.client), deadline))

    def call_held(self, work: Request[T], held: Held, *, deadline: timedelta, stops: bool = True) -> T:
        """Run one request while the lease holds. Raises LeaseLost or StopWanted when it was aborted for that."""
        lane = self._lane()
        return lane.loop.run_until_complete(self.held(work(lane.client), held, deadline=deadline, stops=stops))

    def _lane(self) -> "_Lane":
        lane: _Lane | None = getattr(self._lanes, "lane", None)
        if lane is None:
            lane = self._lanes.lane = _Lane()
        return lane

    async def held(self, work: Coroutine[Any, Any, T], held: Held, *, deadline: timedelta, stops: bool = True) -> T:
        """The same for code that is on the event loop already."""
        try:
            return await guarded(asyncio.ensure_future(within(work, deadline)), held, stops=stops)
        finally:
            work.close()  # it may have been aborted before it began

    async def on_thread(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run database work off the event loop."""
        return await self._loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    def kind(self, name: str) -> Kind:
        """The kind with this deployment's overrides. Raises providers.registry.UnknownKind."""
        kind = get_kind(name)
        override = self._override(name)
        times = ("send_deadline", "poll_deadline", "first_poll", "poll_every", "visibility_lag")
        changes: dict[str, Any] = {
            field: timedelta(seconds=value) for field in times if (value := getattr(override, field)) is not None
        }
        if override.finds_lost is not None:
            changes["finds_lost"] = override.finds_lost
        if override.media_hosts is not None:
            changes["media_hosts"] = tuple(override.media_hosts)
        return replace(kind, **changes) if changes else kind

    def account(self, kind: Kind, name: str | None = None) -> Account:
        """Where to call and as whom. Raises NoCredentials naming the variable to set."""
        override = self._override(kind.name)
        variable, key = _default_key(self.options, kind.name)
        key = override.api_key or key
        if key is None:
            raise NoCredentials(f"{variable} is not set, so {kind.name} cannot be called")
        if name is not None and name != override.account:
            raise NoCredentials(
                f"account {name!r} of {kind.name} is not configured here (this is {override.account!r})"
            )
        return Account(
            name=override.account, base_url=override.base_url or kind.base_url, api_key=key.get_secret_value()
        )

    def _override(self, name: str) -> KindSettings:
        return self.options.kinds.get(name) or KindSettings()


def _default_key(options: Settings, kind: str) -> tuple[str, SecretStr | None]:
    """The vendor's variable and what it holds. A kind of a vendor without one has only its own override."""
    vendor = kind.split("-", 1)[0]
    variable = VENDOR_KEYS.get(vendor)
    if variable is None:
        return f"CALLKEEPER_KINDS: api_key of {kind}", None
    return variable, getattr(options, variable.lower())


async def within(work: Coroutine[Any, Any, T], deadline: timedelta) -> T:
    try:
        async with asyncio.timeout(deadline.total_seconds()):
            return await work
    except TimeoutError:
        raise ProviderError(
            "read_timeout",
            f"no whole answer within {deadline.total_seconds():g} s",
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
        ) from None


class Every:
    """A thread that does something every so often, whatever happened the last time."""

    def __init__(self, seconds: float, work: Callable[[], None], *, name: str) -> None:
        self._seconds = seconds
        self._work = work
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            self._work()


_current: Runtime | None = None
_building = threading.Lock()


def runtime() -> Runtime:
    """This process's runtime; the first call builds it from the settings. Raises SettingsError."""
    global _current  # noqa: PLW0603  # one a process, by design
    with _building:
        if _current is None:
            _current = Runtime(settings())
        return _current


def now() -> float:
    """For trust only, never compared with anything of another process."""
    return time.monotonic()
