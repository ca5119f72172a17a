"""What may be registered and what may be submitted: refusals name the field, the value and the remedy."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel, Field

from actors import job_types
from actors.asked import BadRequest
from actors.job_types import UnknownJobType, job_type, prepare
from providers.registry import UnknownKind, get_kind
from store.errors import InlineSecret, InvalidRequest


class Asked(BaseModel):
    words: str
    count: int = Field(default=1, ge=1)


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(job_types, "REGISTRY", dict(job_types.REGISTRY))
    return


def submit(name: str, request: Any, **more: Any) -> Any:
    plain = {"user_id": "ann", "account_id": None, "idempotency_key": None, "delay": timedelta(0)}
    return prepare(name, request, **(plain | more))


def handler(context: Any, asked: Asked) -> dict[str, Any]:
    return {"words": asked.words}


def test_a_local_handler() -> None:
    job_type("local", request=Asked, price=lambda asked: asked.count * 2, retry_safe=True, max_attempts=5)(handler)
    new = submit("local", {"words": "hello", "count": 3})
    assert (new.mode, new.actor, new.queue, new.price, new.account_id) == ("local", "run_handler", "calls", 6, "ann")
    assert (new.retry_safe, new.max_attempts) == (True, 5)
    assert new.request == {"words": "hello", "count": 3}


@pytest.mark.parametrize(
    ("kind", "mode", "actor"),
    [("replicate-prediction", "async", "start_call"), ("anthropic-sync", "sync", "run_sync_call")],
)
def test_a_provider_kind(kind: str, mode: str, actor: str) -> None:
    @job_type("call", request=Asked, kind=kind)
    def call(asked: Asked) -> dict[str, Any]:
        if mode == "sync":
            return {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": asked.words}]}
        return {"model": "acme/draw", "input": {"prompt": asked.words}}

    new = submit("call", Asked(words="hello"))
    assert (new.mode, new.actor) == (mode, actor)
    assert "hello" in str(new.request), "what is stored is the provider's request, built at submit"


def test_an_unknown_type_names_those_there_are() -> None:
    with pytest.raises(UnknownJobType, match=r"'nothing'.*replicate-prediction.*CALLKEEPER_MODULES"):
        submit("nothing", {})


def test_an_unknown_kind_names_those_there_are() -> None:
    with pytest.raises(UnknownKind, match=r"'midjourney'.*replicate-prediction"):
        job_type("x", request=Asked, kind="midjourney")(handler)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"queue_deadline": timedelta(0)}, "queue_deadline"),
        ({"deadline": timedelta(seconds=-1)}, "deadline"),
        ({"queue": "fast"}, r"queue \(one of calls, large\)"),
        ({"price": -1}, "price"),
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_by_name(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=rf"'x': .*{named}.* out of range"):
        job_type("x", request=Asked, **wrong)(handler)


def test_a_deadline_that_gives_up_paid_work_must_be_meant() -> None:
    kind = get_kind("replicate-prediction")
    short = {"request": Asked, "kind": kind.name, "deadline": kind.max_run - timedelta(seconds=1)}
    with pytest.raises(
        ValueError, match=r"'x': its deadline .* is shorter than replicate-prediction may run .*may_abandon"
    ):
        job_type("x", **short)(handler)
    job_type("x", **short, may_abandon=True)(handler)
    assert all(
        known.deadline >= get_kind(known.kind).max_run
        for known in job_types.REGISTRY.values()
        if known.kind and not known.may_abandon
    )


@pytest.mark.parametrize("name", ["", "n" * 129])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name out of range"):
        job_type(name, request=Asked)(handler)


def test_a_name_belongs_to_one_function() -> None:
    def other(context: Any, asked: Asked) -> None:
        return

    job_type("mine", request=Asked)(handler)
    job_type("mine", request=Asked)(handler)  # a module imported twice is no second type
    with pytest.raises(ValueError, match="'mine' is already registered: choose another name"):
        job_type("mine", request=Asked)(other)


def test_a_bad_request_lists_every_field_with_what_it_got() -> None:
    job_type("local", request=Asked)(handler)
    with pytest.raises(BadRequest) as refused:
        submit("local", {"count": 0})
    assert [path for path, _ in refused.value.problems] == ["words", "count"]
    assert "(got 0)" in str(refused.value)
    assert "'local'" in str(refused.value)
    assert all(str(refused.value).count(name) == 1 for name in ("words", "count")), "each field is named once"


def test_a_function_that_builds_a_bad_provider_request_is_told_so() -> None:
    @job_type("call", request=Asked, kind="replicate-prediction")
    def call(asked: Asked) -> dict[str, Any]:
        return {"input": {}}

    with pytest.raises(
        BadRequest, match=r"exactly one of version, model and deployment.*'call \(replicate-prediction\)'"
    ):
        submit("call", {"words": "x"})


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({"user_id": None}, r"account_id: is missing.*'paid' reserves 2 credits: name who pays"),
        ({"idempotency_key": ""}, "idempotency_key: has 0 characters"),
        ({"idempotency_key": "k" * 257}, "idempotency_key: has 257 characters"),
        ({"account_id": "a\x00b"}, "account_id"),
    ],
    ids=str,
)
def test_words_around_the_request_are_checked(more: dict[str, Any], error: str) -> None:
    job_type("paid", request=Asked, price=2)(handler)
    with pytest.raises(InvalidRequest, match=error):
        submit("paid", {"words": "x"}, **more)


def test_a_price_that_comes_out_negative_is_refused() -> None:
    job_type("odd", request=Asked, price=lambda _: -5)(handler)
    with pytest.raises(InvalidRequest, match=r"price: of job type 'odd' came out as -5"):
        submit("odd", {"words": "x"})


def test_an_inline_secret_is_refused_with_the_way_that_works() -> None:
    job_type("local", request=Asked)(handler)
    with pytest.raises(InlineSecret, match=r"CALLKEEPER_SECRET_<NAME>.*\$secret"):
        submit("local", {"words": "r8_" + "a" * 30})


def test_the_same_request_has_the_same_fingerprint_whatever_the_order() -> None:
    job_type("local", request=Asked)(handler)
    one, same = submit("local", {"words": "x", "count": 2}), submit("local", {"count": 2, "words": "x"})
    assert one.fingerprint == same.fingerprint != submit("local", {"words": "y", "count": 2}).fingerprint
