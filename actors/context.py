"""What a local handler gets: its job, a way to report, the wish to stop, the loss of its lease, secrets by name."""

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from actors.lease import Held, StopWanted
from actors.run_work import RunDoors, RunWork
from store.models import Place

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class SecretMissing(Exception):
    """The request names a secret that this worker's environment does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(f"secret {name!r} is not here: set CALLKEEPER_SECRET_{name.upper()} for the workers")
        self.name = name


class RetryLater(Exception):
    """Raised by a handler: nothing is wrong with the request, try again after `seconds`; an attempt is counted."""

    def __init__(self, seconds: float, reason: str = "the handler asked for another try") -> None:
        super().__init__(reason)
        self.seconds = seconds


class WorkFailed(Exception):
    """Raised by a handler: the work is done and it is a failure, with a code of the app's own (lower_snake_case)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class OutOfMemory(Exception):
    """Raised by a handler whose work needs a larger machine; a step of a run gets one, once."""


class Context(RunWork):
    """Valid while the handler runs. Every method raises LeaseLost once the job is somebody else's."""

    def __init__(
        self,
        job_id: UUID,
        attempt: int,
        held: Held,
        *,
        report: Callable[[float], None],
        record: Callable[[str, Mapping[str, Any]], None],
        say: Callable[[str], None],
        find_secret: Callable[[str], str | None],
        place: Place | None = None,
        doors: RunDoors,
    ) -> None:
        super().__init__(place, doors)
        self.job_id = job_id
        self.attempt = attempt
        self._held = held
        self._report = report
        self._record = record
        self._say = say
        self._find_secret = find_secret

    def progress(self, share: float) -> None:
        """Say how far the work is, 0 to 1. A boundary: raises StopWanted when somebody asked the job to end."""
        if not 0 <= share <= 1:
            raise ValueError(f"progress is a share from 0 to 1, not {share}")
        self.check()
        self._report(share)

    def milestone(self, name: str, data: Mapping[str, Any] | None = None) -> None:
        """Write an event `app.<name>` into the job's log, for everybody who follows now or later. A boundary.

        `name`: lower-case letters, digits and underscores; `data`: JSON, up to 16 KiB, its keys in this order. Raises
        ValueError for either, LeaseLost or StopWanted.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"milestone {name!r}: a name has 1 to 64 lower-case letters, digits and underscores")
        self.check()
        self._record(name, data or {})

    def say(self, text: str) -> None:
        """Pass on the next piece of a text to those who follow with tokens. It is never stored."""
        self.check()
        self._say(text)

    def check(self) -> None:
        """A boundary at which the work may be ended. Raises LeaseLost or StopWanted."""
        self._held.check("handler")
        if self.stopping:
            raise StopWanted(self.job_id)

    @property
    def stopping(self) -> bool:
        """Somebody asked this job to end; raise StopWanted (or call `check`) when it suits."""
        return self._held.stopping.is_set()

    @property
    def lease_lost(self) -> bool:
        """This handler no longer holds the job: whatever it does now is discarded."""
        return self._held.seconds_left() <= 0

    def secret(self, name: str) -> str:
        """The secret a request refers to as {"$secret": name}. Raises SecretMissing."""
        value = self._find_secret(name.lower())
        if value is None:
            raise SecretMissing(name)
        return value
