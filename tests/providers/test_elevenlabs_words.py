"""ElevenLabs's answers, one by one: what each refusal and each result means."""

import contextlib
import json

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers import elevenlabs_results as results
from providers.contract import Failed, Media, Running, Succeeded
from providers.elevenlabs_words import detail_of, refusal, unknown
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.sandbox.files import mp3, mp4, png, wav

MP3 = mp3("abc")
BASE = "https://api.elevenlabs.io"


def reply(status, body, **headers):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, httpx.Headers({name.replace("_", "-"): value for name, value in headers.items()}), raw)


def said(status, word=None, message="words", **more):
    detail = {"message": message, **more} | ({"status": word} if word else {})
    return reply(status, {"detail": detail})


@pytest.mark.parametrize(
    ("answer", "code", "remedy"),
    [
        (said(400, "max_character_limit_exceeded"), "request_too_large", Remedy.CUSTOMER),
        (said(400, "voice_not_found"), "voice_not_found", Remedy.CUSTOMER),
        (said(404, "voice_not_found"), "voice_not_found", Remedy.CUSTOMER),
        (said(404, "generated_voice_not_found"), "voice_not_found", Remedy.CUSTOMER),
        (said(404, "model_not_found"), "model_not_found", Remedy.CUSTOMER),
        (said(400, "input_text_empty"), "request_invalid", Remedy.CUSTOMER),
        (said(400), "request_invalid", Remedy.CUSTOMER),
        (said(401, "invalid_api_key"), "provider_auth_invalid", Remedy.OPERATOR),
        (said(401, "needs_authorization"), "provider_auth_invalid", Remedy.OPERATOR),
        (said(401, "missing_permissions"), "provider_forbidden", Remedy.OPERATOR),
        (said(401, "quota_exceeded"), "provider_credits_exhausted", Remedy.OPERATOR),
        (said(401, "QUOTA_EXCEEDED"), "provider_credits_exhausted", Remedy.OPERATOR),
        (said(429, "quota_exceeded"), "provider_credits_exhausted", Remedy.OPERATOR),
        (said(400, "quota_exceeded_for_key"), "provider_credits_exhausted", Remedy.OPERATOR),
        (said(400, "voice_limit_reached"), "provider_credits_exhausted", Remedy.OPERATOR),
        (
            said(401, None, code="quota_exceeded", type="payment_required"),
            "provider_credits_exhausted",
            Remedy.OPERATOR,
        ),
        (said(401, "detected_unusual_activity"), "provider_account_blocked", Remedy.OPERATOR),
        (said(403, "unusual_activity"), "provider_account_blocked", Remedy.OPERATOR),
        (said(402, "paid_plan_required"), "provider_forbidden", Remedy.OPERATOR),
        (said(403, "only_for_creator+"), "provider_forbidden", Remedy.OPERATOR),
        (said(413), "request_too_large", Remedy.CUSTOMER),
        (said(422, "invalid_parameters"), "request_invalid", Remedy.CUSTOMER),
        (said(400, "content_policy_violation"), "content_policy", Remedy.CUSTOMER),
        (said(422, "prohibited_text"), "content_policy", Remedy.CUSTOMER),
        (said(403, "voice_verification_failed"), "content_policy", Remedy.CUSTOMER),
        (said(400, "text_moderated"), "content_policy", Remedy.CUSTOMER),
        (said(429, "too_many_concurrent_requests"), "rate_limited", Remedy.THROTTLED),
        (said(429, "system_busy"), "provider_overloaded", Remedy.THROTTLED),
        (said(429, "never_heard_of"), "rate_limited", Remedy.THROTTLED),
        (said(418, "teapot"), "request_refused", Remedy.NOBODY),
        (
            reply(422, {"detail": [{"loc": ["body", "text"], "msg": "Field required"}]}),
            "request_invalid",
            Remedy.CUSTOMER,
        ),
        (reply(404, {"detail": "Not Found"}), "model_not_found", Remedy.CUSTOMER),
        (reply(401, {"detail": "Invalid"}), "provider_auth_invalid", Remedy.OPERATOR),
    ],
)
def test_its_own_refusal_is_rejected(answer, code, remedy):
    error = refusal(answer)
    assert (error.code, error.fate, error.remedy) == (code, Fate.REJECTED, remedy)
    assert error.status == answer.status


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (said(409, "conflict"), Remedy.RETRY),
        (said(408, "timeout"), Remedy.RETRY),
        (said(425, "dubbing_not_dubbed"), Remedy.RETRY),
        (said(500, "internal"), Remedy.RETRY),
        (said(503, "system_busy"), Remedy.RETRY),
        (said(302, "moved"), Remedy.RETRY),
        (reply(429, b"<html>slow down"), Remedy.THROTTLED),
        (reply(401, b"<html>"), Remedy.RETRY),
        (reply(400, {"detail": []}), Remedy.RETRY),
        (reply(400, {"detail": {}}), Remedy.RETRY),
        (reply(400, {"detail": ""}), Remedy.RETRY),
        (reply(400, {"detail": [{"no": "msg"}]}), Remedy.RETRY),
        (reply(404, {"error": "x"}), Remedy.RETRY),
        (reply(400, b"\xff\xfe"), Remedy.RETRY),
        (reply(502, b""), Remedy.RETRY),
    ],
)
def test_what_settles_nothing_is_ambiguous(answer, remedy):
    error = refusal(answer)
    assert (error.fate, error.remedy) == (Fate.AMBIGUOUS, remedy)


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({}, None),
        ({"retry_after": "7"}, 7.0),
        ({"retry_after_ms": "1500"}, 1.5),
        ({"retry_after_ms": "x", "retry_after": "2"}, 2.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after_ms": "99999999999"}, 3600.0),
    ],
)
def test_it_says_how_long_to_wait(headers, wait):
    answer = reply(429, {"detail": {"status": "system_busy", "message": "m"}}, **headers)
    assert refusal(answer).retry_after == wait


