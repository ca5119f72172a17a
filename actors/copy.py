"""What a failed run is called to its customer: the outcome, whose it is, what to do, what became of the money.

By failure code, and only by it: no message of a provider, no stack trace, no word about machines ever gets here. What
nobody has written words for is ours, never the customer's.
"""

from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    CUSTOMER = "customer"
    PROVIDER = "provider"
    OURS = "ours"


@dataclass(frozen=True, slots=True)
class Words:
    """Whole sentences. `subject` fits a mail's subject line."""

    subject: str
    outcome: str
    responsibility: str
    action: str
    fault: Fault

    @property
    def summary(self) -> str:
        """For the response to a client."""
        return f"{self.outcome} {self.action}"

    @property
    def money(self) -> str:
        return MONEY


MONEY = (
    "Everything reserved for steps that did not finish has been returned to your balance. Steps that did finish keep"
    " their charge, and their results are used again if the render is resumed."
)

_STOPPED = "Your render could not be finished."


def _customer(outcome: str, action: str, subject: str = "Your render needs a change") -> Words:
    return Words(
        subject,
        outcome,
        "The cause is in what was sent, so trying again unchanged would fail again.",
        action,
        Fault.CUSTOMER,
    )


def _provider(outcome: str, action: str) -> Words:
    whose = "The cause is with a service we use, not with what you sent."
    return Words("Your render could not be finished", outcome, whose, action, Fault.PROVIDER)


UNKNOWN = Words(
    "Your render could not be finished",
    _STOPPED,
    "The cause is on our side, not in what you sent.",
    "You can start it again; if it fails once more, write to us with the number below.",
    Fault.OURS,
)

_POLICY = "A service refused part of the content of your render."
_INPUT = "A file or setting of your render cannot be used as it is."
_CREDITS = "Your balance does not cover the rest of the render."

COPY: dict[str, Words] = {
    "content_policy": _customer(_POLICY, "Change the text or picture of the scene that was refused, and start again."),
    "request_invalid": _customer(_INPUT, "Check the settings of the scene, and start again."),
    "request_too_large": _customer(_INPUT, "Shorten the text or use smaller files, and start again."),
    "input_unsupported": _customer(_INPUT, "Send the file in another format, and start again."),
    "input_unreachable": _customer(
        "One of your files could not be downloaded.",
        "Check that its address is public and still works, and start again.",
    ),
    "voice_not_found": _customer("The chosen voice does not exist.", "Choose another voice, and start again."),
    "credits_insufficient": _customer(_CREDITS, "Add credits, and start again.", "Your render needs more credits"),
    "plan_unfixable": _customer(
        "No plan that can be filmed could be made of your request.",
        "Simplify what the scenes should show, and start again.",
    ),
    "plan_invalid": UNKNOWN,
    "listing_photos_missing": _customer(
        "The listing has no photo that a scene could show.", "Add photos to the listing, and start again."
    ),
    "language_unsupported": _customer(
        "No voice speaks the language of this render.", "Choose another language, and start again."
    ),
    "media_mismatch": _provider("What was delivered is not as long as it was ordered.", "You can start it again."),
    "media_took_too_long": UNKNOWN,
    "task_failed": _provider(_STOPPED, "You can start it again."),
    "task_cancelled": _provider(_STOPPED, "You can start it again."),
    "provider_task_lost": _provider(_STOPPED, "You can start it again."),
    "output_lost": _provider(_STOPPED, "You can start it again."),
    "output_missing": _provider(_STOPPED, "You can start it again."),
    "result_corrupt": _provider("A service delivered a file that cannot be played.", "You can start it again."),
    "result_truncated": _provider("A service delivered a file that is not whole.", "You can start it again."),
    "media_unusable": _provider(
        "What was delivered could not be made into a watchable film.", "You can start it again."
    ),
    "deadline_exceeded": _provider("Your render took longer than it may.", "You can start it again."),
    "attempt_deadline_exceeded": UNKNOWN,
    "stream_cut": _provider(_STOPPED, "You can start it again."),
    "queue_timeout": UNKNOWN,
    "run_deadline_exceeded": _provider("Your render took longer than it may.", "You can start it again."),
    "provider_credits_exhausted": UNKNOWN,
    "out_of_memory": UNKNOWN,
    "worker_lost": UNKNOWN,
    "reconcile_no_recovery": UNKNOWN,
    "handler_error": UNKNOWN,
}


def customer_words(code: str | None) -> Words:
    """Total: every code has words."""
    return COPY.get(code or "", UNKNOWN)
