"""KIE's answers, one by one: what each says of the create, or of the run."""

import json
from dataclasses import asdict

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers import kie_words
from providers.contract import Failed, Missing, Running, Succeeded
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply
from providers.kie_wire import MAINTENANCE_WAIT, created, envelope, polled, refusal, task_id_in, whole

PNG = "https://tempfile.aiquickdraw.com/a.png"
CLIP = "https://tempfile.aiquickdraw.com/v.mp4"
SONG, OTHER = "https://tempfile.aiquickdraw.com/1.mp3", "https://tempfile.aiquickdraw.com/2.mp3"
AMBIGUOUS, REJECTED = Fate.AMBIGUOUS, Fate.REJECTED
NO_REASON = "the provider gave no reason"
READERS = {
    "market": kie_words.market_task,
    "kling": kie_words.kling_task,
    "veo": kie_words.veo_task,
    "kontext": kie_words.kontext_task,
    "luma": kie_words.luma_task,
    "suno": kie_words.suno_task,
    "runway": kie_words.runway_task,
}
MADE = {"market": None, "suno": "audio", "kontext": "image"}


def answer(body, status=200, **headers):
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Reply(status, httpx.Headers(headers), content)


def body(code, words="words", data=None):
    return {"code": code, "msg": words, "data": data}


def read(family, data, *, output="media", media_kind="as made"):
    """The outcome of a poll whose data is `data`, from the bytes on."""
    kind = MADE.get(family, "video") if media_kind == "as made" else media_kind
    found = polled(answer(body(200, "success", {"taskId": "t1", **data})), "t1")
    return READERS[family](found, {"output": output, "media_kind": kind})


def media(found):
    assert isinstance(found, Succeeded), found
    assert not any(one.authorised for one in found.media)
    return [(one.url, one.kind) for one in found.media]


CREATED = [
    (body(200, "success", {"taskId": "task_demo_1"}), "task_demo_1"),
    ({"code": 0, "message": "ok", "data": {"taskId": "ab" * 16}}, "ab" * 16),
    ({"data": {"taskId": "c9f0f895-fb98-4b91-8d0f-3f0f0a5b0001"}}, "c9f0f895-fb98-4b91-8d0f-3f0f0a5b0001"),
    ({"code": "200", "msg": "success", "data": {"taskId": "task_kling-3.0/video_17"}}, "task_kling-3.0/video_17"),
    (body(200, "success", {"task_id": "veo_task_9"}), "veo_task_9"),
    (body(200, "success", {"taskId": "t1", "task_id": "t1"}), "t1"),
    (body(422, "started: ask for it", {"taskId": "4k_1", "resultUrls": None}), "4k_1"),
    (body(500, "internal error", {"taskId": "t1"}), "t1"),
]


@pytest.mark.parametrize(("said", "task_id"), CREATED)
@pytest.mark.parametrize("status", [200, 500])
def test_a_named_task_is_taken_whatever_stands_beside_it(said, task_id, status):
    assert created(answer(said, status)) == task_id


