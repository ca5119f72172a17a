"""The registry as people and programs read it: one row a kind."""

from datetime import timedelta

from providers.contract import JSON, Kind

COLUMNS = (
    "kind",
    "mode",
    "shapes",
    "stale after",
    "polled every",
    "longest run",
    "result lives",
    "finds lost",
    "cancels",
    "idempotent",
    "callbacks",
    "meter",
)
_NONE = "\u2013"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def row(kind: Kind) -> list[str]:
    """One cell for each of COLUMNS. A dash is for what does not apply, or is not known."""
    waits = kind.mode == "async"
    return [
        kind.name,
        kind.mode,
        ", ".join(kind.shapes),
        span(kind.stale_after),
        span(kind.poll_every) if waits else _NONE,
        span(kind.max_run if waits else kind.send_deadline),
        _NONE if kind.result_life is None else span(kind.result_life),
        *(_yes(can) if waits else _NONE for can in (kind.finds_lost, kind.cancels)),
        _yes(kind.idempotent_create),
        "signed" if kind.signs_callbacks else _NONE,
        kind.meter or _NONE,
    ]


def facts(kind: Kind) -> dict[str, JSON]:
    """The same for a program: times in seconds, null for what does not apply."""
    waits = kind.mode == "async"
    return {
        "kind": kind.name,
        "mode": str(kind.mode),
        "shapes": list(kind.shapes),
        "base_url": kind.base_url,
        "stale_after": kind.stale_after.total_seconds(),
        "first_poll": kind.first_poll.total_seconds() if waits else None,
        "poll_every": kind.poll_every.total_seconds() if waits else None,
        "send_deadline": kind.send_deadline.total_seconds(),
        "visibility_lag": kind.visibility_lag.total_seconds() if waits else None,
        "max_run": kind.max_run.total_seconds() if waits else kind.send_deadline.total_seconds(),
        "result_life": None if kind.result_life is None else kind.result_life.total_seconds(),
        "finds_lost": kind.finds_lost,
        "cancels": kind.cancels,
        "idempotent_create": kind.idempotent_create,
        "signs_callbacks": kind.signs_callbacks,
        "meter": kind.meter or None,
        "media_hosts": list(kind.media_hosts),
        "max_bytes": kind.max_bytes,
    }


def span(time: timedelta) -> str:
    """A time in the largest unit that leaves a whole number: `90 s`, `2 min`, `7 d`."""
    seconds = time.total_seconds()
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size and seconds % size == 0), (1, "s"))
    return f"{seconds / size:g} {unit}"


def _yes(can: bool) -> str:
    return "yes" if can else "no"
