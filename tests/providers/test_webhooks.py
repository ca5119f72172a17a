"""Signatures on callbacks: the published scheme's vector, and everything that must not pass."""

import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import Fate, ProviderError
from providers.replicate import ReplicatePrediction
from providers.webhooks import sign, verify

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
OTHER = "whsec_YW5vdGhlci1zZWNyZXQtYW5vdGhlci1zZWNyZXQ="
BODY = b'{"id":"abc","status":"succeeded"}'
SIGNATURE = "v1,pmv5UOzua/eQhu1ejoq1pKEhvERBtsAnxy8DezCAsHo="
AT = datetime.fromtimestamp(1_700_000_000, UTC)
HEADERS = {"webhook-id": "msg_test_1", "webhook-timestamp": "1700000000", "webhook-signature": SIGNATURE}


def refused(headers, body=BODY, secrets=(SECRET,), now=AT):
    with pytest.raises(ProviderError) as caught:
        verify(headers, body, secrets=secrets, now=now)
    assert (caught.value.code, caught.value.fate) == ("callback_unverified", Fate.REJECTED)


def test_the_vector_passes():
    assert verify(HEADERS, BODY, secrets=[SECRET], now=AT) == "msg_test_1"


def test_sign_makes_the_vector():
    assert sign(SECRET, "msg_test_1", 1_700_000_000, BODY) == HEADERS


def test_header_names_have_no_case():
    assert verify({name.title(): value for name, value in HEADERS.items()}, BODY, secrets=[SECRET], now=AT)


def test_one_of_several_signatures_suffices():
    several = {**HEADERS, "webhook-signature": f"v1a,AAAA v1,bm9wZQ== {SIGNATURE}"}
    assert verify(several, BODY, secrets=[SECRET], now=AT) == "msg_test_1"


def test_a_secret_can_be_rotated():
    assert verify(HEADERS, BODY, secrets=[OTHER, SECRET], now=AT)
    assert verify({**HEADERS, **sign(OTHER, "msg_test_1", 1_700_000_000, BODY)}, BODY, secrets=[OTHER, SECRET], now=AT)


@pytest.mark.parametrize("seconds", [-300, 300])
def test_the_tolerance_is_five_minutes_both_ways(seconds):
    assert verify(HEADERS, BODY, secrets=[SECRET], now=AT + timedelta(seconds=seconds))
    refused(HEADERS, now=AT + timedelta(seconds=seconds + (1 if seconds > 0 else -1)))


@pytest.mark.parametrize("missing", list(HEADERS))
def test_each_header_is_needed(missing):
    refused({name: value for name, value in HEADERS.items() if name != missing})


@pytest.mark.parametrize(
    "change",
    [
        {"webhook-id": "msg_test_2"},
        {"webhook-id": "msg_é"},
        {"webhook-id": "m" * 300},
        {"webhook-timestamp": "1700000001"},
        {"webhook-timestamp": "-1700000000"},
        {"webhook-timestamp": "1700000000.0"},
        {"webhook-timestamp": "\u0661\u0667" + "\u0660" * 8},
        {"webhook-timestamp": "9" * 40},
        {"webhook-signature": SIGNATURE[:-2]},
        {"webhook-signature": SIGNATURE.removeprefix("v1,")},
        {"webhook-signature": SIGNATURE.replace("v1,", "v2,")},
        {"webhook-signature": "v1,"},
        {"webhook-signature": "v1,é"},
        {"webhook-signature": ""},
        {"webhook-signature": "v1,bm9wZQ== " * 20 + SIGNATURE},
    ],
)
def test_a_changed_header_is_refused(change):
    refused({**HEADERS, **change})


def test_a_changed_body_is_refused():
    refused(HEADERS, BODY + b" ")


@pytest.mark.parametrize("secrets", [(), ("",), ("whsec_",), ("whsec_not base64!",), (OTHER,)])
def test_no_usable_secret_fails_closed(secrets):
    refused(HEADERS, secrets=secrets)


def test_an_empty_key_verifies_nothing():
    forged = base64.b64encode(hmac.digest(b"", b"msg_test_1.1700000000." + BODY, hashlib.sha256)).decode()
    for empty in ("", "whsec_"):
        refused({**HEADERS, "webhook-signature": f"v1,{forged}"}, secrets=[empty])


def test_an_empty_secret_does_not_sign():
    with pytest.raises(ValueError, match="not a webhook secret"):
        sign("whsec_", "msg_1", 1, b"")


@given(st.dictionaries(st.sampled_from(list(HEADERS)), st.text(max_size=60)), st.binary(max_size=200))
def test_nothing_but_a_signature_passes(headers, body):
    refused(headers, body)


def callback(body, headers=None):
    given_headers = headers or sign(SECRET, "msg_1", int(AT.timestamp()), body)
    return ReplicatePrediction().parse_callback(given_headers, body, secrets=[SECRET], now=AT)


def test_a_callback_names_delivery_and_task():
    found = callback(BODY)
    assert (found.delivery_id, found.task_id) == ("msg_1", "abc")


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"id":7}', b'{"id":"../x"}', b'{"id":""}', b"\xff"])
def test_a_signed_callback_without_a_task_is_refused(body):
    with pytest.raises(ProviderError, match="callback_unverified"):
        callback(body)