REFUSED = [
    # HTTP, body, our code, fate, remedy
    (200, body(400), "request_invalid", REJECTED, Remedy.CUSTOMER),
    (200, body(400, "Content was flagged by the safety system"), "content_policy", REJECTED, Remedy.CUSTOMER),
    (200, body(401, "You do not have access permissions"), "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
    (200, body(402, "Insufficient credits"), "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
    (200, body(403), "provider_forbidden", REJECTED, Remedy.OPERATOR),
    (200, body(404), "model_not_found", REJECTED, Remedy.CUSTOMER),
    (200, body(409, "record already exists"), "request_conflict", REJECTED, Remedy.RETRY),
    (200, body(413, "matches an existing work"), "content_policy", REJECTED, Remedy.CUSTOMER),
    (200, body(422, "duration is not within the range"), "request_invalid", REJECTED, Remedy.CUSTOMER),
    (200, body(422, "prompt is prohibited"), "content_policy", REJECTED, Remedy.CUSTOMER),
    (200, body(429), "rate_limited", REJECTED, Remedy.THROTTLED),
    (200, body(433), "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
    (200, body(451), "input_unreachable", REJECTED, Remedy.CUSTOMER),
    (200, body(455), "provider_maintenance", REJECTED, Remedy.THROTTLED),
    (200, body(501), "task_failed", REJECTED, Remedy.NOBODY),
    (200, body(505), "provider_feature_off", REJECTED, Remedy.NOBODY),
    (200, body(531), "task_failed", REJECTED, Remedy.NOBODY),
    (200, body(418), "request_refused", REJECTED, Remedy.NOBODY),
    (200, body("402"), "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
    (200, {"code": 402, "message": "no credits"}, "provider_credits_exhausted", REJECTED, Remedy.OPERATOR),
    (500, body(401), "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
    (502, body(455), "provider_maintenance", REJECTED, Remedy.THROTTLED),
    (401, {"msg": "no key"}, "provider_auth_invalid", REJECTED, Remedy.OPERATOR),
    (413, {"message": "too large"}, "request_too_large", REJECTED, Remedy.CUSTOMER),
    (429, b"<html>slow down</html>", "rate_limited", REJECTED, Remedy.THROTTLED),
    (429, b"", "rate_limited", REJECTED, Remedy.THROTTLED),
    (200, body(500, "server error"), "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (200, body(503), "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (200, body(408), "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (200, body(302), "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (200, body(-1), "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (500, b"<html>", "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (501, b"", "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (502, {"msg": "bad gateway"}, "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (500, body(200, "success"), "provider_unavailable", AMBIGUOUS, Remedy.RETRY),
    (401, b"<html>", "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (408, {"msg": "timeout"}, "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (301, b"", "unexpected_response", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success"), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success", {}), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success", {"taskId": ""}), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success", {"taskId": "a b"}), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success", {"taskId": "t1", "task_id": "t2"}), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, body(200, "success", ["t1"]), "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, b"<html>", "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (204, b"", "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
    (200, {"code": "all well", "data": None}, "accepted_without_id", AMBIGUOUS, Remedy.RETRY),
]


@pytest.mark.parametrize(("status", "said", "code", "fate", "remedy"), REFUSED)
def test_a_create_without_a_task(status, said, code, fate, remedy):
    with pytest.raises(ProviderError) as caught:
        created(answer(said, status))
    error = caught.value
    assert (error.code, error.fate, error.remedy, error.status) == (code, fate, remedy, status)


def test_waits_are_those_that_were_asked_for_and_long_for_maintenance():
    assert refusal(answer(body(429), **{"retry-after": "7"})).retry_after == 7
    assert refusal(answer(body(429))).retry_after is None
    assert refusal(answer(body(455))).retry_after == MAINTENANCE_WAIT
    assert refusal(answer(body(455), **{"retry-after": "20"})).retry_after == 20


def test_a_refusals_words_are_safe():
    error = refusal(answer(body(422, "see https://files.example/x?sig=abc\nBearer abcdefghijk")))
    assert error.message == "422: see https://files.example/x Bearer [removed]"


UNLEARNED = [
    (200, body(400), "request_invalid"),
    (200, body(401), "provider_auth_invalid"),
    (403, body(403), "provider_forbidden"),
    (200, body(402), "provider_credits_exhausted"),
    (200, body(429), "rate_limited"),
    (429, b"", "rate_limited"),
    (200, body(455), "provider_maintenance"),
    (200, body(500), "provider_unavailable"),
    (503, b"<html>", "provider_unavailable"),
    (200, body(505), "provider_feature_off"),
    (404, b"<html>not found</html>", "unexpected_response"),
    (200, b"<html>", "malformed_response"),
    (200, b"", "malformed_response"),
    (200, body(200, "success", []), "malformed_response"),
    (200, body(200, "success", {"taskId": "other", "state": "success"}), "malformed_response"),
    (200, body(501, "failed", {"taskId": "other"}), "malformed_response"),
]


@pytest.mark.parametrize(("status", "said", "code"), UNLEARNED)
def test_a_poll_that_learned_nothing_is_an_error(status, said, code):
    with pytest.raises(ProviderError) as caught:
        polled(answer(said, status), "t1")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (200, body(422, "recordInfo is null")),
        (200, body(422, "record is null")),
        (200, body(404, "task not found")),
        (404, body(404, "task not found")),
        (200, body(200, "success")),
        (200, {"code": 0, "message": "ok"}),
    ],
)
def test_no_record_is_missing(status, said):
    assert polled(answer(said, status), "t1") == Missing()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (body(501, "Generation failed"), Failed("task_failed", "Generation failed")),
        (body(501, "flagged as sensitive"), Failed("content_policy", "flagged as sensitive")),
        (body(408, ""), Failed("task_failed", NO_REASON)),
        (body(531, "failed, credits are given back"), Failed("task_failed", "failed, credits are given back")),
    ],
)
def test_an_end_told_by_code_alone(said, expected):
    assert polled(answer(said), "t1") == expected


def market(state, **more):
    return {"model": "nano-banana-pro", "state": state, "resultJson": "", "failCode": "", "failMsg": "", **more}


def song(status, tracks=None, **more):
    response = None if tracks is None else {"taskId": "t1", "sunoData": tracks}
    return {"status": status, "response": response, "errorCode": None, "errorMessage": None, **more}


RUNNING = [
    ("market", market("waiting"), Running(None, "waiting")),
    ("market", market("queuing", progress=None), Running(None, "queuing")),
    ("market", market("generating", progress=40), Running(0.4, "generating")),
    ("market", market("generating", progress="55"), Running(0.55, "generating")),
    ("market", market("generating", progress=400), Running(1.0, "generating")),
    ("market", market("generating", progress=True), Running(None, "generating")),
    ("market", market("failed"), Running(None, "failed", known=False)),
    ("market", market("SUCCESS"), Running(None, "SUCCESS", known=False)),
    ("market", market("wait"), Running(None, "wait", known=False)),
    ("kling", market("generating"), Running(None, "generating")),
    ("kling", {"status": "queuing"}, Running(None, "queuing")),
    ("kling", {"status": "dreaming"}, Running(None, "dreaming", known=False)),
    ("veo", {"successFlag": 0, "response": None, "errorCode": None}, Running(None, "0")),
    ("veo", {"successFlag": "0"}, Running(None, "0")),
    ("veo", {"successFlag": 4, "response": {"resultUrls": [CLIP]}}, Running(None, "4", known=False)),
    ("kontext", {"successFlag": 0}, Running(None, "0")),
    ("kontext", {"successFlag": 9}, Running(None, "9", known=False)),
    ("luma", {"successFlag": 0}, Running(None, "0")),
    ("luma", {"successFlag": 5}, Running(None, "5", known=False)),
    ("suno", song("PENDING"), Running(None, "PENDING")),
    ("suno", song("TEXT_SUCCESS"), Running(None, "TEXT_SUCCESS")),
    ("suno", song("FIRST_SUCCESS", [{"audioUrl": SONG}, {"audioUrl": ""}]), Running(None, "FIRST_SUCCESS")),
    ("suno", song("PROCESSING"), Running(None, "PROCESSING")),
    ("suno", song("CALLBACK_EXCEPTION"), Running(None, "CALLBACK_EXCEPTION")),
    ("suno", song("CALLBACK_EXCEPTION", [{"audioUrl": SONG}, {"id": "t2"}]), Running(None, "CALLBACK_EXCEPTION")),
    ("suno", song("HUMMING"), Running(None, "HUMMING", known=False)),
    ("runway", {"state": "wait"}, Running(None, "wait")),
    ("runway", {"state": "queueing", "videoInfo": None}, Running(None, "queueing")),
    ("runway", {"state": "generating"}, Running(None, "generating")),
    ("runway", {"state": "queuing"}, Running(None, "queuing", known=False)),
]
FAILED = [
    ("market", market("fail", failCode="500", failMsg="Internal Error"), ("task_failed", "Internal Error")),
    (
        "market",
        market("fail", failCode="500", failMsg="the server is busy"),
        ("task_failed", "the server is busy"),
    ),
    (
        "market",
        market("fail", failCode="500", failMsg="Content was flagged"),
        ("content_policy", "Content was flagged"),
    ),
    (
        "market",
        market("fail", failCode="500", failMsg="it may depict a public figure"),
        ("content_policy", "it may depict a public figure"),
    ),
    ("market", market("fail", failCode="500", failMsg="NSFW"), ("content_policy", "NSFW")),
    (
        "market",
        market("fail", failCode="500", failMsg="'9' is not within the range of allowed options"),
        ("request_invalid", "'9' is not within the range of allowed options"),
    ),
    (
        "market",
        market("fail", failCode="500", failMsg="audio: expected [2000, 15000] ms"),
        ("request_invalid", "audio: expected [2000, 15000] ms"),
    ),
    ("market", market("fail", failCode=422, failMsg="bad"), ("request_invalid", "bad")),
    ("market", market("fail", failCode="451", failMsg="no file"), ("input_unreachable", "no file")),
    ("market", market("fail"), ("task_failed", NO_REASON)),
    ("kling", {"status": "failed", "failMsg": "busy"}, ("task_failed", "busy")),
    ("kling", {"state": "error"}, ("task_failed", NO_REASON)),
    (
        "veo",
        {"successFlag": 3, "errorCode": 400, "errorMessage": "Your request was rejected by Flow(x)"},
        ("content_policy", "Your request was rejected by Flow(x)"),
    ),
    ("veo", {"successFlag": 2, "errorCode": 501, "errorMessage": ""}, ("task_failed", NO_REASON)),
    ("veo", {"successFlag": "3", "errorCode": 500, "errorMessage": "oops"}, ("task_failed", "oops")),
    (
        "kontext",
        {"successFlag": 2, "response": None, "errorCode": 400, "errorMessage": "bad"},
        ("request_invalid", "bad"),
    ),
    ("kontext", {"successFlag": 3, "errorCode": 500, "errorMessage": "x"}, ("task_failed", "x")),
    (
        "luma",
        {"successFlag": 4, "response": None, "errorMessage": "callback failed"},
        ("task_failed", "callback failed"),
    ),
    (
        "luma",
        {"successFlag": 3, "errorMessage": "copyright restrictions"},
        ("content_policy", "copyright restrictions"),
    ),
    ("suno", song("CREATE_TASK_FAILED", errorCode=500, errorMessage="x"), ("task_failed", "x")),
    ("suno", song("GENERATE_AUDIO_FAILED", errorCode=408), ("task_failed", NO_REASON)),
    ("suno", song("GENERATE_AUDIO_FAILED", errorCode=413, errorMessage="a match"), ("content_policy", "a match")),
    ("suno", song("SENSITIVE_WORD_ERROR", errorCode=400), ("content_policy", "the words are not allowed")),
    ("suno", song("FAILED"), ("task_failed", NO_REASON)),
    (
        "runway",
        {"state": "fail", "failCode": 400, "failMsg": "Inappropriate content detected..."},
        ("content_policy", "Inappropriate content detected..."),
    ),
    ("runway", {"state": "fail", "failCode": 500, "failMsg": "x"}, ("task_failed", "x")),
    (
        "runway",
        {"state": "success", "videoInfo": {"videoUrl": CLIP}, "expireFlag": 1},
        ("output_lost", "the provider has removed the file"),
    ),
]
SUCCEEDED = [
    ("market", market("success", resultJson=json.dumps({"resultUrls": [PNG]})), [(PNG, "image")]),
    ("market", market("success", resultJson={"resultUrls": [PNG, CLIP]}), [(PNG, "image"), (CLIP, "video")]),
    ("market", market("success", resultJson=json.dumps({"resultUrls": json.dumps([PNG])})), [(PNG, "image")]),
    ("market", market("success", resultJson=json.dumps({"resultUrls": PNG})), [(PNG, "image")]),
    ("market", market("success", resultJson=json.dumps([SONG])), [(SONG, "audio")]),
    ("market", market("success", resultJson=json.dumps({"videoUrl": CLIP})), [(CLIP, "video")]),
    ("market", market("success", resultJson=json.dumps({"resultUrls": [], "audioUrl": SONG})), [(SONG, "audio")]),
    ("kling", market("success", resultJson=json.dumps({"resultUrls": [CLIP]})), [(CLIP, "video")]),
    ("kling", {"status": "completed", "video_url": CLIP}, [(CLIP, "video")]),
    ("kling", {"state": "success", "resultUrl": CLIP, "resultJson": "{"}, [(CLIP, "video")]),
    ("veo", {"successFlag": 1, "response": {"resultUrls": [CLIP], "originUrls": [OTHER]}}, [(CLIP, "video")]),
    ("veo", {"successFlag": 1, "response": {"resultUrls": json.dumps([CLIP])}}, [(CLIP, "video")]),
    (
        "kontext",
        {"successFlag": 1, "response": {"originImageUrl": "https://bfl.example/o.jpg", "resultImageUrl": PNG}},
        [(PNG, "image")],
    ),
    ("luma", {"successFlag": 1, "response": {"resultUrls": [CLIP]}}, [(CLIP, "video")]),
    ("luma", {"successFlag": 4, "errorCode": 500, "response": {"resultUrls": [CLIP]}}, [(CLIP, "video")]),
    ("suno", song("SUCCESS", [{"audioUrl": SONG}, {"audioUrl": OTHER}]), [(SONG, "audio"), (OTHER, "audio")]),
    (
        "suno",
        song("CALLBACK_EXCEPTION", [{"audioUrl": SONG}, {"audioUrl": OTHER}]),
        [(SONG, "audio"), (OTHER, "audio")],
    ),
    ("suno", song("SUCCESS", [{"audioUrl": SONG}, {"streamAudioUrl": OTHER}, None]), [(SONG, "audio")]),
    (
        "runway",
        {"state": "success", "videoInfo": {"videoUrl": CLIP, "imageUrl": PNG}, "expireFlag": 0},
        [(CLIP, "video")],
    ),
]
EMPTY = [
    ("market", market("success")),
    ("market", market("success", resultJson="{")),
    ("market", market("success", resultJson="not json")),
    ("market", market("success", resultJson=None)),
    ("market", market("success", resultJson=json.dumps({"resultUrls": []}))),
    ("market", market("success", resultJson="[" * 200)),
    ("kling", {"status": "completed"}),
    ("veo", {"successFlag": 1, "response": None}),
    ("veo", {"successFlag": 1, "response": {"resultUrls": "[broken"}}),
    ("kontext", {"successFlag": 1, "response": {"originImageUrl": PNG}}),
    ("luma", {"successFlag": 1, "response": {"resultUrls": []}}),
    ("suno", song("SUCCESS", [{"streamAudioUrl": SONG}])),
    ("suno", song("SUCCESS")),
    ("runway", {"state": "success", "videoInfo": None, "expireFlag": 0}),
]
SHAPELESS = [
    ("market", {}),
    ("market", {"state": ""}),
    ("market", {"state": 1}),
    ("kling", {"videoUrl": CLIP}),
    ("veo", {"response": {"resultUrls": [CLIP]}}),
    ("veo", {"successFlag": None}),
    ("veo", {"successFlag": True}),
    ("veo", {"successFlag": 1.5}),
    ("suno", {"response": {"sunoData": [{"audioUrl": SONG}]}}),
    ("runway", {"videoInfo": {"videoUrl": CLIP}}),
]


def test_the_tables_are_as_large_as_they_should_be():
    tables = (CREATED, REFUSED, UNLEARNED, RUNNING, FAILED, SUCCEEDED, EMPTY, SHAPELESS)
    assert sum(map(len, tables)) >= 150


@pytest.mark.parametrize(("family", "data", "expected"), RUNNING)
def test_a_run_goes_on(family, data, expected):
    assert read(family, data) == expected


@pytest.mark.parametrize(("family", "data", "expected"), FAILED)
def test_a_run_failed(family, data, expected):
    assert read(family, data) == Failed(*expected)


@pytest.mark.parametrize(("family", "data", "expected"), SUCCEEDED)
def test_a_run_succeeded(family, data, expected):
    assert media(read(family, data)) == expected


@pytest.mark.parametrize(("family", "data"), EMPTY)
def test_a_success_without_a_result_is_looked_at_again(family, data):
    with pytest.raises(ProviderError) as caught:
        read(family, data)
    assert (caught.value.code, caught.value.remedy) == ("output_missing", Remedy.RETRY)


@pytest.mark.parametrize(("family", "data"), SHAPELESS)
def test_a_record_without_a_state_is_no_answer(family, data):
    with pytest.raises(ProviderError, match="malformed_response"):
        read(family, data)


def test_credits_are_counted_where_they_are_told():
    spent = {"creditsConsumed": 18}
    assert read("market", market("success", resultJson=json.dumps({"resultUrls": [PNG]}), **spent)).usage == {
        "credits": 18
    }
    assert read("veo", {"successFlag": 3, **spent}).usage == {"credits": 18}
    assert read("runway", {"state": "fail", "creditsConsumed": "18"}).usage == {}


def test_a_songs_tracks_are_told_of_without_their_addresses():
    tracks = [{"id": "t1", "audioUrl": SONG, "streamAudioUrl": OTHER, "title": "A", "duration": 120.5, "tags": None}]
    assert read("suno", song("SUCCESS", tracks)).value == {"tracks": [{"id": "t1", "title": "A", "duration": 120.5}]}


@pytest.mark.parametrize(
    ("output", "result", "expected"),
    [
        ("json", {"resultObject": {"a": [1]}}, Succeeded(value={"a": [1]})),
        ("json", {"resultUrls": [PNG]}, Succeeded(value={"resultUrls": [PNG]})),
        ("text", {"resultObject": "a poem"}, Succeeded(text="a poem")),
        ("text", {"resultObject": {"text": "a poem"}}, Succeeded(text="a poem")),
        (
            "text",
            {"resultObject": {"n": 1}},
            Failed("result_wrong_type", "text was asked for, and the result holds none"),
        ),
        (
            "media",
            {"resultObject": {"text": "a poem"}},
            Failed("result_wrong_type", "files were asked for, and the result names none"),
        ),
    ],
)
def test_models_that_make_no_files(output, result, expected):
    assert read("market", market("success", resultJson=json.dumps(result)), output=output) == expected


@pytest.mark.parametrize("output", ["json", "text"])
@pytest.mark.parametrize("result", ["", "{", "{}", "null"])
def test_nothing_is_nothing_in_every_shape(output, result):
    with pytest.raises(ProviderError, match="output_missing"):
        read("market", market("success", resultJson=result), output=output)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1),
        ("400", 400),
        ("-1", -1),
        (2.0, 2),
        (2.5, None),
        (True, None),
        ("", None),
        ("\uff11", None),
        ("1" * 9, None),
        ([], None),
    ],
)
def test_whole_numbers(value, number):
    assert whole(value) == number


def test_an_id_is_printable_text():
    assert [task_id_in({"taskId": text}) for text in ("a", "", "a b", "ä", "a\n", 7, "x" * 201)] == ["a"] + [None] * 6


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
FIELDS = (
    "state",
    "status",
    "successFlag",
    "resultJson",
    "response",
    "videoInfo",
    "progress",
    "failCode",
    "errorMessage",
)


@given(st.integers(100, 599), st.binary(max_size=300))
def test_any_bytes_are_no_task_and_no_record(status, raw):
    reply = Reply(status, httpx.Headers(), raw)
    assert isinstance(refusal(reply), ProviderError)
    assert envelope(reply) is None
    for step in (created, lambda one: polled(one, "t1")):
        with pytest.raises(ProviderError):
            step(reply)


@given(st.integers(100, 599), JSON, JSON, JSON)
def test_any_envelope_is_settled_by_our_own_errors(status, code, words, data):
    reply = answer({"code": code, "msg": words, "data": data}, status)
    with pytest.raises(ProviderError):
        created(reply)
    try:
        found = polled(reply, "t1")
    except ProviderError:
        return
    assert not isinstance(found, Succeeded)


@given(st.sampled_from(sorted(READERS)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_any_record_is_an_outcome_or_an_error_and_never_a_success(family, data):
    try:
        found = read(family, data)
    except ProviderError:
        return
    assert isinstance(found, Running | Failed | Missing)
    asdict(found)


@given(st.sampled_from(sorted(READERS)), JSON, st.sampled_from(["media", "text", "json"]))
def test_a_success_always_holds_something(family, result, output):
    done = {"state": "success", "status": "SUCCESS", "successFlag": 1}
    try:
        found = read(family, {**done, "resultJson": result, "response": result, "videoInfo": result}, output=output)
    except ProviderError as caught:
        found = caught
    if isinstance(found, Succeeded):
        assert found.media or found.text or found.value is not None
    else:
        assert isinstance(found, Failed) or found.code == "output_missing"
