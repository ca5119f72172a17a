"""Providers' text made fit for rows, messages and logs: short, printable, without credentials."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit, urlunsplit

MAX_RETRY_AFTER = 3600.0
MAX_DEPTH = 64

_URL = re.compile(r"(?i)\b[a-z][a-z0-9+.-]{1,15}://[^\s\"'<>\\]+")
_DATA_URL = re.compile(r"(?i)\bdata:[a-z0-9.+/;=-]{0,100},[^\s\"'<>]*")
_HEADER = re.compile(
    r"(?i)\b(?:(authorization|x-api-key|api[_-]?key|token|secret|password)\"?\s*[:=]\s*\"?(?:(?:bearer|token)\s+)?"
    r"|(bearer)\s+)[^\s\",;]{6,}"
)
_KEY = re.compile(r"\b(?:sk|pk|rk|r8|whsec|ghp|gho|xox[a-z]|AKIA|ASIA|AIza|eyJ)[-_A-Za-z0-9][-_A-Za-z0-9.+/=]{10,}")
# Text that long without a break is a token, a signature or encoded bytes; no word is. UUIDs and our 26-letter ids pass.
_BLOB = re.compile(r"[A-Za-z0-9+/_=-]{41,}")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]+")
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")
_GONE = "[removed]"


def safe_url(url: str) -> str:
    """The URL without user, password, query and fragment; `[invalid url]` when it is none."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        netloc = f"[{host}]" if ":" in host else host
        if parts.port is not None:
            netloc = f"{netloc}:{parts.port}"
        if parts.scheme.lower() == "data":
            return "data:"
        return _UNPRINTABLE.sub(" ", urlunsplit((parts.scheme, netloc, parts.path, "", "")))[:500]
    except ValueError:
        return "[invalid url]"


def safe_text(text: object, limit: int = 500) -> str:
    """At most `limit` characters of a text: one line, no control characters, no keys, no URL's query."""
    # Cut first, with room to spare: a hostile text must not cost a regular expression its worst case.
    line = _UNPRINTABLE.sub(" ", str(text)[: 8 * limit])
    line = _DATA_URL.sub("data:", line)
    line = _URL.sub(lambda found: safe_url(found.group()), line)
    line = _HEADER.sub(lambda found: f"{found.group(1) or found.group(2)} {_GONE}", line)
    line = _BLOB.sub(_GONE, _KEY.sub(_GONE, line))
    line = " ".join(line.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def tidy(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The JSON value with every string free of what Postgres refuses. ValueError when it nests too deep."""
    if isinstance(value, str):
        return _UNSTORABLE.sub("\ufffd", value)
    if isinstance(value, dict | list) and depth == 0:
        raise ValueError("nested too deep")
    if isinstance(value, dict):
        return {_UNSTORABLE.sub("\ufffd", name): tidy(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list):
        return [tidy(item, depth - 1) for item in value]
    return value


def retry_after(value: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds to wait, from a Retry-After header (seconds or an HTTP date): within 0 and an hour, or None."""
    if value is None:
        return None
    text = value.strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,6})?", text, re.ASCII):
        return min(float(text), MAX_RETRY_AFTER)
    try:
        moment = parsedate_to_datetime(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = (moment - (now or datetime.now(UTC))).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)
