"""The vendors' own clients, unchanged, against the sandbox: it is faithful by their word, not ours.

They are development packages beside our own pins; none of them asks for an httpx we do not take.
"""

import asyncio
import base64
import io

import anthropic
import httpx
import pytest
import replicate
from elevenlabs.client import AsyncElevenLabs, ElevenLabs
from elevenlabs.core.api_error import ApiError
from elevenlabs.errors import NotFoundError, TooEarlyError, UnprocessableEntityError
from replicate.exceptions import ModelError, ReplicateError
from replicate.webhook import InvalidSignatureError, Webhooks

from providers.sandbox.files import mp3, mp4, png

FOX = {"prompt": "a red fox"}
VERSION = "a" * 64
HELLO = {"model": "claude-x", "max_tokens": 50, "messages": [{"role": "user", "content": "hello"}]}
ONCE = {"max_retries": 0}  # the one setting that a paid call must have


@pytest.fixture
def models(sandbox):
    client = replicate.Client(api_token="key", base_url=sandbox.url)
    client.poll_interval = 0.01
    yield client
    client._client.close()


@pytest.fixture
def claude(sandbox):
    with anthropic.Anthropic(api_key="key", base_url=sandbox.url, max_retries=0) as client:
        yield client


@pytest.fixture
def voices(sandbox):
    with httpx.Client(timeout=10, trust_env=False) as http:
        yield ElevenLabs(api_key="key", base_url=sandbox.elevenlabs_url, httpx_client=http)


