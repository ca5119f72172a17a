"""What may be submitted for KIE's kinds, how it is written on the wire, and what is frozen for the polls."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from providers.errors import Fate, ProviderError, Remedy
from providers.kie import KINDS, TASK_DETAIL, KieTasks
from providers.kie_market import KieKlingRequest
from providers.kie_words import kling_task
from providers.registry import PASS_PERIOD, check, get_kind

URL = "https://files.example/in.png"
SOUND = "https://files.example/in.mp3"
SHOTS = [{"prompt": "a", "duration": 3}, {"prompt": "b", "duration": "4"}]
SONG = {"customMode": False, "instrumental": False, "model": "V5", "prompt": "a sea shanty"}

GOOD = [
    # kind, request, body on the wire, the handle beside `poll`
    (
        "kie-standard",
        {"model": "nano-banana-pro", "input": {"prompt": "x"}, "output": "json"},
        {"model": "nano-banana-pro", "input": {"prompt": "x"}},
        {"model": "nano-banana-pro", "output": "json", "media_kind": None},
    ),
    (
        "kie-veo",
        {"prompt": "x", "model": "veo3_fast", "imageUrls": [URL], "aspectRatio": "16:9", "duration": 8},
        {"prompt": "x", "model": "veo3_fast", "imageUrls": [URL], "aspectRatio": "16:9", "duration": 8},
        {"model": "veo3_fast", "output": "media", "media_kind": "video"},
    ),
    (
        "kie-veo",
        {"prompt": "x", "generation_type": "TEXT_2_VIDEO", "enable_translation": False},
        {"prompt": "x", "generationType": "TEXT_2_VIDEO", "enableTranslation": False},
        {"model": None, "output": "media", "media_kind": "video"},
    ),
    ("kie-suno", SONG, SONG, {"model": "V5", "output": "media", "media_kind": "audio"}),
    (
        "kie-suno",
        {
            "customMode": True,
            "instrumental": True,
            "model": "V4_5PLUS",
            "style": "jazz",
            "title": "T",
            "styleWeight": 0.5,
        },
        {
            "customMode": True,
            "instrumental": True,
            "model": "V4_5PLUS",
            "style": "jazz",
            "title": "T",
            "styleWeight": 0.5,
        },
        {"model": "V4_5PLUS", "output": "media", "media_kind": "audio"},
    ),
    (
        "kie-kontext",
        {"prompt": "x", "inputImage": URL, "safetyTolerance": 2, "uploadCn": False},
        {"prompt": "x", "inputImage": URL, "safetyTolerance": 2, "uploadCn": False},
        {"model": None, "output": "media", "media_kind": "image"},
    ),
    (
        "kie-luma",
        {"prompt": "x", "videoUrl": URL},
        {"prompt": "x", "videoUrl": URL},
        {"model": None, "output": "media", "media_kind": "video"},
    ),
    (
        "kie-kling3",
        {"sound": True, "multi_shots": True, "multi_prompt": SHOTS, "duration": "7"},
        {
            "model": "kling-3.0/video",
            "input": {"sound": True, "multi_shots": True, "multi_prompt": SHOTS, "duration": "7"},
        },
        {"model": "kling-3.0/video", "output": "media", "media_kind": "video"},
    ),
    (
        "kie-runway",
        {"prompt": "x", "duration": 10, "quality": "720p", "waterMark": "me"},
        {"prompt": "x", "duration": 10, "quality": "720p", "waterMark": "me"},
        {"model": None, "output": "media", "media_kind": "video"},
    ),
    (
        "kie-lip-sync",
        {"model": "kling/ai-avatar-pro", "input": {"image_url": URL, "audio_url": SOUND}},
        {"model": "kling/ai-avatar-pro", "input": {"image_url": URL, "audio_url": SOUND}},
        {"model": "kling/ai-avatar-pro", "output": "media", "media_kind": "video"},
    ),
    (
        "kie-lip-sync",
        {"model": "wan/2-2-speech", "input": {"anything": 1}},
        {"model": "wan/2-2-speech", "input": {"anything": 1}},
        {"model": "wan/2-2-speech", "output": "media", "media_kind": "video"},
    ),
]


@pytest.mark.parametrize(("kind", "request_", "wire", "frozen"), GOOD)
def test_a_request_is_written_in_kies_words_and_frozen(kind, request_, wire, frozen):
    provider = get_kind(kind).provider
    model = provider.request_model.model_validate(request_)
    assert model.wire() == wire
    # Stored and read again, in whichever spelling.
    assert provider.request_model.model_validate(model.model_dump(mode="json")) == model
    handle = provider.handle(request_)
    assert {**frozen, "poll": handle["poll"]} == handle
    assert json.loads(json.dumps(handle)) == handle
    assert "files.example" not in json.dumps(handle)


@pytest.mark.parametrize(
    ("kind", "request_", "fault"),
    [
        ("kie-standard", {"input": {}}, "model: Field required"),
        ("kie-standard", {"model": "a b", "input": {}}, "model: String should match"),
        ("kie-standard", {"model": "m", "input": []}, "input: Input should be a valid dictionary"),
        ("kie-standard", {"model": "m", "input": {}, "output": "video"}, "output: Input should be 'media'"),
        ("kie-standard", {"model": "m", "input": {}, "callBackUrl": URL}, "callBackUrl: Extra inputs"),
        ("kie-veo", {"prompt": ""}, "prompt: String should have at least 1"),
        ("kie-veo", {"prompt": "x", "duration": 5}, "duration: Input should be 4, 6 or 8"),
        ("kie-veo", {"prompt": "x", "model": "sora"}, "model: String should match"),
        ("kie-veo", {"prompt": "x", "imageUrls": ["file:///etc/passwd"]}, "imageUrls.0: String should match"),
        ("kie-veo", {"prompt": "x", "generationType": "REFERENCE_2_VIDEO"}, "needs imageUrls"),
        ("kie-veo", {"prompt": "x", "enableFallback": True}, "enableFallback: Extra inputs"),
        ("kie-suno", {"prompt": "x", "instrumental": True, "model": "V5"}, "customMode: Field required"),
        ("kie-suno", {**SONG, "customMode": True, "style": "jazz"}, "custom mode needs style and title"),
        ("kie-suno", {**SONG, "prompt": None}, "prompt is needed"),
        ("kie-suno", {**SONG, "model": "chirp"}, "model: String should match"),
        ("kie-suno", {**SONG, "styleWeight": 2}, "styleWeight: Input should be less than"),
        ("kie-kontext", {"prompt": "x", "inputImage": URL, "safetyTolerance": 3}, "at most 2"),
        ("kie-kontext", {"prompt": "x", "safetyTolerance": 7}, "safetyTolerance: Input should be less than"),
        ("kie-kontext", {"prompt": "x", "model": "flux-pro"}, "model: Input should be 'flux-kontext-pro'"),
        ("kie-luma", {"prompt": "x"}, "videoUrl: Field required"),
        ("kie-kling3", {"duration": "5"}, "prompt is needed"),
        ("kie-kling3", {"prompt": "x", "duration": 5}, "duration: Input should be a valid string"),
        ("kie-kling3", {"prompt": "x", "duration": "16"}, "duration: String should match"),
        ("kie-kling3", {"multi_shots": True, "multi_prompt": SHOTS}, "needs sound"),
        ("kie-kling3", {"multi_shots": True, "sound": True}, "needs sound and multi_prompt"),
        (
            "kie-kling3",
            {"multi_shots": True, "sound": True, "multi_prompt": SHOTS, "duration": "8"},
            "the shots last 7 seconds together, and duration says 8",
        ),
        (
            "kie-kling3",
            {"prompt": "x", "kling_elements": [{"name": "cat", "description": "c"}]},
            "kling_elements.0.name: String should match",
        ),
        ("kie-runway", {"prompt": "x" * 1801}, "prompt: String should have at most 1800"),
        ("kie-runway", {"prompt": "x", "duration": 10, "quality": "1080p"}, "ten seconds are made at 720p only"),
        ("kie-lip-sync", {"model": "omnihuman-1-5", "input": {"image_url": URL}}, "needs the address audio_url"),
        ("kie-lip-sync", {"model": "m", "input": {}}, "input: Dictionary should have at least 1"),
    ],
)
def test_a_wrong_request_is_named(kind, request_, fault):
    with pytest.raises(ProviderError) as caught:
        get_kind(kind).provider.handle(request_)
    error = caught.value
    assert (error.code, error.fate, error.remedy) == ("request_invalid", Fate.NOT_SENT, Remedy.CUSTOMER)
    assert fault in error.message


STALE = {  # minutes
    "kie-standard": 10,
    "kie-veo": 25,
    "kie-suno": 30,
    "kie-kontext": 10,
    "kie-luma": 25,
    "kie-kling3": 25,
    "kie-runway": 25,
    "kie-lip-sync": 75,
    "kie-llm": 5,
}


def test_the_entries_say_how_each_kind_behaves_in_time():
    assert {kind.name: kind.stale_after for kind in KINDS} == {
        name: timedelta(minutes=minutes) for name, minutes in STALE.items()
    }
    for kind in KINDS:
        assert kind.base_url == "https://api.kie.ai"
        assert (kind.finds_lost, kind.cancels, kind.idempotent_create) == (False, False, False)
    for kind in KINDS[:-1]:
        assert kind.stale_after <= kind.max_run
        # A callback at the end of the run is the only way home for a task whose id was lost.
        assert kind.visibility_lag >= kind.stale_after
        assert kind.stale_after + PASS_PERIOD <= kind.result_life / 2
        assert timedelta(seconds=15) <= kind.poll_every <= timedelta(seconds=30)
        assert kind.media_hosts
        assert kind.signs_callbacks


def test_klings_older_record_path_can_be_chosen():
    older = KieTasks(KieKlingRequest, kling_task, poll_path=TASK_DETAIL)
    assert older.handle({"prompt": "x"})["poll"] == TASK_DETAIL
    assert check(replace(get_kind("kie-kling3"), provider=older))
