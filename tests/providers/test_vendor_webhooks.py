"""The signatures of single vendors: their vectors, and everything that must not pass."""

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import Fate, ProviderError
from providers.webhooks import (
    ELEVENLABS,
    OPENROUTER,
    delivery_id_of,
    sign_heygen,
    sign_stamped,
    verify_heygen,
    verify_stamped,
)

BODY = b'{"id":"abc","status":"succeeded"}'
AT = datetime.fromtimestamp(1_700_000_000, UTC)
VECTORS = {
    "openrouter": (
        OPENROUTER,
        "or_test_secret",
        {"X-OpenRouter-Signature": "t=1700000000,v1=ba19318b7d4e09b7afb5da2c86643af0166aa352461825a44b3825bb79fd6f04"},
    ),
    "elevenlabs": (
        ELEVENLABS,
        "el_test_secret",
        {"ElevenLabs-Signature": "t=1700000000,v0=d3e497bc97604c3774d271fddd9be87b69d9790d611d0e0fb37b08fe6a4f67ed"},
    ),
}
HEYGEN_SECRET = "whsec_hg_test"
HEYGEN = {"Heygen-Signature": "9070620841f10f14ee8a37787491426e92d1129c34bc42623456003826699166"}
stamped = pytest.mark.parametrize(("scheme", "secret", "headers"), list(VECTORS.values()), ids=list(VECTORS))


def refused(check, *arguments, **named):
    with pytest.raises(ProviderError) as caught:
        check(*arguments, **named)
    assert (caught.value.code, caught.value.fate) == ("callback_unverified", Fate.REJECTED)


def signature(headers):
    return next(iter(headers.values())).rpartition("=")[2]


def with_header(headers, text):
    return {next(iter(headers)): text}


@stamped
def test_the_vector_passes_and_sign_makes_it(scheme, secret, headers):
    verify_stamped(scheme, headers, BODY, secrets=[secret], now=AT)
    made = sign_stamped(scheme, secret, 1_700_000_000, BODY)
    assert made == {name.lower(): value for name, value in headers.items()}
    verify_stamped(scheme, {name.upper(): value for name, value in made.items()}, BODY, secrets=[secret], now=AT)


@stamped
def test_a_stamped_secret_can_be_rotated(scheme, secret, headers):
    verify_stamped(scheme, headers, BODY, secrets=["new", secret], now=AT)
    both = f"t=1700000000,{scheme.version}={'0' * 64}, {scheme.version}={signature(headers)}"
    verify_stamped(scheme, with_header(headers, both), BODY, secrets=[secret], now=AT)


@stamped
def test_the_window_is_kept(scheme, secret, headers):
    past, future = scheme.past.total_seconds(), scheme.future.total_seconds()
    for seconds, good in ((past, True), (past + 1, False), (-future, True), (-future - 1, False)):
        now = AT + timedelta(seconds=seconds)
        if good:
            verify_stamped(scheme, headers, BODY, secrets=[secret], now=now)
        else:
            refused(verify_stamped, scheme, headers, BODY, secrets=[secret], now=now)


@stamped
def test_anything_else_is_refused(scheme, secret, headers):
    hexed, version = signature(headers), scheme.version
    for text in (
        "",
        f"t=1700000000,{version}=",
        f"t=1700000000,{version}={hexed[:-1]}",
        f"t=1700000000,{version}={hexed}0",
        f"t=1700000000,v9={hexed}",
        f"t=1700000001,{version}={hexed}",
        f"t=-1,{version}={hexed}",
        f"t=1700000000.0,{version}={hexed}",
        f"t={'9' * 40},{version}={hexed}",
        f"t=1700000000,t=1700000000,{version}={hexed}",
        f"{version}={hexed}",
        hexed,
        f"t=1700000000,{','.join([f'{version}=' + '0' * 64] * 20)},{version}={hexed}",
    ):
        refused(verify_stamped, scheme, with_header(headers, text), BODY, secrets=[secret], now=AT)
    refused(verify_stamped, scheme, {}, BODY, secrets=[secret], now=AT)
    refused(verify_stamped, scheme, headers, BODY + b" ", secrets=[secret], now=AT)
    refused(verify_stamped, scheme, headers, b"x" * (8 * 1024**2 + 1), secrets=[secret], now=AT)
    for secrets in ((), ("",), ("other",)):
        refused(verify_stamped, scheme, headers, BODY, secrets=secrets, now=AT)


@stamped
def test_an_empty_secret_verifies_nothing(scheme, secret, headers):
    forged = hmac.digest(b"", b"1700000000" + scheme.separator + BODY, hashlib.sha256).hex()
    text = f"t=1700000000,{scheme.version}={forged}"
    refused(verify_stamped, scheme, with_header(headers, text), BODY, secrets=["", secret], now=AT)


def test_a_dot_is_no_comma():
    made = sign_stamped(ELEVENLABS, "or_test_secret", 1_700_000_000, BODY)
    text = made["elevenlabs-signature"].replace("v0", "v1")
    refused(verify_stamped, OPENROUTER, {OPENROUTER.header: text}, BODY, secrets=["or_test_secret"], now=AT)


def test_heygens_vector_passes_under_both_names():
    verify_heygen(HEYGEN, BODY, secrets=[HEYGEN_SECRET])
    verify_heygen({"Signature": HEYGEN["Heygen-Signature"].upper()}, BODY, secrets=["old", HEYGEN_SECRET])
    assert sign_heygen(HEYGEN_SECRET, BODY) == {"heygen-signature": HEYGEN["Heygen-Signature"]}


def test_heygen_fails_closed():
    for secrets in ((), ("",), ("other",)):
        refused(verify_heygen, HEYGEN, BODY, secrets=secrets)
    for headers in ({}, {"Heygen-Signature": ""}, {"Heygen-Signature": "é" * 64}, {"X-Signature": "0" * 64}):
        refused(verify_heygen, headers, BODY, secrets=[HEYGEN_SECRET])
    refused(verify_heygen, HEYGEN, BODY + b"\n", secrets=[HEYGEN_SECRET])
    forged = hmac.digest(b"", BODY, hashlib.sha256).hex()
    refused(verify_heygen, {"Heygen-Signature": forged}, BODY, secrets=[""])


@given(st.text(max_size=100), st.binary(max_size=100))
def test_no_chance_signature_passes(text, body):
    refused(verify_stamped, OPENROUTER, {OPENROUTER.header: text}, body, secrets=["or_test_secret"], now=AT)
    refused(verify_stamped, OPENROUTER, {OPENROUTER.header: f"t=1700000000,v1={text}"}, body, secrets=["s"], now=AT)
    refused(verify_heygen, {"heygen-signature": text}, body, secrets=[HEYGEN_SECRET])


def test_a_delivery_is_named_by_what_was_signed_as_well():
    assert delivery_id_of("evt_1", b"a") == delivery_id_of("evt_1", b"a")
    assert delivery_id_of("evt_1", b"a").startswith("evt_1:")
    ids = {
        delivery_id_of(name, body) for name in ("evt_1", "evt_2", None, "", "with space", 7) for body in (b"a", b"b")
    }
    assert len(ids) == 6
    assert max(map(len, ids)) <= 256
