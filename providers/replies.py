"""What all provider kinds say in the same way: a request that is not valid, an answer that settles nothing."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from providers.contract import JSON
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.text import safe_text

TOO_MANY, OVERLOADED, SERVER_ERROR = 429, 529, 500
# Statuses of a timeout on the way: even with a body they do not say that nothing was taken.
TIMEOUTS = frozenset({408, 425, 499})

Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], request: Mapping[str, JSON]) -> Model:
    """The request as its kind's model. Raises ProviderError (NOT_SENT, `request_invalid`) naming the first fault."""
    try:
        return model.model_validate(dict(request))
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        message = safe_text(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}")
        raise ProviderError("request_invalid", message, fate=Fate.NOT_SENT, remedy=Remedy.CUSTOMER) from None


def is_success(reply: Reply) -> bool:
    return 200 <= reply.status < 300  # noqa: PLR2004


def malformed(what: str, status: int = 200) -> ProviderError:
    """The error for a success that cannot be read."""
    return ProviderError("malformed_response", what, fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY, status=status)


def unsettled(reply: Reply, *, wait: float | None, words: str | None = None) -> ProviderError:
    """The error for an answer that does not say what became of the request. `wait` in seconds, if one was asked for."""
    return ProviderError(
        "provider_unavailable" if reply.status >= SERVER_ERROR else "unexpected_response",
        words or f"HTTP {reply.status} that does not say what became of the request",
        fate=Fate.AMBIGUOUS,
        remedy=Remedy.THROTTLED if reply.status in (TOO_MANY, OVERLOADED) else Remedy.RETRY,
        status=reply.status,
        retry_after=wait,
    )


def rejected(reply: Reply, verdict: tuple[str, Remedy], words: str, *, wait: float | None) -> ProviderError:
    """The error for a request that the provider did not take, by its own word. `verdict` is our code and the remedy."""
    code, remedy = verdict
    return ProviderError(code, words, fate=Fate.REJECTED, remedy=remedy, status=reply.status, retry_after=wait)
