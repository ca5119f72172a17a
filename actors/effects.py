"""What an app wants done when a job ends: registered per job type, owed by the settlement, delivered from the outbox.

The names are frozen on the job at submit, so an ending owes the same effects whoever settles it, on whatever release.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_OUTCOMES = ("completed", "failed", "cancelled")
_MAX_NAME = 128


@dataclass(frozen=True, slots=True)
class Ended:
    """What an effect is told. `key` is the same at every delivery of this effect: do what it names only once.

    `status` is completed, failed, timed_out or cancelled; `visibility` and `watermark` are those of the submit.
    """

    key: str
    job_id: str
    job_type: str
    user_id: str | None
    status: str
    error_code: str | None
    visibility: str
    watermark: bool


Effect = Callable[[Ended], Any]

EFFECTS: dict[str, Effect] = {}
_OWED: dict[tuple[str, str], list[str]] = {}


def _registrar(outcome: str, job_type: str, name: str | None) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        chosen = name or f"{job_type}.{outcome}.{function.__name__}"
        known = EFFECTS.get(chosen)
        if known is not None and (known.__module__, known.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"effect {chosen!r} is already registered: give one of the two another name")
        if not 0 < len(chosen.encode()) <= _MAX_NAME:
            raise ValueError(f"effect name {chosen!r}: use 1 to {_MAX_NAME} bytes")
        EFFECTS[chosen] = function
        names = _OWED.setdefault((job_type, outcome), [])
        if chosen not in names:
            names.append(chosen)
        return function

    return decorate


def on_completed(job_type: str, *, name: str | None = None) -> Callable[[F], F]:
    """Register `function(ended: Ended)` for jobs of this type that complete; beside the job type, where it submits.

    Runs on a worker at least once for each job, after the settlement and outside of it. Effects of one outcome run in
    the order of their registration, each only after the one before it. One that raises is tried again later, twelve
    times in all; then it is put aside, an alert raised, and the next one runs. `name` is stored with the job: keep it
    when the function moves.
    """
    return _registrar("completed", job_type, name)


def on_failed(job_type: str, *, name: str | None = None) -> Callable[[F], F]:
    """The same for jobs that fail or time out."""
    return _registrar("failed", job_type, name)


def on_cancelled(job_type: str, *, name: str | None = None) -> Callable[[F], F]:
    """The same for jobs that are stopped."""
    return _registrar("cancelled", job_type, name)


def owed_by(job_type: str) -> Mapping[str, Sequence[str]]:
    """The names of the effects that a job submitted now will owe, by outcome."""
    return {outcome: list(names) for outcome in _OUTCOMES if (names := _OWED.get((job_type, outcome)))}


def apply(effect: str, key: str, body: Mapping[str, Any]) -> None:
    """Run one effect. Raises LookupError when it is not registered here, and whatever it raises itself."""
    function = EFFECTS.get(effect)
    if function is None:
        raise LookupError(f"effect {effect!r} is not registered here: import its module (CALLKEEPER_MODULES)")
    function(Ended(key=key, **body))
