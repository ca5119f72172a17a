"""What a call may cost and what it did: pure. In micro-USD, by prices of a million tokens; always rounded up."""

from collections.abc import Mapping
from dataclasses import dataclass

from providers.contract import Failed, Succeeded
from providers.errors import Fate, ProviderError

_MILLION = 1_000_000
_HIGHEST = 2**53  # more tokens than any call has: a provider's number beyond it is none


@dataclass(frozen=True, slots=True)
class Booking:
    """How a call goes into the ledger. `cost` None: as much as was reserved for it, marked as an estimate."""

    status: str
    cost: int | None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str | None = None


def cost_of(price: Mapping[str, int], *, input_tokens: int, output_tokens: int) -> int:
    """In micro-USD; a part of one counts as one."""
    return -(-(input_tokens * price["input"] + output_tokens * price["output"]) // _MILLION)


def tokens_in(usage: Mapping[str, int | float | str]) -> tuple[int, int] | None:
    """(input, output) as the provider reports them; what it read from or wrote to a cache is input. None: unusable."""
    read = _count(usage, "input_tokens", "prompt_tokens")
    written = _count(usage, "output_tokens", "completion_tokens")
    if read is None or written is None:
        return None
    cached = (_count(usage, name) or 0 for name in ("cache_creation_input_tokens", "cache_read_input_tokens"))
    return read + sum(cached), written


def _count(usage: Mapping[str, int | float | str], *names: str) -> int | None:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _HIGHEST:
            return value
    return None


def booking_of(answer: Succeeded | Failed, price: Mapping[str, int]) -> Booking:
    """The provider's own count goes before any estimate, whether or not the answer is of use."""
    failed = isinstance(answer, Failed)
    status, error = ("failed", answer.code) if isinstance(answer, Failed) else ("ok", None)
    tokens = tokens_in(answer.usage)
    if tokens is None:
        return Booking(status, None, error=error)
    read, written = tokens
    if failed and read + written == 0:
        return Booking(status, 0, 0, 0, error)
    return Booking(status, cost_of(price, input_tokens=read, output_tokens=written), read, written, error)


def booking_of_error(error: ProviderError) -> Booking:
    """What never left or was refused costs nothing; where nothing settles that, it may have cost all of it."""
    return Booking("failed", None if error.fate is Fate.AMBIGUOUS else 0, error=error.code)
