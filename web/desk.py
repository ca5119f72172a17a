"""What one web process shares: settings, database threads, the hub of followers. Opened at first use."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from actors import readiness
from actors.follow import Followers
from actors.readiness import Check
from actors.settings import Settings
from store import tokens
from store.engine import Database, make_engine
from store.tokens import Bearer
from web.problems import busy
from web.streams import Streams

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("callkeeper.web")

_PATIENCE = 2.0  # seconds that a request waits for a database that comes back
_WAITING_PER_THREAD = 64
_READY_FOR = 1.0  # seconds that an answer to /readyz is given again, whoever asks how often


class Desk:
    """Runs the store's verbs off the event loop, and keeps count of who is being served."""

    def __init__(self, options: Settings) -> None:
        self.options = options
        url = options.require_database_url()
        self.db = Database(make_engine(url, name="callkeeper web", pool_size=options.web_threads), patience=_PATIENCE)
        self._impatient = Database(self.db.engine, patience=0)
        self._threads = ThreadPoolExecutor(options.web_threads, thread_name_prefix="callkeeper-web")
        self._waiting = 0
        self.followers = Followers(url)
        self.streams = Streams(options, self._is_good)
        self._ready: tuple[float, list[Check]] | None = None
        self._looking = asyncio.Lock()

    async def once(self, verb: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """A read, or one statement that may be repeated."""
        return await self.on_thread(self.db.once, verb, *args, **kwargs)

    async def transact(self, verb: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """A transaction that may be repeated whole when its answer was lost."""
        return await self.on_thread(self.db.transact, verb, *args, **kwargs)

    async def transact_once(self, verb: Callable[Concatenate[Any, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """A transaction that must not be repeated: whether it committed is for the client to find out."""
        return await self.on_thread(self._impatient.transact, verb, *args, **kwargs)

    async def on_thread(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Raises Problem when too much waits for a thread already."""
        if self._waiting >= self.options.web_threads * _WAITING_PER_THREAD:
            raise busy("too many requests are being served")
        self._waiting += 1
        try:
            work = partial(function, *args, **kwargs)
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            self._waiting -= 1

    async def identify(self, token_hash: bytes) -> Bearer | None:
        return await self.once(tokens.identify, token_hash)

    async def _is_good(self, token_hash: bytes) -> bool:
        return await self.identify(token_hash) is not None

    async def readiness(self) -> list[Check]:
        """Every check, at most a second old: strangers may ask as often as they like."""
        async with self._looking:
            if self._ready is None or time.monotonic() - self._ready[0] > _READY_FOR:
                self._ready = (time.monotonic(), await self._look())
            return self._ready[1]

    async def _look(self) -> list[Check]:
        try:
            return [Check("database", ""), *await self.on_thread(readiness.look, self._impatient)]
        except Exception as error:  # noqa: BLE001  # whatever it is, it is not ready
            log.warning("web.not_ready error=%s", type(error).__name__)
            return [Check("database", "it cannot be asked: check that it runs and is migrated")]

    async def close(self) -> None:
        """End every stream, and give back threads and connections."""
        await self.streams.close()
        await asyncio.get_running_loop().run_in_executor(None, self.followers.close)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.db.dispose()
