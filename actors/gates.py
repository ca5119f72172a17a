"""When a provider account is closed, who closes it, and what opens it again.

The rows decide for the whole fleet; this process remembers them for half a second, so a healthy account costs nothing.
"""

import logging
import random
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from providers.errors import Fate, ProviderError, Remedy
from store import gates, passes
from store.gates import Closed

if TYPE_CHECKING:
    from actors.runtime import Runtime

log = logging.getLogger("callkeeper.gates")

_REMEMBERED = 0.5  # seconds
_COUNT_EVERY = 1.0  # seconds between two failures of one account that are worth a write

Key = tuple[str, str]


class Gates:
    """Thread-safe. Every method may speak to the database, so none is for the event loop."""

    def __init__(self, rt: "Runtime") -> None:
        self._rt = rt
        self._lock = threading.Lock()
        self._seen: dict[Key, tuple[float, Closed | None]] = {}
        self._counted: dict[Key, float] = {}
        self._troubled: tuple[float, set[Key]] = (0.0, set())

    def closed(self, kind: str, account: str) -> Closed | None:
        """Why no call may start now; None when one may."""
        key, now = (kind, account), time.monotonic()
        with self._lock:
            looked, known = self._seen.get(key, (0.0, None))
        if now - looked > _REMEMBERED:
            known = self._rt.db.once(gates.closed, kind, account)
            with self._lock:
                self._seen[key] = (now, known)
        return known

    def failed(self, kind: str, account: str, error: ProviderError) -> None:
        """Draw the consequence for the account, not for the job, of a request that gave no result."""
        options = self._rt.options
        if error.remedy is Remedy.THROTTLED:
            span = error.retry_after or options.throttle_wait
            self._close(kind, account, error.code, span, stops_clocks=False)
        elif error.remedy is Remedy.OPERATOR and error.fate is not Fate.AMBIGUOUS:
            self._close(kind, account, error.code, options.operator_wait, stops_clocks=True)
        elif error.fate is not Fate.REJECTED and self._is_news((kind, account)):
            failures = self._rt.db.once(gates.count_failure, kind, account)
            if failures >= options.breaker_failures:
                self._close(kind, account, "outage", options.breaker_wait, stops_clocks=True)

    def answered(self, kind: str, account: str) -> None:
        """The account made sense: if it had not for a while, open it and give its jobs back the time they lost."""
        if (kind, account) not in self._in_trouble():
            return
        moved = self._rt.db.once(gates.reopen, kind, account)
        self._forget((kind, account))
        if moved is not None:
            log.warning("gate.opened kind=%s account=%s jobs=%s", kind, account, moved)

    def pause(self, gate: Closed) -> float:
        """Seconds a job should wait for this gate, spread so that not all come back at once."""
        return max(gate.seconds, 0.1) * random.uniform(1.0, 1.5)  # noqa: S311  # spreads retries, nothing more

    def _close(self, kind: str, account: str, reason: str, seconds: float, *, stops_clocks: bool) -> None:
        span = timedelta(seconds=seconds)
        self._rt.db.once(gates.close, kind, account, reason=reason, span=span, stops_clocks=stops_clocks)
        self._forget((kind, account))
        log.warning("gate.closed kind=%s account=%s reason=%s seconds=%.1f", kind, account, reason, seconds)
        if stops_clocks:
            details: dict[str, object] = {"reason": reason, "account": account}
            self._rt.db.once(passes.raise_alert, f"{kind}:{reason}", details)

    def _is_news(self, key: Key) -> bool:
        with self._lock:
            now = time.monotonic()
            if now - self._counted.get(key, -_COUNT_EVERY) < _COUNT_EVERY:
                return False
            self._counted[key] = now
            return True

    def _in_trouble(self) -> set[Key]:
        with self._lock:
            looked, known = self._troubled
        if time.monotonic() - looked > _REMEMBERED:
            known = self._rt.db.once(gates.troubled)
            with self._lock:
                self._troubled = (time.monotonic(), known)
        return known

    def _forget(self, key: Key) -> None:
        with self._lock:
            self._seen.pop(key, None)
            self._troubled = (0.0, set())