def test_the_message_is_short_and_without_keys(key):
    error = refusal(said(401, "invalid_api_key", f"key {key} from https://x/y?sig=s3cr3t " + "long " * 500))
    assert key not in str(error)
    assert "s3cr3t" not in str(error)
    assert len(error.message) <= 500


def test_a_list_of_faults_names_their_places():
    answer = reply(422, {"detail": [{"loc": ["body", "text"], "msg": "Field required"}, {"msg": "odd"}]})
    assert detail_of(answer).message == "body.text: Field required; odd"


@pytest.mark.parametrize(
    ("answer", "is_unknown"),
    [
        (said(404, "dubbing_not_found"), True),
        (said(400, "voice_not_found"), True),
        (said(410, "gone"), True),
        (reply(404, {"detail": "Not Found"}), True),
        (reply(404, b"<html>"), False),
        (said(400, "other"), False),
        (said(500, "voice_not_found"), False),
        (said(401, "invalid_api_key"), False),
    ],
)
def test_only_its_own_word_makes_a_thing_unknown(answer, is_unknown):
    assert unknown(answer) is is_unknown


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (MP3, {}),
        (wav("abc"), {"content_type": "audio/wav"}),
        (b"OggS" + bytes(200), {}),
        (b"fLaC" + bytes(200), {}),
        (MP3, {"content_length": str(len(MP3))}),
        (MP3, {"content_length": "12", "content_encoding": "gzip"}),
        (MP3, {"content_length": "nonsense"}),
    ],
)
def test_audio_is_a_result(content, headers):
    found = results.audio(reply(200, content, **headers))
    assert found.media == (Media(url="", kind="audio", content=content),)