class TestReplicate:
    @pytest.mark.parametrize(
        ("create", "path"),
        [
            (lambda c: c.predictions.create(version=VERSION, input=FOX), "/v1/predictions"),
            (lambda c: c.models.predictions.create("acme/draw", input=FOX), "/v1/models/acme/draw/predictions"),
            (
                lambda c: c.deployments.predictions.create("acme/prod", input=FOX),
                "/v1/deployments/acme/prod/predictions",
            ),
        ],
    )
    def test_create_get_and_wait(self, sandbox, models, create, path):
        made = create(models)
        assert made.status == "starting"
        (billed,) = sandbox.bill()
        assert (billed["task_id"], billed["path"], billed["input"]) == (made.id, path, FOX)
        got = models.predictions.get(made.id)
        assert (got.status, got.input, got.error) == ("succeeded", FOX, None)
        assert got.metrics["predict_time"] >= 0
        made.wait()
        assert made.output == got.output

    def test_run_gives_the_file(self, sandbox, models):
        sandbox.script({"defaults": {"shape": "data_url"}})
        output = models.run("acme/draw", input=FOX)
        assert output.read() == png(sandbox.bill()[0]["task_id"], 0)

    def test_run_gives_addresses(self, sandbox, models):
        sandbox.script({"defaults": {"files": 2}})
        urls = models.run("acme/draw", input=FOX, use_file_output=False)
        assert [httpx.get(url).content for url in urls] == [png(sandbox.bill()[0]["task_id"], n) for n in range(2)]

    def test_progress_is_read_from_the_logs(self, sandbox, models):
        sandbox.script({"defaults": {"run_seconds": 100}})
        made = models.predictions.create(version=VERSION, input=FOX)
        sandbox.advance(50)
        made.reload()
        assert made.status == "processing"
        assert made.progress.percentage == pytest.approx(0.5, abs=0.02)

    def test_list_and_its_next_page(self, sandbox, models):
        made = [models.predictions.create(version=VERSION, input={"n": n}).id for n in range(102)]
        first = models.predictions.list()
        second = models.predictions.list(first.next)
        assert [one.id for one in (*first, *second)] == made[::-1]
        assert second.next is None

    def test_cancel(self, sandbox, models):
        sandbox.script({"defaults": {"run_seconds": 100}})
        made = models.predictions.create(version=VERSION, input=FOX)
        made.cancel()
        assert made.status == "canceled"
        assert models.predictions.cancel(made.id).status == "canceled"
        assert sandbox.bill()[0]["status"] == "canceled"

    def test_text_comes_as_a_stream(self, sandbox, models):
        sandbox.script({"defaults": {"output": ["A ", "red\nfox", "."]}})
        events = list(models.stream("acme/tell", input=FOX))
        assert "".join(map(str, events)) == "A red\nfox."
        assert [event.event.value for event in events] == ["output"] * 3 + ["done"]
        assert sandbox.totals()["replicate"] == 1

    def test_a_failed_stream_says_so(self, sandbox, models):
        sandbox.script({"defaults": {"output": ["A ", "fox"], "fail": "CUDA out of memory"}})
        with pytest.raises(RuntimeError, match="CUDA out of memory"):
            list(models.stream("acme/tell", input=FOX))

    def test_pictures_have_no_stream(self, sandbox, models):
        with pytest.raises(ReplicateError, match="streaming"):
            list(models.stream("acme/draw", input=FOX))

    def test_a_failed_run_is_a_model_error(self, sandbox, models):
        sandbox.script({"defaults": {"fail": "NSFW content detected"}})
        with pytest.raises(ModelError, match="NSFW content detected"):
            models.run("acme/draw", input=FOX)

    def test_its_errors_are_problems(self, sandbox, models):
        with pytest.raises(ReplicateError) as caught:
            models.predictions.get("unknown")
        assert (caught.value.status, caught.value.detail) == (404, "Prediction not found")
        with pytest.raises(ReplicateError) as caught:
            models.predictions.create(version=VERSION, input="no object")
        assert (caught.value.status, caught.value.title) == (422, "Input validation failed")
        stranger = replicate.Client(api_token="revoked", base_url=sandbox.url)
        with pytest.raises(ReplicateError) as caught:
            stranger.predictions.list()
        assert (caught.value.status, caught.value.title) == (401, "Unauthenticated")
        stranger._client.close()

    def test_a_throttled_get_is_asked_again_and_a_create_is_not(self, sandbox, models):
        slow = {"status": 429, "body": {"detail": "Your rate limit resets in ~1s."}, "headers": {"retry-after": "0"}}
        made = models.predictions.create(version=VERSION, input=FOX)
        sandbox.script({"rules": [{"when": {"nth": [1, 2], "route": "poll"}, "do": {"reply": slow}}]})
        assert models.predictions.get(made.id).id == made.id
        assert sandbox.stats()["requests"]["poll"] == 3
        sandbox.script({"defaults": {"reply": slow}})
        with pytest.raises(ReplicateError):
            models.predictions.create(version=VERSION, input=FOX)
        assert sandbox.totals()["all"] == 1

    def test_a_lost_create_is_billed(self, sandbox, models):
        sandbox.script({"defaults": {"accept_then": "drop"}})
        with pytest.raises(httpx.HTTPError):
            models.predictions.create(version=VERSION, input=FOX)
        assert sandbox.totals()["all"] == 1

    def test_its_async_side(self, sandbox):
        async def main():
            client = replicate.Client(api_token="key", base_url=sandbox.url)
            client.poll_interval = 0.01
            made = await client.predictions.async_create(version=VERSION, input=FOX)
            await made.async_wait()
            await client._async_client.aclose()
            return made

        assert asyncio.run(main()).status == "succeeded"

    def test_a_callback_is_valid_by_its_own_check(self, sandbox, models, receiver):
        made = models.predictions.create(
            version=VERSION, input=FOX, webhook=receiver.url, webhook_events_filter=["completed"]
        )
        headers, body = receiver.calls.get(timeout=10)
        secret = models.webhooks.default.secret()
        Webhooks.validate(headers=headers, body=body.decode(), secret=secret, tolerance=300)
        assert made.id in body.decode()
        with pytest.raises(InvalidSignatureError):
            Webhooks.validate(headers=headers, body=body.decode() + " ", secret=secret)

    def test_trainings(self, sandbox, models):
        sandbox.script({"rules": [{"when": {"contains": "slow"}, "do": {"run_seconds": 100}}]})
        wish = {"version": f"acme/trainer:{VERSION}", "destination": "me/fox"}
        made = models.trainings.create(input={"images": "https://example.com/x.zip"}, **wish)
        assert (made.status, made.destination, made.version) == ("starting", "me/fox", VERSION)
        made.reload()
        assert made.status == "succeeded"
        assert made.output["version"].startswith("me/fox:")
        slow = models.trainings.create(input={"images": "slow"}, **wish)
        assert [one.id for one in models.trainings.list()] == [slow.id, made.id]
        slow.cancel()
        assert models.trainings.get(slow.id).status == "canceled"
        with pytest.raises(ReplicateError) as caught:
            models.trainings.get("unknown")
        assert caught.value.status == 404
        assert sandbox.totals()["replicate-training"] == 2


