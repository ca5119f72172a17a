"""Open event streams: how many, whose, and ended when the token they were opened with is not good any more."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from actors.settings import Settings
from web.problems import Problem, busy

log = logging.getLogger("callkeeper.web")

_AGAIN_AFTER = 5.0  # seconds


class Place:
    """One open stream. `scope` is cancelled to end it."""

    def __init__(self, user_id: str, token_hash: bytes) -> None:
        self.user_id = user_id
        self.token_hash = token_hash
        self.scope = anyio.CancelScope()


class Streams:
    """Counts within the process's limits. Belongs to one event loop."""

    def __init__(self, options: Settings, is_good: Callable[[bytes], Awaitable[bool]]) -> None:
        self._options = options
        self._is_good = is_good
        self._places: set[Place] = set()
        self._of_user: Counter[str] = Counter()
        self._watch: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def take(self, user_id: str, token_hash: bytes) -> Place:
        """A place to give back with `leave`. Raises Problem when the user's, or all, are taken."""
        limit = self._options.web_streams_per_user
        if self._of_user[user_id] >= limit:
            words = f"{limit} event streams of this user are open: close one first"
            raise Problem(429, "too_many_streams", words, retry_after=_AGAIN_AFTER)
        if len(self._places) >= self._options.web_streams:
            raise busy("all event streams of this process are taken", retry_after=_AGAIN_AFTER)
        place = Place(user_id, token_hash)
        self._places.add(place)
        self._of_user[user_id] += 1
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._watch_tokens())
        return place

    def leave(self, place: Place) -> None:
        self._places.discard(place)
        self._of_user[place.user_id] -= 1
        if not self._of_user[place.user_id]:
            del self._of_user[place.user_id]

    async def close(self) -> None:
        """End every stream where it is; its reader comes again with the last id it saw."""
        for place in self._places:
            place.scope.cancel()
        if self._watch is not None:
            self._watch.cancel()

    async def _watch_tokens(self) -> None:
        """Once a heartbeat, and once a token however many streams it opened."""
        while self._places:
            await asyncio.sleep(self._options.web_heartbeat)
            for token_hash in {place.token_hash for place in self._places}:
                if not await self._good(token_hash):
                    self._end(token_hash)

    async def _good(self, token_hash: bytes) -> bool:
        try:
            return await self._is_good(token_hash)
        except Exception as error:  # noqa: BLE001  # not known is not revoked; the next look decides
            log.warning("web.token_not_looked_at error=%s", type(error).__name__)
            return True

    def _end(self, token_hash: bytes) -> None:
        for place in self._places:
            if place.token_hash == token_hash:
                place.scope.cancel()
