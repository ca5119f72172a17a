"""The ElevenLabs kinds against the sandbox: what was billed, what came home, and what is found again."""

import asyncio
import base64
import io
from datetime import UTC, datetime, timedelta

import pytest

from providers.contract import Account, Call, Failed, Missing, Running, Succeeded
from providers.download import fetch
from providers.elevenlabs_find import mark
from providers.elevenlabs_requests import ElevenLabsAsyncRequest, ElevenLabsSyncRequest
from providers.errors import DownloadError, Fate, ProviderError, Remedy
from providers.http import make_client, make_looking_client
from providers.registry import get_kind
from providers.sandbox.files import mp3, mp4, wav
from store.hygiene import check_request

ASYNC, SYNC = get_kind("elevenlabs-async").provider, get_kind("elevenlabs-sync").provider
SAMPLE = "data:audio/mpeg;base64," + base64.b64encode(mp3("sample")).decode()
DUB = {"operation": "dubbing", "source_url": "https://example.com/talk.mp3?sig=1", "target_lang": "es"}
CLONE = {
    "operation": "voice_clone",
    "name": "Ann",
    "files": [SAMPLE, SAMPLE],
    "description": "calm",
    "labels": {"a": "b"},
}
DESIGN = {"operation": "voice_design", "voice_description": "an old sailor", "auto_generate_text": True}
SAVE = {"operation": "voice_save", "voice_name": "Sailor", "voice_description": "old", "generated_voice_id": "g1"}
ALIGN = {"operation": "forced_alignment", "file": SAMPLE, "text": "hello there"}
SPEECH = {"operation": "speech", "voice_id": "v1", "text": "Hello, world."}
SOUND = {"operation": "sound_effects", "text": "a door", "duration_seconds": 2}
TEXT = {"operation": "transcription", "model_id": "scribe_v2", "source_url": "https://example.com/talk.mp3"}


def run(step, client=make_client):
    """Run `step(client)` with a client of its own."""

    async def main():
        async with client() as used:
            return await step(used)

    return asyncio.run(main())


def call_of(request, provider=ASYNC, key="call-key-1"):
    return Call(request, provider.handle(request), key, datetime.now(UTC))


def polled(call):
    """The call as a poll gets it: without its request."""
    return Call({}, call.handle, call.call_key, call.started_at)


def create(account, call):
    return run(lambda client: ASYNC.create(client, account, call))


def poll(account, call, task_id):
    return run(lambda client: ASYNC.poll(client, account, polled(call), task_id), make_looking_client)


def find(account, call):
    return list(run(lambda client: ASYNC.find(client, account, polled(call)), make_looking_client))


def answer(account, call):
    return run(lambda client: SYNC.run(client, account, call))


def lost(action, account, call):
    with pytest.raises(ProviderError) as caught:
        action(account, call)
    return caught.value


def fetched(sandbox, account, media, key_header="xi-api-key"):
    sink = io.BytesIO()
    told = run(
        lambda client: fetch(
            client,
            media,
            sink,
            allowed_hosts=[".elevenlabs.io", "127.0.0.1"],
            insecure_hosts=[sandbox.netloc],
            max_bytes=10**6,
            deadline=timedelta(seconds=10),
            authorization=account.api_key,
            key_header=key_header,
        )
    )
    return told, sink.getvalue()


def test_a_dubbing_runs_and_comes_home(sandbox, elevenlabs_account):
    sandbox.script({"defaults": {"run_seconds": 60}})
    call = call_of(DUB)
    task_id = create(elevenlabs_account, call)
    (billed,) = sandbox.bill()
    assert (billed["kind"], billed["task_id"], billed["path"]) == ("elevenlabs", task_id, "/v1/dubbing")
    assert billed["input"]["name"] == mark("call-key-1")
    assert (billed["input"]["target_lang"], billed["input"]["mode"]) == ("es", "automatic")
    assert poll(elevenlabs_account, call, task_id) == Running(None, "dubbing")
    sandbox.finish(task_id)
    found = poll(elevenlabs_account, call, task_id)
    (media,) = found.media
    assert (media.kind, media.authorised, found.usage) == ("audio", True, {"media_seconds": 1.04})
    told, content = fetched(sandbox, elevenlabs_account, media)
    assert (told.content_type, content) == ("audio/mpeg", mp3(task_id))


