"""What a local handler of a run's step can do beyond any handler: see what came before, keep files, warn, add steps."""

import hashlib
import mimetypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from actors.rollout import Rollout
from actors.steps import Step
from store.models import NewAsset, NewJob, Place, StepWarning
from store.run_outcomes import StepOutcome

_SEVERITIES = ("info", "warning")
_QUALITIES = ("standard", "repaired", "degraded")
_BLOCK = 1024**2


class NotInRun(Exception):
    """The job belongs to no run, so there is nothing to see, warn of or add to."""

    def __init__(self) -> None:
        super().__init__("this job belongs to no run: submit it as a step of one (actors.runs.submit_run)")


class RunDoors(Protocol):
    """What the context may ask of the process."""

    def outcomes(self, place: Place) -> Mapping[str, StepOutcome]: ...

    def fetch(self, object_key: str, path: Path) -> None: ...

    def keep(self, position: int, path: Path, content_type: str, sha256: str) -> NewAsset: ...

    def prepare(self, steps: Sequence[Step], place: Place) -> list[NewJob]: ...

    def rollout(self, flag: str, run_id: UUID) -> Rollout: ...

    def record(self, flag: str, place: Place, decision: Mapping[str, Any], *, did: bool) -> None: ...


@dataclass
class RunWork:
    """Mixed into the handler's context. Every file, warning and step is written in the job's settlement."""

    place: Place | None
    doors: RunDoors
    assets: list[NewAsset] = field(default_factory=list)
    warnings: list[StepWarning] = field(default_factory=list)
    steps: list[NewJob] = field(default_factory=list)
    steps_first: bool = False

    @property
    def run_id(self) -> UUID | None:
        return None if self.place is None else self.place.run_id

    @property
    def step(self) -> str | None:
        return None if self.place is None else self.place.step

    @property
    def operation_key(self) -> str | None:
        return None if self.place is None else self.place.operation_key

    def outcomes(self) -> Mapping[str, StepOutcome]:
        """How each step that this one depends on has ended, by name. Raises NotInRun."""
        return self.doors.outcomes(self._placed())

    def fetch(self, object_key: str, path: Path) -> None:
        """The bytes of a kept file into a local one. Raises FileNotFoundError."""
        self.doors.fetch(object_key, path)

    def keep(self, path: Path, content_type: str) -> dict[str, Any]:
        """Keep a file; its entry, as it will stand in `result["media"]`, in the order kept."""
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
        asset = self.doors.keep(len(self.assets), path, content_type, digest.hexdigest())
        self.assets.append(asset)
        return as_entry(asset)

    def warn(
        self,
        code: str,
        *,
        severity: str = "warning",
        customer_visible: bool = True,
        quality: str | None = None,
        details: Mapping[str, str | int | float | bool | None] | None = None,
    ) -> None:
        """Say what the result is not quite; the run's quality is the worst that any of its steps names."""
        self._placed()
        if severity not in _SEVERITIES:
            raise ValueError(f"severity {severity!r} does not exist: there are {', '.join(_SEVERITIES)}")
        if quality is not None and quality not in _QUALITIES:
            raise ValueError(f"quality {quality!r} does not exist: there are {', '.join(_QUALITIES)}")
        self.warnings.append(StepWarning(code, severity, customer_visible, quality or "standard", dict(details or {})))

    def add_steps(self, steps: Sequence[Step], *, first: bool = False) -> None:
        """More steps for this run. A step that the run has already is that step. Raises PlanRefused, SubmitRefused.

        With `first`, whatever depends on this step waits for all that it adds, too, and sees how they have ended.
        """
        self.steps_first = self.steps_first or first
        self.steps += self.doors.prepare(steps, self._placed())

    def rollout(self, flag: str) -> Rollout:
        """Whether something new is off, shadow or on for this run."""
        return self.doors.rollout(flag, self._placed().run_id)

    def shadowed(self, flag: str, decision: Mapping[str, Any], *, did: bool = False) -> None:
        """Write down what was decided, or would have been: promotion compares them."""
        self.doors.record(flag, self._placed(), decision, did=did)

    def _placed(self) -> Place:
        if self.place is None:
            raise NotInRun
        return self.place


def as_entry(asset: NewAsset) -> dict[str, Any]:
    return {
        "object_key": asset.object_key,
        "content_type": asset.content_type,
        "size_bytes": asset.size_bytes,
        "sha256": asset.sha256,
    }


def extension(content_type: str) -> str:
    return (mimetypes.guess_extension(content_type.split(";", 1)[0]) or ".bin").removeprefix(".")