class TestAnthropic:
    def test_create(self, sandbox, claude):
        message = claude.messages.create(**HELLO)
        (billed,) = sandbox.bill()
        assert (message.id, billed["input"]) == (billed["task_id"], HELLO)
        assert (message.stop_reason, message.role, message.content[0].type) == ("end_turn", "assistant", "text")
        assert message.usage.output_tokens > 0
        assert message._request_id.startswith("req_")

    @pytest.mark.parametrize("reason", ["max_tokens", "refusal", "pause_turn", "stop_sequence"])
    def test_stop_reasons(self, sandbox, claude, reason):
        sandbox.script({"defaults": {"stop_reason": reason}})
        message = claude.messages.create(**HELLO)
        assert message.stop_reason == reason
        assert (message.stop_details is not None) == (reason == "refusal")

    def test_tool_use(self, sandbox, claude):
        sandbox.script({"defaults": {"stop_reason": "tool_use"}})
        tools = [{"name": "look", "description": "d", "input_schema": {"type": "object"}}]
        message = claude.messages.create(**HELLO, tools=tools)
        assert (message.content[-1].type, message.content[-1].name) == ("tool_use", "look")

    def test_a_stream_is_the_same_message(self, sandbox, claude):
        sandbox.script({"defaults": {"text": "one two three four five six"}})
        with claude.messages.stream(**HELLO) as stream:
            pieces = list(stream.text_stream)
            message = stream.get_final_message()
        assert len(pieces) > 1
        assert "".join(pieces) == message.content[0].text == "one two three four five six"
        assert (message.stop_reason, message.id) == ("end_turn", sandbox.bill()[0]["task_id"])

    def test_a_raw_stream_has_all_its_events(self, sandbox, claude):
        kinds = [event.type for event in claude.messages.create(**HELLO, stream=True)]
        assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
        assert {"content_block_start", "content_block_delta", "content_block_stop"} <= set(kinds)

    def test_an_error_can_come_after_200(self, sandbox, claude):
        sandbox.script({"defaults": {"stream_error": True}})
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"), claude.messages.stream(**HELLO) as stream:
            stream.until_done()
        assert sandbox.totals()["anthropic"] == 1

    def test_a_cut_stream_ends_in_an_error_and_is_billed(self, sandbox, claude):
        sandbox.script({"defaults": {"cut_stream": True}})
        with pytest.raises(Exception) as caught, claude.messages.stream(**HELLO) as stream:
            stream.until_done()
        assert "incomplete" in str(caught.value) or "peer closed" in str(caught.value)
        assert sandbox.totals()["anthropic"] == 1

    @pytest.mark.parametrize(
        ("status", "kind", "expected"),
        [
            (400, "invalid_request_error", anthropic.BadRequestError),
            (401, "authentication_error", anthropic.AuthenticationError),
            (403, "permission_error", anthropic.PermissionDeniedError),
            (404, "not_found_error", anthropic.NotFoundError),
            (409, "conflict_error", anthropic.ConflictError),
            (429, "rate_limit_error", anthropic.RateLimitError),
            (500, "api_error", anthropic.InternalServerError),
            (529, "overloaded_error", anthropic.InternalServerError),
        ],
    )
    def test_each_error_is_of_its_class(self, sandbox, claude, status, kind, expected):
        body = {"type": "error", "error": {"type": kind, "message": "words"}, "request_id": "req_1"}
        sandbox.script({"defaults": {"reply": {"status": status, "body": body}}})
        with pytest.raises(expected) as caught:
            claude.messages.create(**HELLO)
        assert (caught.value.status_code, caught.value.body["error"]["type"]) == (status, kind)
        assert sandbox.totals()["all"] == 0

    def test_its_own_refusals_are_of_their_class(self, sandbox, claude):
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            claude.messages.create(**{**HELLO, "max_tokens": 0})
        stranger = anthropic.Anthropic(api_key="revoked", base_url=sandbox.url, max_retries=0)
        with stranger, pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
            stranger.messages.create(**HELLO)

    def test_by_itself_it_would_pay_twice(self, sandbox):
        sandbox.script({"rules": [{"when": {"nth": [1]}, "do": {"accept_then": "drop"}}]})
        with anthropic.Anthropic(api_key="key", base_url=sandbox.url, max_retries=1) as client:
            assert client.messages.create(**HELLO).stop_reason == "end_turn"
        assert sandbox.totals()["anthropic"] == 2

    def test_a_lost_reply_is_a_connection_error(self, sandbox, claude):
        sandbox.script({"defaults": {"accept_then": "drop"}})
        with pytest.raises(anthropic.APIConnectionError):
            claude.messages.create(**HELLO)
        assert sandbox.totals()["anthropic"] == 1

    def test_its_async_side(self, sandbox):
        async def main():
            async with (
                anthropic.AsyncAnthropic(api_key="key", base_url=sandbox.url, max_retries=0) as client,
                client.messages.stream(**HELLO) as stream,
            ):
                return "".join([piece async for piece in stream.text_stream])

        assert asyncio.run(main()).startswith("sandbox reply ")