def test_a_dubbed_video_is_one(sandbox, elevenlabs_account):
    call = call_of({**DUB, "source_url": "https://example.com/talk.mp4"})
    task_id = create(elevenlabs_account, call)
    (media,) = poll(elevenlabs_account, call, task_id).media
    assert media.kind == "video"
    assert fetched(sandbox, elevenlabs_account, media)[1] == mp4(task_id)


def test_a_file_can_be_dubbed(sandbox, elevenlabs_account):
    request = {"operation": "dubbing", "file": SAMPLE, "target_lang": "de", "num_speakers": 2, "watermark": True}
    create(elevenlabs_account, call_of(request))
    sent = sandbox.bill()[0]["input"]
    assert sent["file"][0]["bytes"] == len(mp3("sample"))
    assert (sent["num_speakers"], sent["watermark"], sent["source_lang"]) == ("2", "true", "auto")


def test_a_file_that_is_not_ready_is_fetched_later(sandbox, elevenlabs_account):
    call = call_of(DUB)
    task_id = create(elevenlabs_account, call)
    (media,) = poll(elevenlabs_account, call, task_id).media
    sandbox.script({"defaults": {"reply": {"status": 425, "body": {"detail": {"status": "too_early"}}}}})
    with pytest.raises(DownloadError) as caught:
        fetched(sandbox, elevenlabs_account, media)
    assert caught.value.retryable


def test_a_file_is_behind_the_key_and_its_own_header(sandbox, elevenlabs_account):
    call = call_of(DUB)
    (media,) = poll(elevenlabs_account, call, create(elevenlabs_account, call)).media
    with pytest.raises(DownloadError):
        fetched(sandbox, elevenlabs_account, media, key_header="authorization")


@pytest.mark.parametrize(
    ("reason", "code"), [("no speech", "task_failed"), ("Against our content policy", "content_policy")]
)
def test_a_failed_dubbing_says_why(sandbox, elevenlabs_account, reason, code):
    sandbox.script({"defaults": {"fail": reason}})
    call = call_of(DUB)
    assert poll(elevenlabs_account, call, create(elevenlabs_account, call)) == Failed(code, reason)


def test_a_new_word_is_still_running(sandbox, elevenlabs_account):
    sandbox.script({"defaults": {"word": "mastering"}})
    call = call_of(DUB)
    assert poll(elevenlabs_account, call, create(elevenlabs_account, call)) == Running(None, "mastering", known=False)


def test_a_clone_is_a_voice_at_once(sandbox, elevenlabs_account):
    call = call_of(CLONE)
    task_id = create(elevenlabs_account, call)
    sent = sandbox.bill()[0]["input"]
    assert (sent["name"], sent["description"], sent["labels"]) == ("Ann", f"calm {mark('call-key-1')}", '{"a": "b"}')
    assert len(sent["files"]) == 2
    value = {"voice_id": task_id, "name": "Ann", "category": "cloned", "labels": {"a": "b"}}
    assert poll(elevenlabs_account, call, task_id) == Succeeded(value=value)


