"""ElevenLabs's signatures, to the published vector and to the official client's own check."""

import json
from datetime import UTC, datetime

import pytest

from providers.elevenlabs_webhooks import parse
from providers.errors import Fate, ProviderError
from providers.webhooks import ELEVENLABS, sign_stamped, verify_stamped

SECRET = "el_test_secret"
BODY = b'{"id":"abc","status":"succeeded"}'
AT = 1_700_000_000
HEADER = "t=1700000000,v0=d3e497bc97604c3774d271fddd9be87b69d9790d611d0e0fb37b08fe6a4f67ed"


def sign(secret, timestamp, body):
    return sign_stamped(ELEVENLABS, secret, timestamp, body)


def verify(headers, body, *, secrets, now):
    verify_stamped(ELEVENLABS, headers, body, secrets=secrets, now=now)


def now(offset=0):
    return datetime.fromtimestamp(AT + offset, UTC)


def refused(headers, body=BODY, secrets=(SECRET,), offset=0):
    with pytest.raises(ProviderError) as caught:
        verify(headers, body, secrets=secrets, now=now(offset))
    assert (caught.value.code, caught.value.fate) == ("callback_unverified", Fate.REJECTED)


def test_the_vector_verifies():
    verify({"ElevenLabs-Signature": HEADER}, BODY, secrets=[SECRET], now=now())
    assert sign(SECRET, AT, BODY) == {"elevenlabs-signature": HEADER}


@pytest.mark.parametrize("secrets", [["old", SECRET], [SECRET, "new"], ["", SECRET]])
def test_a_secret_can_be_rotated(secrets):
    verify({"elevenlabs-signature": HEADER}, BODY, secrets=secrets, now=now())


@pytest.mark.parametrize("offset", [-300, 0, 300, 1800])
def test_as_late_as_its_last_retry_and_five_minutes_early(offset):
    verify({"elevenlabs-signature": HEADER}, BODY, secrets=[SECRET], now=now(offset))


@pytest.mark.parametrize(
    "header",
    [
        "",
        HEADER[:-1] + "0",
        HEADER.replace("v0=", "v1="),
        HEADER.replace("t=1700000000", "t=1700000001"),
        HEADER.replace("t=1700000000", "t=x"),
        HEADER.replace("t=1700000000", "t="),
        HEADER.replace("t=1700000000,", ""),
        f"t=1700000000,{HEADER}",
        HEADER.replace("t=1700000000", "t=" + "1" * 13),
        HEADER.split(",")[1],
        "v0=,t=1700000000",
        "t=1700000000",
        "t=1700000000,v0=\udcff",
    ],
)
def test_any_doubt_refuses(header):
    refused({"elevenlabs-signature": header})


@pytest.mark.parametrize(
    "how", [{"body": BODY + b" "}, {"secrets": ["other"]}, {"secrets": []}, {"offset": 1801}, {"offset": -301}]
)
def test_another_body_secret_or_time_refuses(how):
    refused({"elevenlabs-signature": HEADER}, **how)


@pytest.mark.parametrize(
    ("data", "task_id"),
    [
        ({"project_id": "p1"}, "p1"),
        ({"transcription_id": "t1", "request_id": "r1"}, "t1"),
        ({"dubbing_id": "d1"}, "d1"),
        ({}, None),
        ({"project_id": "../x"}, None),
        ({"project_id": 7}, None),
        ("x", None),
        (None, None),
    ],
)
def test_an_event_names_what_it_is_about(data, task_id):
    body = json.dumps({"type": "dubbing_project_ready", "event_timestamp": AT, "data": data}).encode()
    if task_id is None:
        with pytest.raises(ProviderError, match="callback_unverified"):
            parse(sign(SECRET, AT, body), body, secrets=[SECRET], now=now())
        return
    first = parse(sign(SECRET, AT, body), body, secrets=[SECRET], now=now())
    again = parse(sign(SECRET, AT + 30, body), body, secrets=[SECRET], now=now(30))
    assert first.task_id == task_id
    assert first == again


def test_the_official_client_agrees(monkeypatch):
    elevenlabs = pytest.importorskip("elevenlabs.client")
    monkeypatch.setattr("time.time", lambda: AT)
    client = elevenlabs.ElevenLabs(api_key="k")
    assert client.webhooks.construct_event(BODY.decode(), HEADER, SECRET) == json.loads(BODY)
    ours = sign("another", AT, BODY)["elevenlabs-signature"]
    assert client.webhooks.construct_event(BODY.decode(), ours, "another")