def test_audio_tells_its_cost_and_its_name():
    found = results.audio(reply(200, MP3, character_cost="42", request_id="req1", history_item_id="h1"))
    assert (found.usage, found.provider_id) == ({"characters": 42}, "req1")
    assert results.audio(reply(200, MP3, history_item_id="h1")).provider_id == "h1"
    assert results.audio(reply(200, MP3, character_cost="4.2")) == Succeeded(media=found.media)


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"", {}),
        (MP3[:-1], {"content_length": str(len(MP3))}),
        (MP3, {"content_length": "0"}),
        (MP3 + b"x", {"content_length": str(len(MP3))}),
        (b"<html>just a moment</html>", {"content_type": "audio/mpeg"}),
        (b'{"detail": "x"}', {"content_type": "audio/mpeg"}),
        (png("x", 0), {"content_type": "audio/mpeg"}),
        (b"plain text", {}),
        (bytes(500), {}),
        (b"\xff\xff\xff\xff" * 9, {}),
    ],
)
def test_a_cut_or_other_body_is_no_audio(content, headers):
    with pytest.raises(ProviderError) as caught:
        results.audio(reply(200, content, **headers))
    assert (caught.value.code, caught.value.fate) == ("malformed_response", Fate.AMBIGUOUS)


WORDS = {"text": "hello", "words": [{"text": "hello", "start": 0, "end": 1}], "language_code": "eng"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (WORDS, Succeeded(text="hello", value=WORDS)),
        ({**WORDS, "text": ""}, Succeeded(text="", value={**WORDS, "text": ""})),
        ({"text": "x"}, Succeeded(text="x", value={"text": "x"})),
        ({"text": "x", "words": None}, Succeeded(text="x", value={"text": "x", "words": None})),
    ],
)
def test_a_transcription_is_text_and_value(body, expected):
    assert results.transcript(reply(200, body)) == expected


def test_a_transcription_tells_seconds_and_its_id():
    body = {**WORDS, "audio_duration_secs": 61.5, "transcription_id": "t1"}
    found = results.transcript(reply(200, body, request_id="r1"))
    assert (found.usage, found.provider_id) == ({"audio_seconds": 61.5}, "t1")


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        {"text": None},
        {"text": "x", "words": "y"},
        {"text": "x", "words": ["y"]},
        {"message": "accepted", "request_id": "r", "transcription_id": "t"},
        b"<html>",
        b"",
    ],
)
def test_what_is_no_transcription_is_none(body):
    with pytest.raises(ProviderError, match="malformed_response"):
        results.transcript(reply(200, body))


def test_an_alignment_is_its_value():
    body = {"characters": [{"text": "h"}], "words": [{"text": "h", "loss": 0.1}], "loss": 0.1}
    assert results.alignment(reply(200, body)) == Succeeded(value=body)


@pytest.mark.parametrize("body", [{}, {"characters": []}, {"characters": [1], "words": []}, {"words": []}, [], b"x"])
def test_what_is_no_alignment_is_none(body):
    with pytest.raises(ProviderError, match="malformed_response"):
        results.alignment(reply(200, body))


@pytest.mark.parametrize(
    ("body", "task_id"),
    [
        ({"previews": [{"generated_voice_id": "a"}, {"generated_voice_id": "b"}]}, "a.b"),
        ({"previews": [{"generated_voice_id": "a"}]}, "a"),
        ({"previews": []}, None),
        ({"previews": [{"generated_voice_id": "a/b"}]}, None),
        ({"previews": [{"generated_voice_id": "a.b"}]}, None),
        ({"previews": [{"generated_voice_id": "a"}, {}]}, None),
        ({"previews": ["a"]}, None),
        ({}, None),
        (None, None),
    ],
)
def test_previews_make_a_task_id(body, task_id):
    assert results.previews(body) == task_id


def dub(**changes):
    body = {"dubbing_id": "d1", "status": "dubbed", "target_languages": ["es"], "error": None}
    return results.dubbing({**body, **changes}, language="es", base_url=BASE)


