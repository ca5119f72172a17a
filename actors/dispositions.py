"""What kind of trouble it is: one table over every stage of a call. Pure; what is then done about it is in classify.py.

The provider's body code decides before the HTTP status, and that before the exception's class, when an error gets its
code, fate and remedy (`providers/`). Here the stage decides what those mean. What nobody has seen before is unknown:
at a create it may be money spent, elsewhere it is tried again, and it is never the customer's fault.
"""

from enum import StrEnum

from providers.contract import Failed, Missing, Running
from providers.errors import DownloadError, Fate, ProviderError, Remedy


class Stage(StrEnum):
    PREPARE = "prepare"  # nothing has left
    CREATE = "create"  # the paid request
    POLL = "poll"
    IMPORT = "import"  # the result is known, its media is not here yet
    SETTLE = "settle"  # and what is owed from then on: a cancel at the provider


class Disposition(StrEnum):
    RETRY = "retry"
    LARGER_MACHINE = "larger_machine"
    REPAIR = "repair"
    CUSTOMER = "customer"
    TERMINAL = "terminal"
    AMBIGUOUS = "ambiguous"
    OPERATOR = "operator"
    KEEP_POLLING = "keep_polling"


# What the provider's own verdict on a task means for whoever reads it. A code that is not here ended the task for good.
_VERDICTS = {
    "content_policy": Disposition.CUSTOMER,
    "request_invalid": Disposition.CUSTOMER,
    "input_unsupported": Disposition.CUSTOMER,
    "input_unreachable": Disposition.CUSTOMER,
    "output_truncated": Disposition.REPAIR,
    "output_unrecognised": Disposition.REPAIR,
    "output_lost": Disposition.OPERATOR,
    "result_wrong_type": Disposition.OPERATOR,
    "provider_credits_exhausted": Disposition.OPERATOR,
}

# The provider itself says that a task ended without a result, and nothing says that the request was to blame.
RECREATABLE = frozenset({"task_failed", "task_cancelled", "output_lost"})


def of_ended_call(code: str, *, in_run: bool) -> Disposition:
    """What the provider's word that a task ended means for the step it was for; a budget bounds how often."""
    if in_run and code in RECREATABLE:
        return Disposition.RETRY
    return _VERDICTS.get(code, Disposition.TERMINAL)


_UNKNOWN = {
    Stage.PREPARE: Disposition.RETRY,
    Stage.CREATE: Disposition.AMBIGUOUS,
    Stage.POLL: Disposition.KEEP_POLLING,
    Stage.IMPORT: Disposition.RETRY,
    Stage.SETTLE: Disposition.RETRY,
}

_REMEDIES = {
    Remedy.RETRY: Disposition.RETRY,
    Remedy.THROTTLED: Disposition.RETRY,
    Remedy.CUSTOMER: Disposition.CUSTOMER,
    Remedy.OPERATOR: Disposition.OPERATOR,
    Remedy.NOBODY: Disposition.TERMINAL,
}

Evidence = ProviderError | DownloadError | Failed | Missing | Running | BaseException


def classify(stage: Stage, evidence: Evidence) -> Disposition:
    """Total: every stage has an answer to everything."""
    match evidence:
        case ProviderError():
            return _of_request(stage, evidence)
        case DownloadError(retryable=retryable, gone=gone):
            return Disposition.RETRY if retryable or gone else Disposition.OPERATOR
        case Failed(code=code):
            return _VERDICTS.get(code, Disposition.TERMINAL)
        case Missing() | Running():
            return Disposition.KEEP_POLLING
        case MemoryError() if stage is not Stage.CREATE:
            return Disposition.LARGER_MACHINE
        case _:
            return _UNKNOWN[stage]


def _of_request(stage: Stage, error: ProviderError) -> Disposition:
    if stage is Stage.CREATE and error.fate is Fate.AMBIGUOUS:
        return Disposition.AMBIGUOUS
    if stage not in (Stage.PREPARE, Stage.CREATE) and error.remedy is not Remedy.OPERATOR:
        # A look or a cancel that failed says nothing about the task; only an answer about the task does.
        return _UNKNOWN[stage]
    return _REMEDIES[error.remedy]