def test_a_design_is_heard_and_kept(sandbox, elevenlabs_account):
    call = call_of(DESIGN)
    task_id = create(elevenlabs_account, call)
    assert sandbox.bill()[0]["input"]["stream_previews"] is True
    found = poll(elevenlabs_account, call, task_id)
    ids = task_id.split(".")
    assert found.value == {"generated_voice_ids": ids}
    assert [fetched(sandbox, elevenlabs_account, media)[1] for media in found.media] == [mp3(one) for one in ids]
    saved = call_of({**SAVE, "generated_voice_id": ids[1]}, key="call-key-2")
    voice_id = create(elevenlabs_account, saved)
    assert poll(elevenlabs_account, saved, voice_id).value["name"] == "Sailor"
    assert find(elevenlabs_account, saved) == [voice_id]


def test_a_design_costs_no_poll(sandbox, elevenlabs_account):
    call = call_of(DESIGN)
    poll(elevenlabs_account, call, create(elevenlabs_account, call))
    assert sandbox.stats()["requests"]["poll"] == 0


def test_an_alignment_is_the_answer_itself(sandbox, elevenlabs_account):
    found = create(elevenlabs_account, call_of(ALIGN))
    assert [word["text"] for word in found.value["words"]] == ["hello", "there"]
    assert sandbox.totals()["elevenlabs"] == 1


def test_speech_is_sound_with_its_cost(sandbox, elevenlabs_account):
    found = answer(elevenlabs_account, call_of(SPEECH, SYNC))
    (billed,) = sandbox.bill()
    assert found.media[0].content == mp3(billed["task_id"])
    assert found.usage == {"characters": len("Hello, world.")}
    assert found.provider_id == f"req{billed['task_id']}"
    assert billed["input"] == {"text": "Hello, world."}
    assert billed["path"] == "/v1/text-to-speech/v1"


def test_speech_takes_settings_and_a_format(sandbox, elevenlabs_account):
    settings = {"stability": 0.5, "use_speaker_boost": True}
    more = {"voice_settings": settings, "seed": 7, "model_id": "eleven_v3", "output_format": "wav_8000"}
    found = answer(elevenlabs_account, call_of({**SPEECH, **more}, SYNC))
    (billed,) = sandbox.bill()
    assert found.media[0].content == wav(billed["task_id"])
    assert billed["input"] == {"text": SPEECH["text"], "voice_settings": settings, "seed": 7, "model_id": "eleven_v3"}


def test_a_sound_comes_as_bytes(sandbox, elevenlabs_account):
    found = answer(elevenlabs_account, call_of(SOUND, SYNC))
    (billed,) = sandbox.bill()
    assert found.media[0].content == mp3(billed["task_id"])
    assert billed["input"] == {"text": "a door", "duration_seconds": 2.0}


@pytest.mark.parametrize("source", [{"source_url": "https://example.com/a.mp3"}, {"source_url": None, "file": SAMPLE}])
def test_a_transcription_is_text(sandbox, elevenlabs_account, source):
    sandbox.script({"defaults": {"text": "good morning"}})
    found = answer(elevenlabs_account, call_of({**TEXT, **source, "diarize": True}, SYNC))
    assert found.text == "good morning"
    assert [word["text"] for word in found.value["words"]] == ["good", "morning"]
    assert (found.usage, found.provider_id) == ({"audio_seconds": 1.04}, sandbox.bill()[0]["task_id"])


@pytest.mark.parametrize("request_", [DUB, CLONE, DESIGN, ALIGN, SAVE])
@pytest.mark.parametrize("fault", ["drop", "cut", {"status": 502, "body": "<html>"}, {"status": 200, "body": {}}])
def test_a_lost_create_is_ambiguous_and_billed_once(sandbox, elevenlabs_account, request_, fault):
    if request_ is SAVE:
        designed = create(elevenlabs_account, call_of(DESIGN, key="design")).split(".")[0]
        request_ = {**SAVE, "generated_voice_id": designed}
    before = sandbox.totals()["elevenlabs"]
    sandbox.script({"defaults": {"accept_then": fault}})
    call = call_of(request_)
    assert lost(create, elevenlabs_account, call).fate is Fate.AMBIGUOUS
    assert sandbox.totals()["elevenlabs"] == before + 1
    is_listed = request_["operation"] in ("dubbing", "voice_clone", "voice_save")
    assert find(elevenlabs_account, call) == ([sandbox.bill()[-1]["task_id"]] if is_listed else [])


