"""HeyGen's answers, in the shapes its reference gives them, and what each is taken to mean."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Failed, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.heygen_words import is_unknown_video, outcome, refusal, task_id_in
from providers.http import Reply

LINK = "https://files.example/v.mp4?Expires=1"
DONE = {
    "id": "v_abc",
    "title": "op-42",
    "status": "completed",
    "video_url": LINK,
    "thumbnail_url": "https://files.example/t.jpg",
    "gif_url": None,
    "subtitle_url": "https://files.example/s.srt",
    "captioned_video_url": "https://files.example/c.mp4",
    "duration": 3.06,
    "created_at": 1790000000,
    "completed_at": 1790000090,
}


def reply(status, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, httpx.Headers(headers), raw)


def error(status, code, message="words"):
    return reply(status, {"error": {"code": code, "message": message}})


@pytest.mark.parametrize(
    ("answer", "code", "fate", "remedy"),
    [
        (error(400, "invalid_parameter"), "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
        (error(400, "validation_error"), "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
        (error(400, "download_failed"), "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
        (error(400, "moderation"), "content_policy", Fate.REJECTED, Remedy.CUSTOMER),
        (error(400, "invalid_parameter", "violates our policy"), "content_policy", Fate.REJECTED, Remedy.CUSTOMER),
        (error(401, "unauthorized"), "provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR),
        (error(402, "insufficient_credit"), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(400, "insufficient_credit"), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(403, "forbidden"), "provider_forbidden", Fate.REJECTED, Remedy.OPERATOR),
        (error(403, "resource_access_denied"), "provider_forbidden", Fate.REJECTED, Remedy.CUSTOMER),
        (error(404, "avatar_not_found"), "model_not_found", Fate.REJECTED, Remedy.CUSTOMER),
        (error(404, "look_not_found"), "model_not_found", Fate.REJECTED, Remedy.CUSTOMER),
        (error(409, "conflict"), "request_conflict", Fate.REJECTED, Remedy.RETRY),
        (error(409, "request_in_progress"), "request_in_progress", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(200, "request_in_progress"), "request_in_progress", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(413, "payload_too_large"), "request_too_large", Fate.REJECTED, Remedy.CUSTOMER),
        (error(418, "teapot"), "request_refused", Fate.REJECTED, Remedy.NOBODY),
        (error(429, "rate_limit_exceeded"), "rate_limited", Fate.REJECTED, Remedy.THROTTLED),
        (error(429, "quota_exceeded"), "rate_limited", Fate.REJECTED, Remedy.THROTTLED),
        (error(200, "insufficient_credit"), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(200, "internal_error"), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(500, "invalid_parameter"), "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(503, "internal_error"), "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(408, "timeout"), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(400, b"<html>"), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(404, {"message": "no route"}), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(429, b""), "unexpected_response", Fate.AMBIGUOUS, Remedy.THROTTLED),
        (reply(200, {"error": None, "data": None}), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
    ],
)
def test_a_refusal_is_classified(answer, code, fate, remedy):
    found = refusal(answer)
    assert (found.code, found.fate, found.remedy) == (code, fate, remedy)


def test_only_heygen_itself_says_that_a_video_is_unknown():
    assert is_unknown_video(error(404, "video_not_found"))
    assert is_unknown_video(error(404, "gone_fishing"))
    assert is_unknown_video(error(200, "not_found"))
    assert not is_unknown_video(reply(404, b"<html>"))
    assert not is_unknown_video(error(400, "invalid_parameter"))


def test_completed_is_the_video_alone_unless_captions_were_asked_for():
    found = outcome(DONE, {})
    assert isinstance(found, Succeeded)
    assert [(one.url, one.kind, one.authorised) for one in found.media] == [(LINK, "video", False)]
    assert found.usage == {"duration": 3.06}
    captioned = outcome(DONE, {"captioned": True})
    assert [one.kind for one in captioned.media] == ["video", "video", "file"]
    assert [one.kind for one in outcome({**DONE, "subtitle_url": None}, {"captioned": True}).media] == [
        "video",
        "video",
    ]


@pytest.mark.parametrize(
    ("video", "expected"),
    [
        *[
            ({"status": word}, Running(word=word))
            for word in ("pending", "processing", "waiting", "generating", "queued")
        ],
        ({"status": "dreaming"}, Running(word="dreaming", known=False)),
        (
            {"status": "failed", "failure_code": "moderation", "failure_message": "no"},
            Failed("content_policy", "moderation: no"),
        ),
        (
            {"status": "failed", "failure_code": "rendering_failed", "failure_message": None, "duration": 1},
            Failed("task_failed", "rendering_failed", usage={"duration": 1}),
        ),
        ({"status": "failed"}, Failed("task_failed", "the provider gave no reason")),
    ],
)
def test_each_status_means_one_thing(video, expected):
    assert outcome(video, {}) == expected


def test_success_without_a_link_is_no_success():
    for link in (None, "", 7):
        with pytest.raises(ProviderError, match="output_missing"):
            outcome({**DONE, "video_url": link}, {"captioned": True})


def test_ids_are_safe_in_a_path():
    assert task_id_in({"video_id": "v_abc"}) == "v_abc"
    assert task_id_in({"id": "v_abc"}) == "v_abc"
    for body in ({"video_id": "../x"}, {"id": ""}, {"id": 7}, [], None):
        assert task_id_in(body) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys((*DONE, "failure_code"), JSON_VALUES) | {"status": st.sampled_from(["completed", "failed"])},
)


@given(FIELDS, st.booleans())
def test_no_video_object_breaks_the_reading(video, captioned):
    try:
        found = outcome(video, {"captioned": captioned})
    except ProviderError:
        return
    if isinstance(found, Succeeded):
        assert video["status"] == "completed"
        assert found.media[0].url == video["video_url"]


@given(st.integers(100, 599), st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_reply_breaks_the_refusal(status, body):
    assert refusal(reply(status, body)).fate in (Fate.REJECTED, Fate.AMBIGUOUS)
    assert is_unknown_video(reply(status, body)) in (True, False)
