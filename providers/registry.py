"""All provider kinds by name. A vendor's file ends with its entries; an entry says how a kind behaves in time."""

from datetime import timedelta

from providers import anthropic, elevenlabs, heygen, kie, openrouter_video, replicate, replicate_training
from providers.contract import SHAPES, AsyncProvider, Kind, Mode, SyncProvider

PASS_PERIOD = timedelta(minutes=5)  # how long after a threshold the pass that acts on it may come


class UnknownKind(LookupError):
    """No kind has this name. The message lists those there are."""


def check(kind: Kind) -> Kind:
    """The kind itself. ValueError or TypeError when it promises what it cannot keep.

    A result is lost when the job that waits for it is looked at too late: what is stale must be found, one
    pass later, within half of a result's life.
    """
    late = kind.stale_after + PASS_PERIOD
    if kind.result_life is not None and late > kind.result_life / 2:
        raise ValueError(f"{kind.name}: found stale after {late}, and a result lives only {kind.result_life}")
    wanted = AsyncProvider if kind.mode is Mode.ASYNC else SyncProvider
    if not isinstance(kind.provider, wanted):
        raise TypeError(f"{kind.name}: its provider is no {wanted.__name__}")
    if kind.mode is Mode.SYNC and (kind.finds_lost or kind.cancels or kind.result_life is not None):
        raise ValueError(f"{kind.name}: a synchronous call has no task to find, cancel or fetch later")
    if kind.mode is Mode.ASYNC and not (kind.finds_lost or kind.signs_callbacks or kind.idempotent_create):
        raise ValueError(f"{kind.name}: a call whose answer was lost could come home by no way")
    if kind.stale_after > kind.max_run:
        raise ValueError(f"{kind.name}: stale after {kind.stale_after}, and it may run only {kind.max_run}")
    if not kind.shapes or not set(kind.shapes) <= set(SHAPES):
        raise ValueError(f"{kind.name}: its shapes {kind.shapes} are not among {SHAPES}")
    spans = (kind.send_deadline, kind.poll_deadline, kind.first_poll, kind.poll_every, kind.max_run)
    if min(spans) <= timedelta(0) or kind.max_bytes <= 0:
        raise ValueError(f"{kind.name}: deadlines, periods and sizes are above zero")
    if kind.base_url.endswith("/") or not kind.base_url.startswith("https://"):
        raise ValueError(f"{kind.name}: its base URL is https, without a slash at the end")
    return kind


_VENDORS = (replicate, replicate_training, elevenlabs, anthropic, kie, openrouter_video, heygen)
KINDS: dict[str, Kind] = {kind.name: check(kind) for vendor in _VENDORS for kind in vendor.KINDS}


def get_kind(name: str) -> Kind:
    """The kind of this name. Raises UnknownKind, which lists the names there are."""
    try:
        return KINDS[name]
    except KeyError:
        raise UnknownKind(f"no provider kind {name!r}; there are {', '.join(sorted(KINDS))}") from None
