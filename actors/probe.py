"""What a look at work in flight may find, one protocol for all of it: provider calls, child runs, leases, messages.

Pure apart from `follow`, which asks. What is then done about a verdict is in classify.py.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from actors.dispositions import Disposition, Stage, classify
from providers.contract import Failed, Missing, Outcome, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy

MAX_HOPS = 5
_LOST = ("provider_task_lost", "the provider no longer knows this task")


class Found(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    MISSING = "missing"
    CONTINUED = "continued"
    UNSURE = "unsure"  # nothing was learned: the look is repeated later and counted apart


@dataclass(frozen=True, slots=True)
class Verdict:
    """`continued_as`: where to look instead. `useless`: no later look at the same thing will learn more."""

    found: Found
    code: str = ""
    message: str = ""
    continued_as: str | None = None
    alert: str | None = None
    retry_after: float | None = None
    useless: bool = False


class Probe(Protocol):
    async def look(self, at: str) -> Verdict:
        """One question about `at` (a task id, a run id), at most one request, within a deadline. Never raises."""
        ...


async def follow(probe: Probe, at: str) -> Verdict:
    """Look, and follow what continued elsewhere for at most five hops. A loop is refused: it proves nothing."""
    seen = {at}
    for _ in range(MAX_HOPS + 1):
        verdict = await probe.look(at)
        if verdict.found is not Found.CONTINUED:
            return verdict
        at = verdict.continued_as or at
        if at in seen:
            return Verdict(Found.UNSURE, "continues_in_a_loop", f"it continues as {at[:80]} again", useless=True)
        seen.add(at)
    return Verdict(Found.UNSURE, "continues_too_far", f"it was continued more than {MAX_HOPS} times", useless=True)


def verdict_of(answer: Outcome | ProviderError) -> Verdict:
    """A provider's answer about a task whose id we know."""
    match answer:
        case Running(known=known, word=word):
            return Verdict(Found.RUNNING, alert=None if known else f"unknown_status:{word[:40]}")
        case Succeeded():
            return Verdict(Found.SUCCEEDED)
        case Failed(code=code, message=message):
            return Verdict(Found.FAILED, code, message)
        case Missing():
            return Verdict(Found.MISSING, *_LOST)
        case ProviderError(code="output_missing"):
            return Verdict(Found.MISSING, "output_missing", "the provider reports success without a result")
        case ProviderError():
            alert = answer.code if classify(Stage.POLL, answer) is Disposition.OPERATOR else None
            refused = answer.fate is Fate.REJECTED and answer.remedy in (Remedy.CUSTOMER, Remedy.NOBODY)
            return Verdict(
                Found.UNSURE,
                answer.code,
                answer.message,
                alert=alert,
                retry_after=answer.retry_after,
                useless=refused,
            )


def lease_verdict(*, lapsed: bool) -> Verdict:
    """Local execution: a lease that is renewed is work that goes on."""
    return Verdict(Found.MISSING, "worker_lost", "its lease was not renewed") if lapsed else Verdict(Found.RUNNING)


def message_verdict(*, sent: bool) -> Verdict:
    """A queued job: somebody will be woken for it, or nobody will."""
    return Verdict(Found.RUNNING) if sent else Verdict(Found.MISSING, "message_lost", "no message wakes a worker")