def test_only_its_own_is_found(sandbox, elevenlabs_account):
    first, second = call_of(DUB, key="key-1"), call_of(DUB, key="key-2")
    task_id = create(elevenlabs_account, first)
    assert find(elevenlabs_account, second) == []
    assert find(elevenlabs_account, first) == [task_id]
    assert find(Account("other", sandbox.elevenlabs_url, "another-key"), first) == []


def test_it_is_found_beyond_the_first_page(sandbox, elevenlabs_account):
    call = call_of(CLONE, key="wanted")

    async def main():
        async with make_client() as client:
            first = await ASYNC.create(client, elevenlabs_account, call)
            for number in range(101):
                await ASYNC.create(client, elevenlabs_account, call_of({**CLONE, "files": [SAMPLE]}, key=f"k{number}"))
            return first, await ASYNC.find(client, elevenlabs_account, polled(call))

    first, found = asyncio.run(main())
    assert found == [first]
    assert sandbox.stats()["requests"]["list"] == 2


@pytest.mark.parametrize("fault", ["drop", "cut"])
@pytest.mark.parametrize("request_", [SPEECH, SOUND, TEXT])
def test_a_lost_answer_is_ambiguous_and_billed_once(sandbox, elevenlabs_account, request_, fault):
    sandbox.script({"defaults": {"accept_then": fault}})
    assert lost(answer, elevenlabs_account, call_of(request_, SYNC)).fate is Fate.AMBIGUOUS
    assert sandbox.totals()["elevenlabs"] == 1


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_sound_is_no_success(sandbox, elevenlabs_account, fraction):
    sandbox.script({"defaults": {"download": "truncated", "fraction": fraction}})
    assert lost(answer, elevenlabs_account, call_of(SPEECH, SYNC)).fate is Fate.AMBIGUOUS


def test_a_page_in_place_of_sound_is_no_success(sandbox, elevenlabs_account):
    sandbox.script({"defaults": {"download": "wrong_type"}})
    error = lost(answer, elevenlabs_account, call_of(SPEECH, SYNC))
    assert (error.code, error.fate) == ("malformed_response", Fate.AMBIGUOUS)


def detail(word, message="words"):
    return {"detail": {"status": word, "message": message}}


REPLIES = [
    ({"status": 401, "body": detail("quota_exceeded")}, "provider_credits_exhausted", Fate.REJECTED, Remedy.OPERATOR),
    ({"status": 401, "body": detail("invalid_api_key")}, "provider_auth_invalid", Fate.REJECTED, Remedy.OPERATOR),
    (
        {"status": 401, "body": detail("detected_unusual_activity")},
        "provider_account_blocked",
        Fate.REJECTED,
        Remedy.OPERATOR,
    ),
    ({"status": 429, "body": detail("too_many_concurrent_requests")}, "rate_limited", Fate.REJECTED, Remedy.THROTTLED),
    ({"status": 429, "body": detail("system_busy")}, "provider_overloaded", Fate.REJECTED, Remedy.THROTTLED),
    (
        {"status": 422, "body": {"detail": [{"loc": ["body"], "msg": "no"}]}},
        "request_invalid",
        Fate.REJECTED,
        Remedy.CUSTOMER,
    ),
    ({"status": 400, "body": {"detail": "no"}}, "request_invalid", Fate.REJECTED, Remedy.CUSTOMER),
    ({"status": 409, "body": detail("conflict")}, "unexpected_response", Fate.AMBIGUOUS, Remedy.RETRY),
    ({"status": 503, "body": "<html>"}, "provider_unavailable", Fate.AMBIGUOUS, Remedy.RETRY),
    ({"status": 200, "body": "<html>"}, "", Fate.AMBIGUOUS, Remedy.RETRY),
]


