"""Every answer of the table is told apart as it should be; what is no answer is never taken for a success."""

import asyncio
import io
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.classify import Act, Patience, after_poll, after_request_error
from actors.dispositions import Disposition
from providers.contract import Failed, Mode, Succeeded
from providers.errors import Fate, ProviderError
from providers.registry import KINDS, get_kind
from providers.verify.decode import examine
from providers.verify.words import Limits, Refused
from tests.providers.responses.rows import REQUESTS, Row, answer, content_of, disposition, is_success, meaning, table

PATIENCE = Patience(base=2, cap=300, throttled=15, operator=60)
ACTS = {
    Disposition.RETRY: {Act.RETRY, Act.REQUEUE},
    Disposition.OPERATOR: {Act.REQUEUE},
    Disposition.CUSTOMER: {Act.FAIL},
    Disposition.TERMINAL: {Act.FAIL},
}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as made:
        yield made


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row.place} {row.asked} {row.stage} {row.status}")
def test_an_answer_means_what_the_table_says(row: Row, runner: asyncio.Runner) -> None:
    content = content_of(row.body)
    found = answer(row.asked, row.stage, status=row.status, content=content, headers=row.headers, runner=runner)
    assert meaning(row.stage, found) == row.means
    if isinstance(found, ProviderError | Failed):
        assert "canary-key" not in found.message
    if row.stage in ("create", "sync") and isinstance(found, ProviderError):
        _decided(found, get_kind(row.kind).mode)
    if row.stage == "poll" and isinstance(found, ProviderError):
        assert after_poll(found, misses=0).act is Act.POLL_AGAIN, "no error of a look ends a job"


def _decided(error: ProviderError, mode: Mode) -> None:
    """Whatever may have been taken is never sent again by itself."""
    given = {"attempt": 1, "attempts_left": True, "patience": PATIENCE, "jitter": 0.5}
    act = after_request_error(error, mode=mode, retry_safe=False, **given).act
    found = disposition("create", error)
    assert (found is Disposition.AMBIGUOUS) == (error.fate is Fate.AMBIGUOUS)
    if found is Disposition.AMBIGUOUS:
        assert act is (Act.RESOLVE if mode is Mode.ASYNC else Act.FAIL)
    else:
        assert act in ACTS[found]


def test_the_table_is_whole() -> None:
    assert len(table()) >= 350
    asked = Counter((row.kind, row.stage) for row in table())
    for kind in KINDS.values():
        stages = ("poll",) if kind.mode is Mode.ASYNC else ("sync",)
        assert all(asked[kind.name, stage] >= 3 for stage in stages), kind.name
    # One vendor's kinds share how they are asked; each way has its rows.
    for family in ("kie-standard", "replicate-prediction", "replicate-training", "elevenlabs-async",
                   "openrouter-video", "heygen-video"):  # fmt: skip
        assert all(asked[family, stage] for stage in ("create", "poll", "find", "cancel")), family
    dispositions = {row.means.partition(" ")[0] for row in table()}
    # Nothing that a provider answers asks for a larger machine; that is said by our own.
    assert {str(one) for one in Disposition} - dispositions == {"larger_machine"}


ASKED = sorted(
    (asked, stage)
    for asked in REQUESTS
    for stage in (
        ("create", "poll", "find", "cancel") if get_kind(asked.partition("/")[0]).mode is Mode.ASYNC else ("sync",)
    )
)
STATUSES = st.sampled_from([200, 200, 200, 201, 202, 204, 206, 301, 400, 401, 404, 409, 422, 425, 429, 500, 503, 529])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
BROKEN = (
    st.binary(max_size=200)
    | ANYTHING.map(lambda value: json.dumps(value).encode())
    | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
    | st.integers(1, 3000).map(lambda deep: b"[" * deep + b"]" * deep)
)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "content-type": st.sampled_from(["application/json", "text/html", "audio/mpeg", "x"]),
        "retry-after": st.sampled_from(["1", "-1", "soon", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT", "9" * 30]),
        "retry-after-ms": st.sampled_from(["1", "x", "9" * 30]),
        "character-cost": st.sampled_from(["1", "-", "9" * 30]),
        "request-id": st.text("abc\u00e9", max_size=10),
    },
)
# Their answer is not looked at: the id tells all, or there is nothing to ask.
UNASKED = {("elevenlabs-async/design", "poll"), ("elevenlabs-async/design", "cancel")}
NOT_LISTED = {("elevenlabs-async/design", "find"), ("elevenlabs-async/alignment", "find")}


@pytest.mark.parametrize(("asked", "stage"), [one for one in ASKED if one not in UNASKED | NOT_LISTED])
@settings(max_examples=15)
@given(status=STATUSES, content=BROKEN, headers=HEADERS)
def test_what_is_no_answer_raises_one_error_and_is_no_success(
    asked: str, stage: str, runner: asyncio.Runner, status: int, content: bytes, headers: dict[str, str]
) -> None:
    found = answer(asked, stage, status=status, content=content, headers=headers, runner=runner)
    if stage == "cancel":
        assert isinstance(found, bool | ProviderError)
    elif stage == "find":
        # Neither found nor shown to be absent: garbage is no list, so nothing is given up for it.
        assert isinstance(found, ProviderError)
    elif isinstance(found, Succeeded) and found.media and found.media[0].content is not None:
        # Bytes that begin like sound are taken for it until they are decoded, and are never kept.
        with pytest.raises(Refused):
            examine(io.BytesIO(content), len(content), "audio", Limits(), lambda: None)
    else:
        assert not is_success(found)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for name, item in inner for found in _paths(item, (*path, name)))]


def _changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = _changed(value[path[0]], path[1:], new)
    return copy


@settings(max_examples=400)
@given(data=st.data())
def test_an_answer_with_one_thing_wrong_raises_nothing_else(runner: asyncio.Runner, data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([row for row in table() if not isinstance(row.body, str)]))
    path = data.draw(st.sampled_from(_paths(row.body)))
    body = _changed(row.body, path, data.draw(ANYTHING))
    headers = data.draw(HEADERS)
    found = answer(
        row.asked, row.stage, status=row.status, content=json.dumps(body).encode(), headers=headers, runner=runner
    )
    assert meaning(row.stage, found)
