"""How the demo's providers behave: slow enough to be killed in the middle, and not always well."""

from typing import Any

# Close polls and a short quiet period, so that the demo takes seconds instead of minutes.
KINDS: dict[str, dict[str, Any]] = {
    "replicate-prediction": {
        "first_poll": 0.5,
        "poll_every": 1.0,
        "send_deadline": 4.0,
        "visibility_lag": 1.0,
    },
    "anthropic-sync": {"send_deadline": 8.0},
}

# Nothing is ever answered at once: a kill lands after the provider took the call and before its answer came.
_DEFAULTS: dict[str, Any] = {"reply_delay": [0.4, 0.8], "run_seconds": [2.0, 6.0]}
_SLOW_POLL = {"latency": [0.1, 0.3]}


def script(seed: int) -> dict[str, Any]:
    """The sandbox's script; see providers/sandbox/script.py for its words."""
    return {
        "seed": seed,
        "defaults": _DEFAULTS,
        "rules": [
            _rule("accepted, connection lost", "create", [6], {"accept_then": "drop"}),
            _rule("accepted, answered 502", "create", [11], {"accept_then": _page(502)}),
            _rule("throttled", "create", [8], {"reply": _throttled(1)}),
            _rule("refused by policy", "create", [15], {"fail": "NSFW content detected"}),
            _rule("overloaded", "message", [5], {"reply": _overloaded()}),
            _rule("half a file", "download", [4], {"download": "truncated"}),
            _rule("poll answered 500", "poll", [9, 23], {"reply": _page(500)}),
            {"name": "slow poll", "when": {"route": "poll"}, "do": _SLOW_POLL},
        ],
    }


def _rule(name: str, route: str, nth: list[int], do: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "when": {"route": route, "nth": nth}, "do": do}


def _page(status: int) -> dict[str, Any]:
    return {"status": status, "body": "<html><body>Bad gateway</body></html>"}


def _throttled(seconds: int) -> dict[str, Any]:
    detail = f"Request was throttled. Your rate limit resets in ~{seconds}s."
    return {"status": 429, "headers": {"retry-after": str(seconds)}, "body": {"detail": detail, "status": 429}}


def _overloaded() -> dict[str, Any]:
    error = {"type": "overloaded_error", "message": "Overloaded"}
    return {"status": 529, "headers": {"retry-after": "1"}, "body": {"type": "error", "error": error}}