def file(kind, language="es"):
    return (Media(f"{BASE}/v1/dubbing/d1/audio/{language}", kind, authorised=True),)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, Succeeded(media=file("file"))),
        (
            {"media_metadata": {"content_type": "audio/mpeg", "duration": 61.2}},
            Succeeded(media=file("audio"), usage={"media_seconds": 61.2}),
        ),
        ({"media_metadata": {"content_type": "video/mp4"}}, Succeeded(media=file("video"))),
        ({"media_metadata": {"content_type": 7, "duration": True}}, Succeeded(media=file("file"))),
        ({"media_metadata": "odd"}, Succeeded(media=file("file"))),
        ({"target_languages": ["fr", "es"]}, Succeeded(media=file("file"))),
        ({"target_languages": ["es-ES"]}, Succeeded(media=file("file", "es-ES"))),
        ({"status": "dubbing"}, Running(None, "dubbing")),
        ({"status": "queued"}, Running(None, "queued")),
        ({"status": "preparing"}, Running(None, "preparing")),
        ({"status": "mastering"}, Running(None, "mastering", known=False)),
        ({"status": "failed", "error": "no speech found"}, Failed("task_failed", "no speech found")),
        ({"status": "failed", "error": None}, Failed("task_failed", "the provider gave no reason")),
        (
            {"status": "failed", "error": "Violates our content policy"},
            Failed("content_policy", "Violates our content policy"),
        ),
    ],
)
def test_a_dubbing_is_read(changes, expected):
    assert dub(**changes) == expected


@pytest.mark.parametrize("languages", [[], ["fr", "de"], None, ["../../v1/voices"], [7], "es"])
def test_a_dubbing_without_our_language_shows_no_result(languages):
    with pytest.raises(ProviderError) as caught:
        dub(target_languages=languages)
    assert (caught.value.code, caught.value.remedy) == ("output_missing", Remedy.RETRY)


@pytest.mark.parametrize("status", [None, "", 7, ["dubbed"]])
def test_a_dubbing_without_a_status_is_malformed(status):
    with pytest.raises(ProviderError, match="malformed_response"):
        dub(status=status)


@pytest.mark.parametrize(
    ("more", "value"),
    [
        ({}, {}),
        (
            {"name": "Ann", "category": "cloned", "labels": {"a": "b"}},
            {"name": "Ann", "category": "cloned", "labels": {"a": "b"}},
        ),
        (
            {"voice_verification": {"requires_verification": True, "is_verified": False}},
            {"requires_verification": True},
        ),
        (
            {"voice_verification": {"requires_verification": True, "is_verified": True}},
            {"requires_verification": False},
        ),
        ({"voice_verification": None, "preview_url": "https://x/?sig=1"}, {}),
    ],
)
def test_a_voice_is_its_value(more, value):
    assert results.voice({"voice_id": "v1", **more}) == Succeeded(value={"voice_id": "v1", **value})


READERS = (results.audio, results.transcript, results.alignment)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.sampled_from(["detail", "status", "text", "words", "code", "msg"]) | st.text(), inner)
    ),
    max_leaves=12,
)


def outcome(read, answer):
    """What the reader makes of it; None when it raises the one error that it may."""
    try:
        return read(answer)
    except ProviderError as error:
        return None if error.fate is Fate.AMBIGUOUS else pytest.fail(str(error))


@given(st.binary(max_size=300), st.integers(200, 599), st.sampled_from([{}, {"content_type": "audio/mpeg"}]))
def test_no_bytes_do_more_than_raise_the_providers_error(content, status, headers):
    answer = reply(status, content, **headers)
    assert isinstance(refusal(answer), ProviderError)
    assert unknown(answer) in (True, False)
    for found in filter(None, (outcome(read, answer) for read in READERS)):
        # Only what begins as audio can come out as audio; nothing random is a transcript.
        assert found.media
        assert content[:1] in (b"\xff", b"R", b"O", b"f", b"I", b"\x1a") or content[4:8] == b"ftyp"


@given(JSON, st.integers(200, 599))
def test_no_json_does_more_either(body, status):
    answer = reply(status, body)
    assert isinstance(refusal(answer), ProviderError)
    for read in READERS:
        outcome(read, answer)
    if isinstance(body, dict):
        with contextlib.suppress(ProviderError):
            results.dubbing({"dubbing_id": "d1", **body}, language="es", base_url=BASE)
        results.voice(body)
    results.previews(body)


def test_a_sample_of_each_sandbox_file_is_what_it_says():
    assert results.audio(reply(200, MP3)).media[0].content.endswith(mp3("other")[-400:])
    assert mp3("a" * 20) != mp3("b" * 20)
    assert wav("a") != wav("b")
    assert results.audio(reply(200, mp4("x" * 26))).media  # an MP4 may hold sound alone
