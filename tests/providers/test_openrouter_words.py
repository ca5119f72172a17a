"""OpenRouter's answers, in the shapes its reference gives them, and what each is taken to mean."""

import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.contract import Failed, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.openrouter_words import outcome, refusal, task_id_in

BASE = "https://openrouter.ai/api/v1"
CONTENT = f"{BASE}/videos/gen-vid-1/content?index=0"
COPY = "https://storage.example/x?sig=1"
DONE = {
    "id": "gen-vid-1",
    "polling_url": "/api/v1/videos/gen-vid-1",
    "status": "completed",
    "generation_id": "gen-1",
    "unsigned_urls": [CONTENT],
    "urls": [COPY],
    "expires_at": 1790086400,
    "usage": {"cost": 0.42, "is_byok": False},
}


def reply(status, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, httpx.Headers(headers), raw)


def error(status, message="x", code=None, **more):
    return reply(status, {"error": {"code": code or status, "message": message, **more}, "user_id": "u"})


@pytest.mark.parametrize(
    ("answer", "code", "fate", "remedy"),
    [
        (error(400, "Unsupported aspect ratio"), "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
        (error(400, "Prompt was flagged"), "content_policy", Fate.REJECTED, Remedy.CUSTOMER),
        (error(401), "provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR),
        (error(402, "Insufficient credits"), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(403, "Key limit exceeded"), "provider_forbidden", Fate.REJECTED, Remedy.OPERATOR),
        (error(403, "No", metadata={"reasons": ["violence"]}), "content_policy", Fate.REJECTED, Remedy.CUSTOMER),
        (error(404, "No such model"), "model_not_found", Fate.REJECTED, Remedy.CUSTOMER),
        (error(413), "request_too_large", Fate.REJECTED, Remedy.CUSTOMER),
        (error(418), "request_refused", Fate.REJECTED, Remedy.NOBODY),
        (error(429), "rate_limited", Fate.REJECTED, Remedy.THROTTLED),
        (error(200, "Insufficient credits", 402), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(400, "Payment", 402), "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
        (error(200, "Provider returned error", 502), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(400, "Upstream timed out", 504), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(400, "Closed", 499), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(499), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(408), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(500), "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(502, "Bad request", 400), "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
        (error(503), "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(400, b"<html>"), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(404, {"detail": "x"}), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(429, b""), "unexpected_response", Fate.AMBIGUOUS, Remedy.THROTTLED),
        (reply(302, b"", location="https://evil.example"), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
        (reply(400, {"error": "text"}), "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
    ],
)
def test_a_refusal_is_classified(answer, code, fate, remedy):
    found = refusal(answer)
    assert (found.code, found.fate, found.remedy) == (code, fate, remedy)


def test_a_refusal_keeps_the_pause_that_was_asked_for():
    found = refusal(reply(429, {"error": {"code": 429, "message": "slow"}}, **{"retry-after": "7"}))
    assert found.retry_after == 7


def test_completed_prefers_the_content_endpoint_which_takes_the_key():
    found = outcome(DONE, BASE)
    assert isinstance(found, Succeeded)
    assert [(one.url, one.kind, one.authorised) for one in found.media] == [(CONTENT, "video", True)]
    assert found.usage == {"cost": 0.42, "is_byok": "false", "generation_id": "gen-1"}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"unsigned_urls": []}, [(COPY, False)]),
        ({"unsigned_urls": None, "urls": [COPY, 7, ""]}, [(COPY, False)]),
        ({"unsigned_urls": ["/api/v1/videos/gen-vid-1/content?index=0"]}, [(CONTENT, True)]),
        ({"unsigned_urls": ["https://evil.example/v.mp4"]}, [("https://evil.example/v.mp4", False)]),
        ({"unsigned_urls": ["http://openrouter.ai/x"]}, [("http://openrouter.ai/x", False)]),
        ({"unsigned_urls": ["https://openrouter.ai:444/x"]}, [("https://openrouter.ai:444/x", False)]),
    ],
)
def test_the_key_goes_to_its_own_origin_only(change, expected):
    assert [(one.url, one.authorised) for one in outcome({**DONE, **change}, BASE).media] == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"status": "pending"}, Running(word="pending")),
        ({"status": "in_progress"}, Running(word="in_progress")),
        ({"status": "queued"}, Running(word="queued")),
        ({"status": "dreaming"}, Running(word="dreaming", known=False)),
        (
            {"status": "failed", "error": "Content was flagged by the provider"},
            Failed("content_policy", "Content was flagged by the provider"),
        ),
        ({"status": "failed", "error": "GPU fell over"}, Failed("task_failed", "GPU fell over")),
        ({"status": "failed"}, Failed("task_failed", "the provider gave no reason")),
        (
            {"status": "expired", "error": "too old"},
            Failed("task_cancelled", "expired at the provider: too old", cancelled=True),
        ),
        (
            {"status": "cancelled", "usage": {"cost": 0}},
            Failed("task_cancelled", "cancelled at the provider: no reason given", cancelled=True, usage={"cost": 0}),
        ),
    ],
)
def test_each_status_means_one_thing(job, expected):
    assert outcome(job, BASE) == expected


@pytest.mark.parametrize("change", [{"unsigned_urls": [], "urls": []}, {"unsigned_urls": None, "urls": None}])
def test_success_without_a_file_is_no_success(change):
    with pytest.raises(ProviderError, match="output_missing") as caught:
        outcome({**DONE, **change}, BASE)
    assert (caught.value.fate, caught.value.remedy) == (Fate.AMBIGUOUS, Remedy.RETRY)


def test_ids_are_safe_in_a_path():
    assert task_id_in({"id": "gen-vid-1790000000-AbCdEfGhIjKlMnOpQrSt"})
    assert task_id_in({"id": "job-abc123"})
    for body in ({"id": "../x"}, {"id": ""}, {"id": 7}, {"id": "a" * 200}, [], None, "x"):
        assert task_id_in(body) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys((*DONE, "error"), JSON_VALUES)
    | {"status": st.sampled_from(["completed", "failed", "expired", "cancelled", "x"]) | JSON_VALUES},
)


@given(FIELDS)
def test_no_job_object_breaks_the_reading(job):
    try:
        found = outcome(job, BASE)
    except ProviderError:
        return
    if isinstance(found, Succeeded):
        assert job["status"] == "completed"
        assert found.media
        assert all(one.url and one.authorised == one.url.startswith("https://openrouter.ai/") for one in found.media)


@given(st.integers(100, 599), st.binary(max_size=60) | JSON_VALUES.map(lambda value: json.dumps(value).encode()))
def test_no_reply_breaks_the_refusal(status, body):
    assert refusal(reply(status, body)).fate in (Fate.REJECTED, Fate.AMBIGUOUS)
