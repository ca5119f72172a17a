"""What may be stored is refused or repaired before it reaches Postgres, and what is accepted comes back unchanged."""

from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql as pg

from store import errors, hygiene
from store.engine import Database
from store.hygiene import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ERROR_CHARS,
    check_request,
    clean_json,
    clean_text,
    is_secret_reference,
)


def deep(levels: int, *, bottom: Any = "x") -> Any:
    value = bottom
    for _ in range(levels):
        value = [value]
    return value


REFUSED: dict[str, tuple[Any, type[errors.InvalidRequest], str]] = {
    "nul": ({"a": {"b": ["x", "y\x00"]}}, errors.RequestHasNul, "a.b[1]"),
    "nul in a name": ({"a": {"b\x00": 1}}, errors.RequestHasNul, "a.<name>"),
    "lone surrogate": ({"a": "\ud83d"}, errors.RequestHasLoneSurrogate, "a"),
    "two halves that are no pair": ({"a": "\ude00\ud83d"}, errors.RequestHasLoneSurrogate, "a"),
    "nan": ({"a": [1.0, float("nan")]}, errors.RequestHasNonFiniteNumber, "a[1]"),
    "infinity": ({"a": float("-inf")}, errors.RequestHasNonFiniteNumber, "a"),
    "huge integer": ({"a": 10**5_000}, errors.RequestHasHugeInteger, "a"),
    "negative huge integer": ({"a": [-(10**400)]}, errors.RequestHasHugeInteger, "a[0]"),
    "bytes": ({"a": b"x"}, errors.RequestHasWrongType, "a"),
    "a set": ({"a": {1}}, errors.RequestHasWrongType, "a"),
    "a name that is no text": ({"a": {1: "x"}}, errors.RequestHasWrongType, "a"),
    "too deep": ({"a": deep(MAX_DEPTH)}, errors.RequestTooDeep, "a" + "[0]" * MAX_DEPTH),
    "much too deep": (deep(100_000), errors.RequestTooDeep, "[0]" * (MAX_DEPTH + 1)),
    "too large": ({"a": "x" * MAX_BYTES}, errors.RequestTooLarge, "(all)"),
    "too large in bytes": ({"a": "é" * (MAX_BYTES // 2)}, errors.RequestTooLarge, "(all)"),
    "secret by name": ({"a": {"api_key": "x"}}, errors.InlineSecret, "a.api_key"),
    "secret by a camel name": ({"openaiApiKey": "x"}, errors.InlineSecret, "openaiApiKey"),
    "secret by a header's name": ({"headers": {"Authorization": "x"}}, errors.InlineSecret, "headers.Authorization"),
    "secret by a dashed name": ({"x-api-key": "x"}, errors.InlineSecret, "x-api-key"),
    "password": ({"db": [{"password": "x"}]}, errors.InlineSecret, "db[0].password"),
    "a number for a password": ({"password": 123}, errors.InlineSecret, "password"),
    "a pin": ({"a": {"db_password": 0}}, errors.InlineSecret, "a.db_password"),
    "a fraction": ({"token": 1.5}, errors.InlineSecret, "token"),
    "a list of tokens": ({"token": ["x"]}, errors.InlineSecret, "token"),
    "a list in a list": ({"credentials": [None, [7]]}, errors.InlineSecret, "credentials"),
    "a value beside references": ({"token": [{"$secret": "a"}, "b"]}, errors.InlineSecret, "token"),
    "a reference with company": ({"token": {"$secret": "a", "value": "b"}}, errors.InlineSecret, "token"),
    "a reference to a number": ({"token": {"$secret": 5}}, errors.InlineSecret, "token"),
    "secret by shape": ({"a": "use sk-" + "a" * 20}, errors.InlineSecret, "a"),
    "replicate's shape": ({"a": ["r8_" + "A" * 30]}, errors.InlineSecret, "a[0]"),
    "amazon's shape": ("AKIA" + "A" * 16, errors.InlineSecret, "(all)"),
    "github's shape": ({"a": "ghp_" + "a" * 36}, errors.InlineSecret, "a"),
    "a private key": ({"a": "-----BEGIN RSA PRIVATE KEY-----"}, errors.InlineSecret, "a"),
    "secret as a name": ({"sk-" + "a" * 20: 1}, errors.InlineSecret, "<name>"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_stored_is_refused_by_name_and_place(why: str) -> None:
    request, error, path = REFUSED[why]
    with pytest.raises(errors.InvalidRequest) as refusal:
        check_request(request)
    assert type(refusal.value) is error
    assert refusal.value.path == path
    assert path in str(refusal.value)


def test_a_refused_secret_says_how_to_send_it_and_not_what_it_was() -> None:
    with pytest.raises(errors.InlineSecret, match=r'CALLKEEPER_SECRET_.*\{"\$secret": "<name>"\}') as refusal:
        check_request({"token": "hush-hush"})
    assert "hush-hush" not in str(refusal.value)


@pytest.mark.parametrize(
    "request_",
    [
        {"api_key": {"$secret": "replicate"}},
        {"api_key": None, "password": ""},
        {"token": [{"$secret": "a"}, {"$secret": "b"}], "password": None, "secret": "", "access_key": []},
        {"require_password": True, "use_auth_token": False},
        {"credentials": {"user": "ann", "password": {"$secret": "ann"}}},
        {"properties": {"password": {"type": "string", "minLength": 8}}},
        {"max_tokens": 5, "tokenizer": "x", "secretary": "y", "keys": ["z"]},
        {"a": "a" * (MAX_BYTES - 9)},
        {"a": deep(MAX_DEPTH - 1)},
        {"a": 2**1_000, "b": -0.0, "c": 1e308, "d": 5e-324},
        "😀",
        None,
        (1, 2),
    ],
)
def test_what_looks_odd_but_can_be_stored_is_accepted(request_: Any) -> None:
    check_request(request_)


def test_a_secret_reference_is_exactly_that() -> None:
    assert is_secret_reference({"$secret": "name"})
    assert not any(is_secret_reference(x) for x in ({"$secret": 1}, {"$secret": "a", "b": 1}, "a", {}))


TEXT = st.text(alphabet=st.characters(codec=None), max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
RULES = settings(max_examples=150, suppress_health_check=list(HealthCheck))

ROUND = sa.select(
    sa.bindparam("value", type_=pg.JSONB(none_as_null=True)),
)
KEPT = sa.select(sa.cast(sa.bindparam("value"), sa.Text))


def same(sent: Any, got: Any) -> bool:
    """Equal as JSON: Postgres writes 1e30 out in full, which Python reads back as an integer."""
    if isinstance(sent, float):
        return not isinstance(got, bool) and isinstance(got, int | float) and float(got) == sent
    if isinstance(sent, list | tuple):
        return isinstance(got, list) and len(sent) == len(got) and all(map(same, sent, got))
    if isinstance(sent, dict):
        return isinstance(got, dict) and sent.keys() == got.keys() and all(same(sent[k], got[k]) for k in sent)
    return type(sent) is type(got) and sent == got


@given(value=JSON)
@RULES
@example(value=[-0.0, 5e-324, 1.7976931348623157e308, 2**1_000, "\u0000".join("ab")])
@example(value={"": {"": "😀\u2028\uffff"}})
def test_what_is_accepted_comes_back_unchanged(module_db: Database, value: Any) -> None:
    try:
        check_request(value)
    except errors.InvalidRequest:
        return
    with module_db.engine.connect() as connection:
        assert same(value, connection.execute(ROUND, {"value": value}).scalar_one())


@given(text=TEXT | st.text(min_size=MAX_ERROR_CHARS, max_size=MAX_ERROR_CHARS + 200))
@RULES
@example(text="😀" * 2_000)
@example(text="\ud83d\ude00" * 2_000)
def test_any_text_can_be_stored_once_it_is_clean(module_db: Database, text: str) -> None:
    clean = clean_text(text)
    assert clean is not None
    assert len(clean) <= MAX_ERROR_CHARS
    assert len(clean.encode()) <= 4096
    with module_db.engine.connect() as connection:
        assert connection.execute(KEPT, {"value": clean}).scalar_one() == clean


class Odd:
    def __init__(self, words: str) -> None:
        self.words = words

    def __str__(self) -> str:
        return self.words


ANY = st.recursive(
    JSON | st.binary(max_size=8) | st.sets(st.integers()) | TEXT.map(Odd) | st.none().map(lambda _: 10**5_000),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT | st.integers(), inner, max_size=4),
    max_leaves=8,
)


@given(value=ANY)
@RULES
@example(value=Odd("\x00\ud800"))
def test_any_value_can_be_stored_once_it_is_clean(module_db: Database, value: Any) -> None:
    clean = clean_json(value)
    with module_db.engine.connect() as connection:
        assert same(clean, connection.execute(ROUND, {"value": clean}).scalar_one())


@given(value=JSON)
@RULES
def test_cleaning_changes_only_what_cannot_be_stored(value: Any) -> None:
    try:
        check_request(value)
    except errors.InvalidRequest:
        return
    assert same(value, clean_json(value))


def test_errors_are_stored_without_keys_and_signatures() -> None:
    told = clean_text("GET https://x.example/y?X-Amz-Signature=abc failed for sk-" + "a" * 30)
    assert told == "GET https://x.example/y failed for [redacted]"
    assert clean_text(None) is None
    assert len(clean_text("a" * 5_000_000) or "") == MAX_ERROR_CHARS


def test_what_is_withheld_is_stored_nowhere_whatever_it_looks_like() -> None:
    hygiene.withhold(["open sesame", "open sesame 2", "no"])
    try:
        assert hygiene.clean_text("say open sesame 2, no?") == "say [redacted], no?"
        assert hygiene.clean_json({"open sesame": ["an open sesame", 1]}) == {"[redacted]": ["an [redacted]", 1]}
        assert hygiene.redacted(["open sesame"]) == ["[redacted]"]
        assert hygiene.masked("say open sesame") == "say ***********"
    finally:
        hygiene.withhold([])
    assert hygiene.masked("open sesame") == "open sesame"
