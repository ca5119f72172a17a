"""Replicate's answers, one by one: what each says of the run, or of the money."""

import json
from dataclasses import asdict

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Failed, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.replicate_words import outcome, refusal, task_id_in

BASE = "https://api.replicate.com/v1"
URL = "https://replicate.delivery/x/out-0.png"
CLIP = "https://replicate.delivery/x/out.mp4"
DATA = "data:audio/wav;base64,UklGRg=="


def read(prediction, *, output="media", media_kind=None, base=BASE):
    return outcome({"id": "abc", **prediction}, {"output": output, "media_kind": media_kind}, base)


@pytest.mark.parametrize(
    ("prediction", "expected"),
    [
        ({"status": "starting"}, Running(None, "starting")),
        ({"status": "starting", "logs": None}, Running(None, "starting")),
        ({"status": "processing", "logs": " 40%|####      | 4/10"}, Running(0.4, "processing")),
        ({"status": "processing", "logs": " 40%|##|\n 75%|###|"}, Running(0.75, "processing")),
        ({"status": "processing", "logs": "999%|##|"}, Running(1.0, "processing")),
        ({"status": "processing", "logs": ["5%|"]}, Running(None, "processing")),
        ({"status": "thinking"}, Running(None, "thinking", known=False)),
        ({"status": "SUCCEEDED"}, Running(None, "SUCCEEDED", known=False)),
        ({"status": "odd\n" * 20}, Running(None, "odd " * 9 + "odd…", known=False)),
        ({"status": "canceled"}, Failed("task_cancelled", "cancelled at the provider", cancelled=True)),
        (
            {"status": "aborted"},
            Failed("task_cancelled", "its deadline passed before it started", cancelled=True),
        ),
        ({"status": "failed", "error": "CUDA out of memory"}, Failed("task_failed", "CUDA out of memory")),
        ({"status": "failed", "error": None}, Failed("task_failed", "the provider gave no reason")),
        (
            {"status": "failed", "error": "x", "metrics": {"predict_time": 1.2}},
            Failed("task_failed", "x", usage={"predict_time": 1.2}),
        ),
        ({"status": "failed", "error": "NSFW content detected"}, Failed("content_policy", "NSFW content detected")),
        (
            {"status": "failed", "error": "it was flagged as sensitive."},
            Failed("content_policy", "it was flagged as sensitive."),
        ),
        ({"status": "failed", "error": "try again (E005)"}, Failed("content_policy", "try again (E005)")),
        ({"status": "failed", "error": "try again (E001)"}, Failed("task_failed", "try again (E001)")),
        (
            {"status": "failed", "error": "GET https://h.example/x?sig=abc failed"},
            Failed("task_failed", "GET https://h.example/x failed"),
        ),
        (
            {"status": "succeeded", "output": None, "input": {}, "data_removed": True},
            Failed("output_lost", "the provider has removed the output; it does so an hour after the end"),
        ),
        (
            {"status": "succeeded", "output": "plain words"},
            Failed("result_wrong_type", "files were asked for, and the output names none"),
        ),
        (
            {"status": "succeeded", "output": ["ftp://x/y", "javascript:1", "file:///etc/passwd", "//x/y"]},
            Failed("result_wrong_type", "files were asked for, and the output names none"),
        ),
    ],
)
def test_a_prediction_is_read(prediction, expected):
    assert read(prediction) == expected