@pytest.mark.parametrize(("reply", "code", "fate", "remedy"), REPLIES)
@pytest.mark.parametrize("request_", [DUB, CLONE, DESIGN, ALIGN, SPEECH, SOUND, TEXT])
def test_errors_keep_their_meaning_over_the_wire(sandbox, elevenlabs_account, request_, reply, code, fate, remedy):
    sandbox.script({"defaults": {"reply": reply}})
    is_sync = request_ in (SPEECH, SOUND, TEXT)
    error = lost(answer if is_sync else create, elevenlabs_account, call_of(request_, SYNC if is_sync else ASYNC))
    assert (error.fate, error.remedy) == (fate, remedy)
    assert error.code == code or not code
    assert sandbox.totals()["all"] == 0


def test_a_revoked_key_is_the_operators(sandbox):
    error = lost(create, Account("test", sandbox.elevenlabs_url, "revoked"), call_of(DUB))
    assert (error.code, error.remedy) == ("provider_auth_invalid", Remedy.OPERATOR)


@pytest.mark.parametrize("request_", [DUB, CLONE])
def test_what_is_cancelled_is_gone(sandbox, elevenlabs_account, request_):
    sandbox.script({"defaults": {"run_seconds": 60}})
    call = call_of(request_)
    task_id = create(elevenlabs_account, call)

    def cancel():
        return run(lambda client: ASYNC.cancel(client, elevenlabs_account, polled(call), task_id))

    assert cancel() is True
    assert poll(elevenlabs_account, call, task_id) == Missing()
    assert find(elevenlabs_account, call) == []
    assert cancel() is False


def test_a_design_has_nothing_to_cancel(sandbox, elevenlabs_account):
    call = call_of(DESIGN)
    task_id = create(elevenlabs_account, call)
    assert run(lambda client: ASYNC.cancel(client, elevenlabs_account, polled(call), task_id)) is True
    assert sandbox.stats()["requests"]["cancel"] == 0


@pytest.mark.parametrize("request_", [DUB, CLONE])
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ({"status": 404, "body": {"detail": {"status": "not_found", "message": "x"}}}, Missing),
        ({"status": 404, "body": "<html>"}, ProviderError),
        ({"status": 401, "body": {"detail": {"status": "invalid_api_key", "message": "x"}}}, ProviderError),
        ({"status": 200, "body": {"dubbing_id": "other", "voice_id": "other", "status": "dubbed"}}, ProviderError),
        ({"status": 200, "body": "[]"}, ProviderError),
        ({"status": 500, "body": ""}, ProviderError),
    ],
)
def test_a_poll_that_learns_nothing_raises(sandbox, elevenlabs_account, request_, reply, expected):
    sandbox.script({"defaults": {"reply": reply}})
    if expected is Missing:
        assert poll(elevenlabs_account, call_of(request_), "some-id") == Missing()
    else:
        with pytest.raises(ProviderError):
            poll(elevenlabs_account, call_of(request_), "some-id")


@pytest.mark.parametrize("task_id", ["", "../voices", "a/b", "a..b", "x" * 129, "a?b"])
def test_no_odd_id_ever_leaves(sandbox, elevenlabs_account, task_id):
    for request_ in (DUB, CLONE, DESIGN):
        with pytest.raises(ProviderError, match="request_unsendable"):
            poll(elevenlabs_account, call_of(request_), task_id)
    assert sandbox.stats()["requests"]["poll"] == 0


