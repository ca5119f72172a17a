"""What may be asked, what an answer may be, and what is pinned: pure."""

import json
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from actors import job_types
from actors.ai import prompts
from actors.ai.profiles import ModelChanged, Pinned, config_hash, pin, profiles, register_profile, unchanged
from actors.ai.requests import AiTask, Classify, ClassifyMany, ExtractData, GenerateText
from actors.ai.schemas import Malformed, Misfit, read, schema_of
from actors.settings import AiProfile
from providers.registry import get_kind
from store.errors import InvalidRequest
from tests.ai import kit  # noqa: F401  # registers the profiles

WORDS = st.text(min_size=1, max_size=12)
CHOICES = st.lists(WORDS, min_size=2, max_size=8, unique=True)
JSON = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


def task(**asked: Any) -> Any:
    return AiTask.model_validate(asked).root


def choose(choices: list[str]) -> Classify:
    return Classify(task="classify", text="x", choices=choices)


def profile(**changes: Any) -> AiProfile:
    return AiProfile(**{"kind": "anthropic-sync", "model": "claude-x", "price_in": 1, "price_out": 2, **changes})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"task": "sing"}, "task"),
        ({"task": "generate_text", "prompt": ""}, "prompt"),
        ({"task": "generate_text", "prompt": "x" * 20_001}, "prompt"),
        ({"task": "generate_text", "prompt": "x", "max_characters": 20_001}, "max_characters"),
        ({"task": "classify", "text": "x", "choices": ["a"]}, "choices"),
        ({"task": "classify", "text": "x", "choices": [str(n) for n in range(51)]}, "choices"),
        ({"task": "classify", "text": "x", "choices": ["a", "b", "a"]}, "choices has 'a' twice"),
        ({"task": "classify", "text": "x", "choices": ["a", "b" * 201]}, "choices"),
        ({"task": "classify_many", "text": "x" * 20_001, "choices": ["a", "b"]}, "text"),
        ({"task": "classify_many", "text": "x", "choices": ["a", "a"]}, "choices has 'a' twice"),
        ({"task": "extract_data", "text": "x", "fields": []}, "fields"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": f"f{n}", "type": "text"} for n in range(41)]}, "fields"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a", "type": "text"}] * 2}, "fields has 'a' twice"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a", "type": "enum"}]}, "'a': values"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a", "type": "text", "values": ["v"]}]}, "'a': values"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a", "type": "enum", "values": []}]}, "values"),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a b", "type": "text"}]}, "name"),
        ({"task": "generate_text", "prompt": "x", "temperature": 1}, "temperature"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_names_its_field(asked: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AiTask.model_validate(asked)


@pytest.mark.parametrize(
    ("asked", "tokens"),
    [
        ({"task": "generate_text", "prompt": "x", "max_characters": 10}, 64),
        ({"task": "generate_text", "prompt": "x", "max_characters": 1_000}, 500),
        ({"task": "generate_text", "prompt": "x", "max_characters": 20_000}, 8192),
        ({"task": "classify", "text": "x", "choices": ["a", "b"]}, 200),
        ({"task": "classify_many", "text": "x", "choices": ["a", "b"]}, 500),
        ({"task": "extract_data", "text": "x", "fields": [{"name": "a", "type": "text"}]}, 4096),
    ],
)
def test_output_is_capped_by_the_task_and_by_the_model(asked: dict[str, Any], tokens: int) -> None:
    assert prompts.first(task(**asked), profile(max_output=128_000))["max_tokens"] == tokens
    assert prompts.first(task(**asked), profile(max_output=50))["max_tokens"] == 50


@given(CHOICES, st.data())
def test_one_choice_fits_and_nothing_else_does(choices: list[str], data: st.DataObject) -> None:
    asked, chosen = choose(choices), data.draw(st.sampled_from(choices))
    assert read(asked, json.dumps({"choice": chosen})) == {"choice": chosen}
    assert isinstance(read(asked, json.dumps({"choice": chosen, "more": 1})), Misfit)
    assert isinstance(read(asked, json.dumps({"choice": f"{''.join(choices)}!"})), Misfit)
    assert isinstance(read(asked, json.dumps({"choice": chosen})[:-1]), Malformed)


@given(CHOICES, st.data())
def test_many_choices_come_once_and_in_their_own_order(choices: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.sampled_from(choices), max_size=12))
    found = read(ClassifyMany(task="classify_many", text="x", choices=choices), json.dumps({"choices": chosen}))
    assert found == {"choices": [one for one in choices if one in chosen]}


@given(JSON)
def test_whatever_comes_is_an_output_of_the_schema_or_is_told_apart(value: Any) -> None:
    fields = [
        {"name": "a", "type": "text"}, {"name": "b", "type": "number", "nullable": True},
        {"name": "c", "type": "boolean"}, {"name": "d", "type": "enum", "values": ["v", "w"]},
    ]  # fmt: skip
    asked: ExtractData = task(task="extract_data", text="x", fields=fields)
    for candidate in (value, {"a": value, "b": None, "c": True, "d": "w"}):
        found = read(asked, json.dumps(candidate))
        if not isinstance(found, Malformed | Misfit):
            Draft202012Validator(schema_of(asked)).validate(found)


@pytest.mark.parametrize(
    "answer", ["", "{", '{"choice": NaN}', '{"choice": 1e999}', f'{{"choice": {"9" * 400}}}', "[" * 100_000, "maybe a"]
)
def test_what_is_no_json_that_can_be_kept_is_malformed(answer: str) -> None:
    assert isinstance(read(choose(["a", "b"]), answer), Malformed)


def test_a_fence_around_the_json_is_no_fault() -> None:
    assert read(choose(["a", "b"]), '```json\n{"choice": "a"}\n```') == {"choice": "a"}


def test_a_repair_shows_the_bounded_answer_and_what_was_wrong() -> None:
    asked = choose(["a", "b"])
    turns = prompts.repair(asked, profile(), answer="x" * 9_000, problem="choice: 'c' is none of them")["messages"]
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert len(turns[1]["content"]) == 4_000
    assert "'c' is none of them" in turns[2]["content"]
    (turn,) = prompts.repair(asked, profile(), answer=" ", problem="the answer is empty")["messages"]
    assert "the answer is empty" in turn["content"]


@pytest.mark.parametrize(
    ("kind", "model"), [("anthropic-sync", "claude-x"), ("kie-llm", "claude-x"), ("kie-llm", "gpt-x")]
)
def test_every_question_is_one_its_provider_takes(kind: str, model: str) -> None:
    about = profile(kind=kind, model=model)
    asked = [
        choose(["a", "b"]),
        GenerateText(task="generate_text", prompt="x"),
        task(task="extract_data", text="x", fields=[{"name": "a", "type": "text", "description": "d"}]),
    ]
    for one in asked:
        for question in (prompts.first(one, about), prompts.repair(one, about, answer="y", problem="z")):
            get_kind(kind).provider.request_model.model_validate(question)
            assert "temperature" not in question
            assert "thinking" not in question
    told = {
        ("anthropic-sync", "claude-x"): {"temperature": 0.0, "thinking": {"type": "disabled"}},
        ("kie-llm", "claude-x"): {"thinkingFlag": False},
        ("kie-llm", "gpt-x"): {"reasoning_effort": "low"},
    }[kind, model]
    question = prompts.first(asked[0], about.model_copy(update={"temperature": 0.0, "reasoning": False}))
    get_kind(kind).provider.request_model.model_validate(question)
    assert question | told == question
    assert ("temperature" in question) is ("temperature" in told)


def test_the_hash_covers_what_matters_and_nothing_else() -> None:
    base = config_hash(profile())
    for change in (
        {"model": "m"},
        {"kind": "kie-llm"},
        {"temperature": 0.5},
        {"reasoning": True},
        {"strict": False},
        {"max_output": 9},
    ):
        assert config_hash(profile(**change)) != base, change
    for change in ({"label": "Small"}, {"price_in": 9}, {"price_out": 9}):
        assert config_hash(profile(**change)) == base, change


def test_a_profile_is_one_thing_under_one_name() -> None:
    about = {"kind": "kie-llm", "model": "m", "price_in": 0, "price_out": 0}
    assert register_profile("one-thing", **about) == register_profile("one-thing", **about)
    with pytest.raises(ValueError, match="already registered"):
        register_profile("one-thing", **{**about, "model": "n"})
    with pytest.raises(ValueError, match="price_out"):
        register_profile("two-things", **{**about, "price_out": -1})
    with pytest.raises(ValueError, match="a-z"):
        register_profile("Two Things", **about)
    assert "two-things" not in profiles()


def test_what_names_no_model_says_which_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"CALLKEEPER_AI_PROFILE.*small"):
        pin(None)
    with pytest.raises(InvalidRequest, match=r"'nobody'.*small"):
        pin("nobody")
    with pytest.raises(ModelChanged, match="gone"):
        unchanged(Pinned(profile="nobody", kind="kie-llm", model="m", config="0"))