@pytest.mark.parametrize(
    ("output", "urls"),
    [
        (URL, [(URL, "image", True)]),
        ([URL, CLIP], [(URL, "image", True), (CLIP, "video", True)]),
        ([URL, URL], [(URL, "image", True)]),
        ({"a": {"b": [URL]}, "n": 3, "t": "words", "c": [DATA, None]}, [(URL, "image", True), (DATA, "audio", False)]),
        (
            "https://x.replicate.delivery/p/OUT.WEBM?sig=1",
            [("https://x.replicate.delivery/p/OUT.WEBM?sig=1", "video", True)],
        ),
        (
            "https://replicate.delivery.evil.example/a.png",
            [("https://replicate.delivery.evil.example/a.png", "image", False)],
        ),
        ("https://evilreplicate.delivery/a.png", [("https://evilreplicate.delivery/a.png", "image", False)]),
        ("http://replicate.delivery/a.png", [("http://replicate.delivery/a.png", "image", False)]),
        ("https://replicate.delivery:444/a.png", [("https://replicate.delivery:444/a.png", "image", False)]),
        ("https://replicate.delivery@evil.example/a", [("https://replicate.delivery@evil.example/a", "file", False)]),
        ("https://api.replicate.com/v1/files/1", [("https://api.replicate.com/v1/files/1", "file", True)]),
        ("https://[::1/a.png", [("https://[::1/a.png", "file", False)]),
    ],
)
def test_files_are_found_in_any_shape(output, urls):
    found = read({"status": "succeeded", "output": output, "metrics": {"predict_time": 4.1, "total_time": 9}})
    assert [(m.url, m.kind, m.authorised) for m in found.media] == urls
    assert found.usage == {"predict_time": 4.1, "total_time": 9}


def test_the_sandbox_origin_may_see_the_key_and_no_other_port():
    here = "http://127.0.0.1:8765/v1"
    found = read(
        {"status": "succeeded", "output": ["http://127.0.0.1:8765/a.png", "http://127.0.0.1:8766/a.png"]}, base=here
    )
    assert [media.authorised for media in found.media] == [True, False]


def test_a_declared_media_kind_overrules_the_extension():
    assert read({"status": "succeeded", "output": URL}, media_kind="video").media[0].kind == "video"


def test_files_are_capped():
    found = read({"status": "succeeded", "output": [f"https://replicate.delivery/{n}.png" for n in range(999)]})
    assert len(found.media) == 256


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("hello", Succeeded(text="hello")),
        (["he", "l", "lo"], Succeeded(text="hello")),
        ({"x": 1}, Failed("result_wrong_type", "text was asked for, and the output is something else")),
        ([1, 2], Failed("result_wrong_type", "text was asked for, and the output is something else")),
    ],
)
def test_text_is_joined(output, expected):
    assert read({"status": "succeeded", "output": output}, output="text") == expected


@pytest.mark.parametrize("output", [{"x": [1, None]}, [], 0, False, "words", [URL]])
def test_json_is_kept_as_it_is(output):
    assert read({"status": "succeeded", "output": output}, output="json") == Succeeded(value=output)


@pytest.mark.parametrize("wanted", ["media", "text", "json"])
def test_success_without_output_is_no_answer_yet(wanted):
    with pytest.raises(ProviderError) as caught:
        read({"status": "succeeded", "output": None}, output=wanted)
    assert (caught.value.code, caught.value.fate, caught.value.remedy) == (
        "output_missing",
        Fate.AMBIGUOUS,
        Remedy.RETRY,
    )


@pytest.mark.parametrize("status", [None, 7, "", ["succeeded"], {}])
def test_no_status_is_malformed(status):
    with pytest.raises(ProviderError, match="malformed_response"):
        read({"status": status, "output": URL})


def test_metrics_keep_only_numbers_and_short_words():
    metrics = {"a": 1, "b": True, "c": None, "d": [1], "e": "ab " * 40, **{f"m{n}": n for n in range(99)}}
    usage = read({"status": "succeeded", "output": URL, "metrics": metrics}).usage
    assert usage["a"] == 1
    assert {"b", "c", "d"}.isdisjoint(usage)
    assert len(usage["e"]) == 60
    assert len(usage) <= 32