class TestElevenLabs:
    def dub(self, voices, **more):
        wish = {"source_url": "https://example.com/talk.mp4", "target_lang": "es", "name": "op:1", **more}
        return voices.dubbing.create(**wish, request_options=ONCE).dubbing_id

    def test_dubbing_from_create_to_file(self, sandbox, voices):
        sandbox.script({"defaults": {"run_seconds": 100}})
        made = self.dub(voices)
        got = voices.dubbing.get(made)
        assert (got.status, got.name, got.target_languages, got.error) == ("dubbing", "op:1", ["es"], None)
        with pytest.raises(TooEarlyError):
            b"".join(voices.dubbing.audio.get(made, "es"))
        sandbox.finish(made)
        got = voices.dubbing.get(made)
        assert (got.status, got.media_metadata.content_type) == ("dubbed", "video/mp4")
        assert b"".join(voices.dubbing.audio.get(made, "es")) == mp4(made)

    def test_dubbings_are_listed_and_deleted(self, sandbox, voices):
        made = [self.dub(voices, name=f"op:{number}") for number in range(3)]
        order = {"order_by": "created_at", "order_direction": "DESCENDING"}
        first = voices.dubbing.list(page_size=2, **order)
        second = voices.dubbing.list(page_size=2, cursor=first.next_cursor, **order)
        assert [dub.dubbing_id for dub in (*first.dubs, *second.dubs)] == made[::-1]
        assert (first.has_more, second.has_more) == (True, False)
        assert first.dubs[0].created_at.tzinfo is not None
        voices.dubbing.delete(made[1])
        assert [dub.dubbing_id for dub in voices.dubbing.list().dubs] == [made[2], made[0]]
        with pytest.raises(ApiError) as caught:
            voices.dubbing.get(made[1])
        assert caught.value.status_code == 404

    def test_a_file_is_dubbed(self, sandbox, voices):
        made = voices.dubbing.create(file=("a.mp3", mp3("a"), "audio/mpeg"), target_lang="es", request_options=ONCE)
        assert b"".join(voices.dubbing.audio.get(made.dubbing_id, "es")) == mp3(made.dubbing_id)
        assert sandbox.bill()[0]["input"]["file"][0]["bytes"] == len(mp3("a"))

    def test_a_failed_dubbing(self, sandbox, voices):
        sandbox.script({"defaults": {"fail": "no speech"}})
        got = voices.dubbing.get(self.dub(voices))
        assert (got.status, got.error, got.target_languages) == ("failed", "no speech", [])

    def test_a_clone_is_searched_for_and_deleted(self, sandbox, voices):
        files = [("a.mp3", io.BytesIO(mp3("a")), "audio/mpeg"), ("b.mp3", mp3("b"), "audio/mpeg")]
        made = voices.voices.ivc.create(
            name="Ann", files=files, description="calm", labels={"age": "young"}, request_options=ONCE
        )
        assert made.requires_verification is False
        assert len(sandbox.bill()[0]["input"]["files"]) == 2
        got = voices.voices.get(made.voice_id)
        assert (got.name, got.description, got.labels, got.category) == ("Ann", "calm", {"age": "young"}, "cloned")
        found = voices.voices.search(search="Ann", sort="created_at_unix", sort_direction="desc", page_size=100)
        assert [voice.voice_id for voice in found.voices] == [made.voice_id]
        assert (found.has_more, found.next_page_token) == (False, None)
        assert voices.voices.search(search="nobody").voices == []
        assert voices.voices.delete(made.voice_id).status == "ok"
        with pytest.raises(ApiError) as caught:
            voices.voices.get(made.voice_id)
        assert caught.value.body["detail"]["status"] == "voice_not_found"

    def test_a_design_is_previewed_and_kept(self, sandbox, voices):
        designed = voices.text_to_voice.design(
            voice_description="an old sailor", auto_generate_text=True, request_options=ONCE
        )
        first = designed.previews[0]
        assert base64.b64decode(first.audio_base_64) == mp3(first.generated_voice_id)
        assert b"".join(voices.text_to_voice.preview.stream(first.generated_voice_id)) == mp3(first.generated_voice_id)
        kept = voices.text_to_voice.create(
            voice_name="Sailor",
            voice_description="an old sailor",
            generated_voice_id=first.generated_voice_id,
            request_options=ONCE,
        )
        assert voices.voices.get(kept.voice_id).category == "generated"
        streamed = voices.text_to_voice.design(
            voice_description="x", text="y" * 100, stream_previews=True, request_options=ONCE
        )
        assert [preview.audio_base_64 for preview in streamed.previews] == [""] * 3

    def test_speech_is_heard_and_remembered(self, sandbox, voices):
        heard = b"".join(voices.text_to_speech.convert("v1", text="Hello", request_options=ONCE))
        (billed,) = sandbox.bill()
        assert heard == mp3(billed["task_id"])
        (item,) = voices.history.list(page_size=10, voice_id="v1").history
        assert (item.text, item.voice_id, item.character_count_change_to) == ("Hello", "v1", 5)
        assert voices.history.get(item.history_item_id).request_id == item.request_id
        assert b"".join(voices.history.get_audio(item.history_item_id)) == heard
        raw = voices.text_to_speech.with_raw_response
        with raw.convert("v1", text="Hello", enable_logging=False, request_options=ONCE) as response:
            assert response.headers["character-cost"] == "5"
        assert len(voices.history.list().history) == 1

    def test_speech_comes_as_a_stream(self, sandbox, voices):
        pieces = list(voices.text_to_speech.stream("v1", text="Hello", request_options=ONCE))
        (billed,) = sandbox.bill()
        assert b"".join(pieces) == mp3(billed["task_id"])
        sandbox.script({"defaults": {"accept_then": "cut"}})
        with pytest.raises(httpx.RemoteProtocolError):
            list(voices.text_to_speech.stream("v1", text="Hello", request_options=ONCE))
        assert len(sandbox.bill()) == 2

    def test_sounds_transcriptions_and_alignments(self, sandbox, voices):
        sandbox.script({"defaults": {"text": "good morning"}})
        sound = b"".join(voices.text_to_sound_effects.convert(text="a door", request_options=ONCE))
        assert sound == mp3(sandbox.bill()[0]["task_id"])
        assert voices.history.list().history == []
        heard = voices.speech_to_text.convert(model_id="scribe_v2", file=("a.mp3", mp3("a")), request_options=ONCE)
        assert (heard.text, [word.text for word in heard.words]) == ("good morning", ["good", "morning"])
        assert voices.speech_to_text.transcripts.get(heard.transcription_id).text == "good morning"
        aligned = voices.forced_alignment.create(file=("a.mp3", mp3("a")), text="hi you", request_options=ONCE)
        assert [word.text for word in aligned.words] == ["hi", "you"]
        assert len(aligned.characters) == 6

    def test_a_transcription_comes_later_when_asked_to(self, sandbox, voices):
        sandbox.script({"defaults": {"run_seconds": 100}})
        taken = voices.speech_to_text.convert(
            model_id="scribe_v2", source_url="https://example.com/a.mp3", webhook=True, request_options=ONCE
        )
        with pytest.raises(NotFoundError):
            voices.speech_to_text.transcripts.get(taken.transcription_id)
        sandbox.finish(taken.transcription_id)
        assert voices.speech_to_text.transcripts.get(taken.transcription_id).text

    def test_its_errors_are_of_their_class(self, sandbox, voices):
        with pytest.raises(UnprocessableEntityError) as caught:
            voices.text_to_speech.with_raw_response.convert("v1", text=None, request_options=ONCE).__enter__()
        assert caught.value.body["detail"][0]["loc"] == ["body", "text"]
        stranger = ElevenLabs(
            api_key="revoked", base_url=sandbox.url, httpx_client=voices._client_wrapper.httpx_client.httpx_client
        )
        with pytest.raises(ApiError) as caught:
            stranger.voices.search()
        assert (caught.value.status_code, caught.value.body["detail"]["status"]) == (401, "invalid_api_key")

    @pytest.mark.parametrize(("status", "word"), [(401, "quota_exceeded"), (429, "too_many_concurrent_requests")])
    def test_a_scripted_refusal_reaches_it(self, sandbox, voices, status, word):
        body = {"detail": {"status": word, "message": "words"}}
        sandbox.script({"defaults": {"reply": {"status": status, "body": body}}})
        with pytest.raises(ApiError) as caught:
            self.dub(voices)
        assert (caught.value.status_code, caught.value.body) == (status, body)
        assert sandbox.totals()["all"] == 0

    def test_by_itself_it_would_pay_twice(self, sandbox, voices, monkeypatch):
        monkeypatch.setattr("elevenlabs.core.http_client._retry_timeout", lambda **_: 0.0)
        busy = {"status": 500, "body": {"detail": "x"}}
        sandbox.script({"rules": [{"when": {"nth": [1]}, "do": {"accept_then": busy}}]})
        voices.text_to_voice.design(voice_description="a sailor", auto_generate_text=True)
        assert sandbox.totals()["elevenlabs"] == 2

    def test_a_cut_sound_breaks(self, sandbox, voices):
        sandbox.script({"defaults": {"accept_then": "cut"}})
        with pytest.raises(httpx.RemoteProtocolError):
            b"".join(voices.text_to_speech.convert("v1", text="Hello", request_options=ONCE))
        assert sandbox.totals()["elevenlabs"] == 1

    def test_its_async_side(self, sandbox):
        async def main():
            async with httpx.AsyncClient(trust_env=False) as http:
                client = AsyncElevenLabs(api_key="key", base_url=sandbox.url, httpx_client=http)
                made = await client.dubbing.create(
                    source_url="https://example.com/a.mp3", target_lang="es", request_options=ONCE
                )
                return await client.dubbing.get(made.dubbing_id)

        assert asyncio.run(main()).status == "dubbed"
