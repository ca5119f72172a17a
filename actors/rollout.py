"""Whether something new is off, watched from the side, tried on some runs, or on. A pure function and its memory."""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from uuid import UUID

from store.rollout import Flag

_REMEMBERED = 1.0  # seconds until a change is seen everywhere


class Rollout(StrEnum):
    OFF = "off"
    SHADOW = "shadow"  # decide, write the decision down, act as if off
    ON = "on"


def decide(flag: Flag | None, name: str, run_id: UUID) -> Rollout:
    """For this run. A flag nobody has set is on. A canary is stable: a run stays in it, a larger share only adds."""
    if flag is None or flag.mode == "on":
        return Rollout.ON
    if flag.mode == "canary":
        return Rollout.ON if bucket(name, run_id) < flag.percent else Rollout.OFF
    return Rollout(flag.mode)


def bucket(name: str, run_id: UUID) -> int:
    """0 to 99, the same for this flag and run everywhere and always; flags are drawn independently."""
    digest = hashlib.sha256(f"{name}:{run_id}".encode()).digest()
    return int.from_bytes(digest[:8]) % 100


class Flags:
    """Reads the flags at most once a second. Thread-safe; not for the event loop."""

    def __init__(self, read: Callable[[], Mapping[str, Flag]]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._known: Mapping[str, Flag] = {}

    def of(self, name: str, run_id: UUID) -> Rollout:
        with self._lock:
            if time.monotonic() - self._looked > _REMEMBERED:
                self._known = self._read()
                self._looked = time.monotonic()
            known = self._known
        return decide(known.get(name), name, run_id)