def test_what_is_stored_is_the_task_and_its_model() -> None:
    asked = {"task": "classify", "text": "x", "choices": ["a", "b"], "model": "large"}
    new = job_types.prepare(
        "ai-task", asked, user_id=None, account_id=None, idempotency_key=None, delay=timedelta(0)
    )  # fmt: skip
    assert (new.provider_kind, new.mode, new.actor, new.retry_safe) == ("kie-llm", "sync", "run_ai_task", True)
    assert new.request["pinned"]["model"] == "claude-large"
    assert set(new.request) == {"task", "pinned"}
    assert (new.max_attempts, new.attempt_limit and new.attempt_limit.total_seconds()) == (3, 120)
    assert "ai-task" not in job_types.offered([])
    assert {"priced"} <= set(job_types.offered([]))
    assert "ai-task" in job_types.offered(["ai-task"])


def test_a_text_is_no_longer_than_it_may_be() -> None:
    asked = GenerateText(task="generate_text", prompt="x", max_characters=10)
    assert read(asked, " ten chars ") == {"text": "ten chars"}
    found = read(asked, "x" * 11)
    assert isinstance(found, Misfit)
    assert found.where == "text: maxLength"


def test_what_is_kept_of_a_misfit_quotes_nobody() -> None:
    """Its model is told all of it; events and errors only where it is, and by which rule."""
    found = read(choose(["canary-choice", "b"]), '{"choice": "canary-answer", "canary-key": 1}')
    assert isinstance(found, Misfit)
    assert "canary-choice" in found.problem
    assert "canary" not in found.where
    assert set(found.where.split("; ")) == {"the answer: additionalProperties", "choice: enum"}
