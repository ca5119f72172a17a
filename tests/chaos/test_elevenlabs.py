"""The ElevenLabs kinds through real workers: an answer that is the outcome, files behind a key, voices found again."""

import base64
import json
from uuid import UUID

import pytest

from providers.sandbox.files import mp3
from tests.chaos.harness import Fleet

QUICK = {"first_poll": 0.1, "poll_every": 0.3, "send_deadline": 2, "visibility_lag": 0.5}
SAMPLE = "data:audio/mpeg;base64," + base64.b64encode(mp3("sample")).decode()
DUB = {"operation": "dubbing", "source_url": "https://example.com/talk.mp3", "target_lang": "es"}
CLONE = {"operation": "voice_clone", "name": "Ann", "files": [SAMPLE]}
DESIGN = {"operation": "voice_design", "voice_description": "an old sailor", "auto_generate_text": True}
ALIGN = {"operation": "forced_alignment", "file": SAMPLE, "text": "hello there"}
SPEECH = {"operation": "speech", "voice_id": "v1", "text": "Hello."}
TEXT = {"operation": "transcription", "model_id": "scribe_v2", "file": SAMPLE}
TRAIN = {"version": "acme/trainer:" + "a" * 64, "destination": "me/fox", "input": {"steps": 1}}


@pytest.fixture
def studio(make_fleet, sandbox) -> Fleet:
    kinds = {
        "elevenlabs-async": {"base_url": sandbox.elevenlabs_url, **QUICK},
        "elevenlabs-sync": {"base_url": sandbox.elevenlabs_url, "send_deadline": 20},
        "replicate-training": {"base_url": sandbox.replicate_url, **QUICK},
    }
    return make_fleet(CALLKEEPER_KINDS=json.dumps(kinds), ELEVENLABS_API_KEY="good")


def result(fleet: Fleet, job_id: UUID) -> dict:
    fleet.until_status(job_id, "completed", "failed")
    row = fleet.job(job_id)
    assert row["status"] == "completed", row["error_message"]
    return row["result"]


def test_every_operation_comes_home_once(studio: Fleet) -> None:
    wishes = [("elevenlabs-async", wish) for wish in (DUB, CLONE, DESIGN, ALIGN)]
    wishes += [("elevenlabs-sync", SPEECH), ("elevenlabs-sync", TEXT), ("replicate-training", TRAIN)]
    jobs = [studio.submit(kind, **wish) for kind, wish in wishes]
    studio.spawn()
    dub, clone, design, align, speech, text, train = [result(studio, job_id) for job_id in jobs]
    assert [len(one.get("media", ())) for one in (dub, clone, design, align, speech, text, train)] == [
        1,
        0,
        3,
        0,
        1,
        0,
        0,
    ]
    assert dub["media"][0]["content_type"] == "audio/mpeg"
    assert clone["value"]["voice_id"] == studio.job(jobs[1])["provider_task_id"]
    assert len(design["value"]["generated_voice_ids"]) == 3
    assert [word["text"] for word in align["value"]["words"]] == ["hello", "there"]
    assert speech["usage"] == {"characters": 6}
    assert text["text"] == "these are the words of the sandbox"
    assert train["value"]["version"].startswith("me/fox:")
    assert studio.sandbox.totals()["elevenlabs"] == 6
    assert studio.job(jobs[3])["provider_task_id"] is None
    studio.check()


def test_a_lost_voice_is_found_and_a_lost_alignment_is_not_made_again(studio: Fleet) -> None:
    studio.sandbox.script({"defaults": {"accept_then": "drop"}})
    clone, align = studio.submit("elevenlabs-async", **CLONE), studio.submit("elevenlabs-async", **ALIGN)
    studio.spawn()
    assert result(studio, clone)["value"]["name"] == "Ann"
    studio.until_status(align, "failed")
    assert studio.job(align)["error_code"] == "reconcile_no_recovery"
    assert studio.sandbox.totals()["elevenlabs"] == 2
    studio.check()