def problem(status, detail="words", title="Title", headers=None):
    body = json.dumps({"title": title, "detail": detail, "status": status}).encode()
    return Reply(status, httpx.Headers(headers or {}), body)


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (400, "request_invalid", Remedy.CUSTOMER),
        (401, "provider_auth_invalid", Remedy.OPERATOR),
        (402, "provider_credits_exhausted", Remedy.OPERATOR),
        (403, "provider_forbidden", Remedy.OPERATOR),
        (404, "model_not_found", Remedy.CUSTOMER),
        (409, "request_refused", Remedy.NOBODY),
        (410, "model_not_found", Remedy.CUSTOMER),
        (413, "request_too_large", Remedy.CUSTOMER),
        (422, "request_invalid", Remedy.CUSTOMER),
        (429, "rate_limited", Remedy.THROTTLED),
    ],
)
def test_its_own_refusal_is_rejected(status, code, remedy):
    error = refusal(problem(status))
    assert (error.code, error.fate, error.remedy, error.status) == (code, Fate.REJECTED, remedy, status)
    assert error.message == "Title: words"


@pytest.mark.parametrize("status", [301, 302, 304, 408, 425, 499, 500, 502, 503, 504, 520, 529])
def test_a_body_settles_nothing_for_these_statuses(status):
    assert refusal(problem(status)).fate is Fate.AMBIGUOUS


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 408, 413, 422, 429, 499, 500, 502, 503, 504])
@pytest.mark.parametrize(
    "body", [b"", b"<html>nginx</html>", b"null", b"[]", b"{}", b'{"message": "x"}', b'{"detail": 7}', b"\xff"]
)
def test_somebody_elses_words_settle_nothing(status, body):
    error = refusal(Reply(status, httpx.Headers(), body))
    assert (error.fate, error.status) == (Fate.AMBIGUOUS, status)
    assert error.remedy is (Remedy.THROTTLED if status == 429 else Remedy.RETRY)


@pytest.mark.parametrize(
    ("detail", "headers", "seconds"),
    [
        ("Request was throttled. Your rate limit resets in ~30s.", {}, 30.0),
        ("Your rate limit resets in ~1.5s.", {}, 1.5),
        ("Request was throttled.", {}, None),
        ("resets in ~30s", {"retry-after": "7"}, 7.0),
        ("resets in ~999999s", {}, 3600.0),
    ],
)
def test_throttling_says_for_how_long(detail, headers, seconds):
    error = refusal(problem(429, detail, headers=headers))
    assert (error.remedy, error.retry_after) == (Remedy.THROTTLED, seconds)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"id": "abc"}, "abc"),
        ({}, None),
        ({"id": ""}, None),
        ({"id": 3}, None),
        ({"id": "a/b"}, None),
        ([], None),
        (None, None),
    ],
)
def test_a_task_id_can_stand_in_a_path(body, expected):
    assert task_id_in(body) == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.integers(300, 599),
    st.binary(max_size=300),
    st.dictionaries(st.sampled_from(["retry-after", "x"]), st.text("0123456789abc GMT:", max_size=12)),
)
def test_any_bytes_make_a_refusal(status, body, headers):
    error = refusal(Reply(status, httpx.Headers(headers), body))
    assert isinstance(error, ProviderError)
    assert len(error.message) <= 500


@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(("status", "output", "error", "logs", "metrics", "data_removed"), JSON)
    ),
    st.sampled_from(["media", "text", "json"]),
)
def test_any_prediction_is_an_outcome_or_an_error(prediction, wanted):
    try:
        found = read(prediction, output=wanted)
    except ProviderError:
        return
    assert not isinstance(found, Succeeded)  # none of these has the word "succeeded" and an output by chance
    asdict(found)


@given(JSON, st.sampled_from(["media", "text", "json"]))
def test_a_success_always_holds_something(output, wanted):
    try:
        found = read({"status": "succeeded", "output": output}, output=wanted)
    except ProviderError as caught:
        found = caught
    if isinstance(found, Succeeded):
        assert found.media or found.text is not None or found.value is not None
    else:
        assert isinstance(found, Failed) or found.code == "output_missing"
