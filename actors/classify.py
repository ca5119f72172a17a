"""What to do about an answer or the lack of one. Pure: no I/O, no clock, no state; the design's tables as functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from actors.dispositions import Disposition, Stage, classify
from actors.probe import Found, Verdict, verdict_of
from providers.contract import Missing, Mode, Outcome
from providers.errors import DownloadError, Fate, ProviderError, Remedy


class Act(StrEnum):
    REQUEUE = "requeue"  # again later, no attempt spent
    RETRY = "retry"  # again later, an attempt spent
    RESOLVE = "resolve"  # wait and find out; never create
    FAIL = "fail"
    POLL_AGAIN = "poll_again"
    IMPORT = "import"


@dataclass(frozen=True, slots=True)
class Decision:
    """`delay` in seconds; None means: by the ordinary cadence. `alert` names what an operator should know.

    `unknown`: no answer came at all, so the next try may be a second bill.
    """

    act: Act
    code: str = ""
    message: str = ""
    delay: float | None = None
    missed: bool | None = False  # None: this look proves nothing either way
    alert: str | None = None
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Patience:
    """Waiting times in seconds, from settings. `pauses`: the job type's own, before each further attempt."""

    base: float
    cap: float
    throttled: float
    operator: float
    pauses: Sequence[float] = ()

    def before_next(self, attempt: int, *, jitter: float) -> float:
        """What to wait between `attempt` and the one after it."""
        if self.pauses:
            return self.pauses[min(attempt, len(self.pauses)) - 1]
        return backoff(attempt, base=self.base, cap=self.cap, jitter=jitter)


MISSES_TO_LOSE = 3


def backoff(attempt: int, *, base: float, cap: float, jitter: float) -> float:
    """Seconds before attempt `attempt` + 1: doubling from `base` up to `cap`; `jitter` in [0, 1) spreads over half."""
    ceiling = min(cap, base * 2.0 ** min(attempt - 1, 30))
    return ceiling * (0.5 + jitter / 2)


def after_request_error(
    error: ProviderError,
    *,
    mode: Mode,
    attempt: int,
    attempts_left: bool,
    retry_safe: bool,
    patience: Patience,
    jitter: float,
    claims: int = 1,
) -> Decision:
    """The one paid request gave no result. What the error proves about the money decides, not its number.

    A request that never left spends no attempt: it says something about the network, nothing about the job. `claims` is
    how often the job was claimed so far, and spreads such tries out.
    """
    pause = patience.before_next(attempt, jitter=jitter)
    if error.fate is Fate.NOT_SENT and error.remedy is Remedy.RETRY:
        wait = backoff(claims, base=patience.base, cap=patience.cap, jitter=jitter)
        return Decision(Act.REQUEUE, error.code, error.message, wait)
    match classify(Stage.CREATE, error):
        case Disposition.AMBIGUOUS if mode is Mode.ASYNC:
            return Decision(Act.RESOLVE, error.code, error.message)
        case Disposition.AMBIGUOUS if retry_safe and attempts_left:
            return Decision(Act.RETRY, error.code, error.message, pause, unknown=error.status is None)
        case Disposition.AMBIGUOUS if mode is Mode.SYNC and retry_safe and error.status is not None:
            # It did answer, and asking again does no harm: its own word says more than ours for a lost answer.
            return Decision(Act.FAIL, error.code, error.message)
        case Disposition.AMBIGUOUS:
            return Decision(Act.FAIL, "reconcile_no_recovery", f"{error.code}: {error.message}")
        case Disposition.OPERATOR:
            return Decision(Act.REQUEUE, error.code, error.message, patience.operator, alert=error.code)
        case Disposition.RETRY if error.remedy is Remedy.THROTTLED:
            wait = error.retry_after or patience.throttled * (1 + jitter)
            return Decision(Act.REQUEUE, error.code, error.message, wait)
        case Disposition.RETRY if attempts_left:
            return Decision(Act.RETRY, error.code, error.message, max(pause, error.retry_after or 0))
        case _:
            return Decision(Act.FAIL, error.code, error.message)


def after_poll(answer: Outcome | ProviderError, *, misses: int, young: bool = False) -> Decision:
    """One look at a task whose id we know. Only three consecutive misses, or the provider's own word, end it.

    `young`: the provider may not show its own task yet, so not knowing it is no miss.
    """
    return after_look(verdict_of(answer), misses=misses, young=young and isinstance(answer, Missing))


def after_look(verdict: Verdict, *, misses: int, young: bool = False) -> Decision:
    """What a verdict means for the job. A miss within the grace, and a look that learned nothing, prove nothing."""
    match verdict.found:
        case Found.RUNNING | Found.CONTINUED:
            return Decision(Act.POLL_AGAIN, alert=verdict.alert)
        case Found.SUCCEEDED:
            return Decision(Act.IMPORT)
        case Found.FAILED:
            return Decision(Act.FAIL, verdict.code, verdict.message)
        case Found.MISSING if young:
            return Decision(Act.POLL_AGAIN, missed=None)
        case Found.MISSING:
            return _missed(misses, verdict.code, verdict.message)
        case Found.UNSURE:
            return Decision(
                Act.POLL_AGAIN, verdict.code, verdict.message, verdict.retry_after, missed=None, alert=verdict.alert
            )


def _missed(misses: int, code: str, message: str) -> Decision:
    if misses + 1 >= MISSES_TO_LOSE:
        return Decision(Act.FAIL, code, message)
    return Decision(Act.POLL_AGAIN, code, message, missed=True)


def after_download_error(
    error: DownloadError, *, misses: int, failures: int, at_most: int, patience: Patience
) -> Decision:
    """A result that is there did not come whole. A fresh look brings a fresh address; a refusal is final.

    A provider that goes on showing a result whose files are gone will never say more: three looks in a row, and it is
    lost. `failures` counts the files of this call that came and could not be used, or did not come; they may be whole
    the next time, but not for ever. None of these tries makes a new call or spends an attempt.
    """
    if error.gone:
        return _missed(misses, "output_lost", f"the provider shows a result whose files are gone: {error.message}")
    if classify(Stage.IMPORT, error) is not Disposition.RETRY:
        return Decision(Act.FAIL, error.code, error.message, alert=f"import_refused:{error.code}")
    if failures + 1 >= at_most:
        words = f"not fetched whole in {failures + 1} tries; the last: {error.code}: {error.message}"
        return Decision(Act.FAIL, "import_exhausted", words, alert=f"import_exhausted:{error.code}")
    pause = backoff(failures + 1, base=2 * patience.base, cap=patience.cap, jitter=0.999)
    return Decision(Act.POLL_AGAIN, error.code, error.message, pause, missed=None)


class Recovery(StrEnum):
    REQUEUE = "requeue"
    RESUME = "resume"
    FAIL_LOST = "worker_lost"
    FAIL_UNKNOWN = "reconcile_no_recovery"


def after_lost_lease(*, mode: str, call_started: bool, retry_safe: bool, attempts_left: bool) -> Recovery:
    """The row itself says what to do when its holder is gone (the design's recovery table)."""
    if not call_started:
        return Recovery.REQUEUE if attempts_left else Recovery.FAIL_LOST
    if mode == "async":
        return Recovery.RESUME
    if retry_safe:
        return Recovery.REQUEUE if attempts_left else Recovery.FAIL_LOST
    return Recovery.FAIL_LOST if mode == "local" else Recovery.FAIL_UNKNOWN
