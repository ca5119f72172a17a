"""What may be stored: JSON that Postgres takes and gives back unchanged, without secrets, of bounded size.

`check_request` refuses, early and by name; `clean_*` repair what we must store whatever it is (errors, results).
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from store.errors import (
    InlineSecret,
    RequestHasHugeInteger,
    RequestHasLoneSurrogate,
    RequestHasNonFiniteNumber,
    RequestHasNul,
    RequestHasWrongType,
    RequestTooDeep,
    RequestTooLarge,
)

MAX_DEPTH = 32
MAX_BYTES = 256 * 1024
MAX_ERROR_CHARS = 1_000
# Python writes no integer of more than 4,300 digits.
MAX_INTEGER_BITS = 1_024

_SECRET_FIELD = re.compile(
    r"^(.*_)?(api_?key|secret|secret_key|client_secret|password|passwd|passphrase|authorization|bearer"
    r"|access_token|auth_token|refresh_token|api_token|token|private_key|access_key|credentials?)$"
)
_SECRET_SHAPE = re.compile(
    r"(?<![A-Za-z0-9_])(sk-[A-Za-z0-9_-]{16,}|sk_(?:live|test)_[A-Za-z0-9]{16,}|r8_[A-Za-z0-9]{20,}|AKIA[0-9A-Z]{16}"
    r"|ck_[A-Za-z0-9_-]{40,}|gh[pousr]_[A-Za-z0-9]{30,}|xox[abprs]-[A-Za-z0-9-]{10,}|whsec_[A-Za-z0-9+/=]{16,}|AIza[0-9A-Za-z_-]{30,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----"
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SHORTEST_SECRET = 8
_LONE = re.compile(r"[\ud800-\udfff]")
_SIGNED_QUERY = re.compile(r"(https?://[^\s?\"'<>]+)\?[^\s\"'<>]*")


class _Withheld:
    """What this process was given in confidence, as one pattern: it is stored nowhere, whatever it looks like."""

    pattern: re.Pattern[str] | None = None

    def out_of(self, text: str, instead: Callable[[re.Match[str]], str]) -> str:
        return text if self.pattern is None else self.pattern.sub(instead, text)


_withheld = _Withheld()


def withhold(secrets: Iterable[str]) -> None:
    """From now on, keep these out of everything that is stored or told. One of few characters is a word like others."""
    long = sorted({one for one in secrets if len(one) >= _SHORTEST_SECRET}, key=len, reverse=True)
    _withheld.pattern = re.compile("|".join(map(re.escape, long))) if long else None


def masked(text: str) -> str:
    """The text with as many characters, but for what is withheld."""
    return _withheld.out_of(text, lambda found: "*" * len(found[0]))


def _revealing_nothing(text: str) -> str:
    return _withheld.out_of(text, lambda _: "[redacted]")


def is_secret_reference(value: object) -> bool:
    return isinstance(value, Mapping) and set(value) == {"$secret"} and isinstance(value["$secret"], str)


def looks_secret(text: str) -> bool:
    """Whether text has the shape of a key: such text is never stored."""
    return _SECRET_SHAPE.search(text) is not None


def check_request(request: Any) -> None:
    """Raises the InvalidRequest subclass that fits; returns for JSON that can be stored as it is."""
    _check(request, "", depth=0)
    size = len(json.dumps(request, ensure_ascii=False).encode())
    if size > MAX_BYTES:
        raise RequestTooLarge(size, MAX_BYTES)


def _check(value: Any, path: str, *, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RequestTooDeep(path, MAX_DEPTH)
    if isinstance(value, str):
        _check_text(value, path or "(all)")
    elif isinstance(value, int | float):
        _check_number(value, path or "(all)")
    elif isinstance(value, Mapping):
        _check_object(value, path, depth=depth)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]", depth=depth + 1)
    elif value is not None:
        raise RequestHasWrongType(path or "(all)", value)


def _check_object(value: Mapping[Any, Any], path: str, *, depth: int) -> None:
    for name, item in value.items():
        if not isinstance(name, str):
            raise RequestHasWrongType(path or "(all)", name)
        _check_text(name, f"{path}.<name>".lstrip("."))
        inner = f"{path}.{name}".lstrip(".")
        plain = _CAMEL.sub("_", name).replace("-", "_").lower()
        if _SECRET_FIELD.match(plain) and _is_inline(item):
            raise InlineSecret(inner, f"the name {name!r} is one of a secret")
        _check(item, inner, depth=depth + 1)


def _is_inline(value: Any) -> bool:
    """Whether this is what a secret's name stands for: a text, a number, a list of them; not a flag, or an object."""
    if isinstance(value, list | tuple):
        return any(map(_is_inline, value))
    if isinstance(value, Mapping):
        return "$secret" in value and not is_secret_reference(value)
    return value is not None and not isinstance(value, bool) and value != ""


def _check_number(number: float, path: str) -> None:
    if isinstance(number, float) and not math.isfinite(number):
        raise RequestHasNonFiniteNumber(path, number)
    if isinstance(number, int) and number.bit_length() > MAX_INTEGER_BITS:
        raise RequestHasHugeInteger(path, MAX_INTEGER_BITS)


def _check_text(text: str, path: str) -> None:
    if "\x00" in text:
        raise RequestHasNul(path)
    if _LONE.search(text):
        raise RequestHasLoneSurrogate(path)
    if _SECRET_SHAPE.search(text):
        raise InlineSecret(path, "the value looks like a key")


def clean_text(text: str | None, *, limit: int = MAX_ERROR_CHARS) -> str | None:
    """Text that can always be stored: no NUL, no lone surrogate, no key, no query string of a URL, at most `limit`."""
    if text is None:
        return None
    text = _LONE.sub("\ufffd", _revealing_nothing(text[: limit * 4]).replace("\x00", "\ufffd"))
    text = _SIGNED_QUERY.sub(r"\1", _SECRET_SHAPE.sub("[redacted]", text))
    return text[:limit]


def redacted(value: Any) -> Any:
    """JSON for others to read: no key, no query string of a URL, no lone surrogate, no number that JSON lacks."""
    if isinstance(value, str):
        return _SIGNED_QUERY.sub(r"\1", _SECRET_SHAPE.sub("[redacted]", _LONE.sub("\ufffd", _revealing_nothing(value))))
    if isinstance(value, Mapping):
        return {redacted(str(name)): redacted(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(item) for item in value]
    return clean_json(value)


def clean_json(value: Any) -> Any:
    """JSON that can always be stored; numbers that JSON lacks become null. Meaning is kept wherever it can be."""
    if isinstance(value, str):
        return _LONE.sub("\ufffd", _revealing_nothing(value).replace("\x00", "\ufffd"))
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {clean_json(str(name)): clean_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item) for item in value]
    if isinstance(value, int):
        return value if value.bit_length() <= MAX_INTEGER_BITS else None
    return None if value is None else clean_json(str(value))
