"""Providers' text is made safe before it goes anywhere."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.text import retry_after, safe_text, safe_url

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://a.example/x/y.png?X-Amz-Signature=abc&e=1#frag", "https://a.example/x/y.png"),
        ("https://user:pass@a.example:8443/x", "https://a.example:8443/x"),
        ("https://[2606:4700::1]:444/x?y", "https://[2606:4700::1]:444/x"),
        ("data:image/png;base64,AAAA", "data:"),
        ("https://a.example:port/x", "[invalid url]"),
        ("https://[::1/x", "[invalid url]"),
    ],
)
def test_a_safe_url_has_no_secrets(url, safe):
    assert safe_url(url) == safe


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("see https://b.s3.example/k?X-Amz-Signature=deadbeef&x=1 now", "deadbeef"),
        ("Authorization: Bearer abcdefghijkl", "abcdefghijkl"),
        ("authorization: Token abcdefghijkl", "abcdefghijkl"),
        ('{"api_key": "hunter2hunter2"}', "hunter2hunter2"),
        ("key r8_AbCdEfGhIjKlMnOpQrStUvWx1234 is bad", "AbCdEfGh"),
        ("sk-ant-api03-abcdefghijklmnop", "abcdefghijklmnop"),
        ("whsec_MDEyMzQ1Njc4OWFiY2RlZg==", "MDEyMz"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "eyJzdWIi"),
        ("data:image/png;base64,iVBORw0KGgo tail", "iVBOR"),
        ("blob " + "A1b2" * 20, "A1b2A1b2"),
        ("ftp://user:pa55word@h/x", "pa55word"),
    ],
)
def test_secrets_are_removed(text, gone):
    assert gone not in safe_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "The input or output was flagged as sensitive. Please try again with different inputs. (E005)",
        "Rate limit for token usage exceeded; the password field is required",
        "prediction 9fiv3bzbrvb704vxlcv4aj4nta could not be found",
        "req 0192f1c2-8d2b-7c3e-9b1a-aaaaaaaaaaaa failed: CUDA out of memory (tried to allocate 20.00 MiB)",
    ],
)
def test_plain_words_stay(text):
    assert safe_text(text) == text


def test_control_characters_become_spaces():
    assert safe_text("a\x00b\r\nc\u202ed\x1b[31m") == "a b c d [31m"


@given(st.text(max_size=3000), st.integers(min_value=1, max_value=600))
def test_safe_text_is_short_and_printable(text, limit):
    safe = safe_text(text, limit)
    assert len(safe) <= limit
    assert not any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in safe)


@given(st.text(max_size=300))
def test_safe_url_never_shows_a_query(url):
    assert "?" not in safe_url(url)
    assert "#" not in safe_url(url)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("0", 0.0),
        ("30", 30.0),
        ("1.5", 1.5),
        ("999999", 3600.0),
        ("1" * 30, None),
        (format_datetime(NOW + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOW - timedelta(seconds=90), usegmt=True), 0.0),
        (format_datetime(NOW + timedelta(days=3), usegmt=True), 3600.0),
        ("Thu, 99 Foo 2026 00:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date_within_an_hour(value, seconds):
    assert retry_after(value, now=NOW) == seconds


@given(st.text(max_size=60))
def test_retry_after_never_raises(value):
    seconds = retry_after(value, now=NOW)
    assert seconds is None or 0 <= seconds <= 3600