def test_it_all_survives_a_restart(sandbox, elevenlabs_account):
    dub, clone, design = call_of(DUB), call_of(CLONE), call_of(DESIGN)
    ids = [create(elevenlabs_account, one) for one in (dub, clone, design)]
    sandbox.stop()
    sandbox.start()
    found = [poll(elevenlabs_account, one, task_id) for one, task_id in zip((dub, clone, design), ids, strict=True)]
    assert all(isinstance(one, Succeeded) for one in found)
    assert find(elevenlabs_account, dub) == [ids[0]]
    assert fetched(sandbox, elevenlabs_account, found[2].media[0])[1] == mp3(ids[2].split(".")[0])


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "dub", "target_lang": "es"},
        {**DUB, "target_lang": "../es"},
        {**DUB, "source_url": None},
        {**DUB, "file": SAMPLE},
        {**DUB, "source_url": "http://example.com/x"},
        {**DUB, "mode": "manual"},
        {**CLONE, "files": []},
        {**CLONE, "files": ["data:audio/mpeg;base64,@@@"]},
        {**CLONE, "files": ["data:audio/mpeg;base64,"]},
        {**CLONE, "files": ["data:text/html;base64,AAAA"]},
        {**CLONE, "name": ""},
        {**DESIGN, "text": "x" * 100},
        {**DESIGN, "auto_generate_text": False},
        {**DESIGN, "auto_generate_text": False, "text": "short"},
        {**DESIGN, "output_format": "pcm_16000"},
        {**SAVE, "generated_voice_id": "a/b"},
        {**ALIGN, "text": ""},
        {},
        SPEECH,
    ],
)
def test_a_wrong_request_never_leaves(sandbox, elevenlabs_account, request_):
    with pytest.raises(ProviderError) as caught:
        ASYNC.handle(request_)
    assert (caught.value.code, caught.value.fate) == ("request_invalid", Fate.NOT_SENT)
    error = lost(create, elevenlabs_account, Call(request_, {"operation": "dubbing"}, "k", datetime.now(UTC)))
    assert error.remedy is Remedy.CUSTOMER
    assert sandbox.stats()["requests"]["create"] == 0


@pytest.mark.parametrize(
    "change",
    [
        {"voice_id": "../x"},
        {"text": ""},
        {"output_format": "ulaw_8000"},
        {"voice_settings": {"stability": 2}},
        {"stream": True},
        {"operation": "dubbing"},
    ],
)
def test_a_wrong_wish_for_speech_never_leaves(sandbox, elevenlabs_account, change):
    error = lost(answer, elevenlabs_account, Call({**SPEECH, **change}, {}, "k", datetime.now(UTC)))
    assert (error.code, error.fate) == ("request_invalid", Fate.NOT_SENT)
    assert sandbox.stats()["requests"]["message"] == 0


@pytest.mark.parametrize(
    "request_", [CLONE | {"files": ["https://example.com/a.mp3"]}, ALIGN | {"file": "https://x/a"}]
)
def test_an_address_where_bytes_are_needed_is_told_how(request_):
    with pytest.raises(ValueError, match="fetches no address here: give the file itself as data:"):
        ElevenLabsAsyncRequest.model_validate(request_)


@pytest.mark.parametrize("request_", [DUB, CLONE, DESIGN, SAVE, ALIGN])
def test_what_is_submitted_can_be_stored_and_read_again(request_):
    stored = ElevenLabsAsyncRequest.model_validate(request_).model_dump(mode="json")
    check_request(stored)
    assert ASYNC.handle(stored) == ASYNC.handle(request_)


def test_handles_are_small_and_name_the_output():
    assert ASYNC.handle(DUB) == {"operation": "dubbing", "output": "media", "language": "es"}
    assert ASYNC.handle(CLONE) == {"operation": "voice_clone", "output": "voice"}
    assert ASYNC.handle(ALIGN) == {"operation": "forced_alignment", "output": "json"}
    assert SYNC.handle(SPEECH) == {"operation": "speech", "output": "audio"}
    assert SYNC.handle(TEXT) == {"operation": "transcription", "output": "transcript"}
    assert ElevenLabsSyncRequest.model_validate(SPEECH).model_dump(mode="json")["output_format"] == "mp3_44100_128"
