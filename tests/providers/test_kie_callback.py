"""KIE's callbacks: believed for the task's id, and only with a signature of that id and a time that is near."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import Fate, ProviderError
from providers.kie import KINDS
from providers.kie_callback import parse, sign

KEY = "kie_test_key"
NOW = datetime.fromtimestamp(1_700_000_000, UTC)
# From the vendor's rule, worked out by hand elsewhere: HMAC-SHA256 of `task_abc.1700000000`.
VECTOR = {"X-Webhook-Timestamp": "1700000000", "X-Webhook-Signature": "bpESesU9Cg26CZMi+PrZzo1QfW106FfLFjmoIL4vCgc="}
BODY = {"code": 200, "msg": "success", "data": {"taskId": "task_abc", "state": "success"}}


def told(body=None, headers=None, *, secrets=(KEY,), now=NOW):
    raw = body if isinstance(body, bytes) else json.dumps(BODY if body is None else body).encode()
    return parse(VECTOR if headers is None else headers, raw, secrets=secrets, now=now)


def test_the_vendors_vector_holds():
    found = told()
    assert (found.task_id, found.delivery_id) == ("task_abc", "task_abc:success")
    assert sign(KEY, "task_abc", 1_700_000_000) == {name.lower(): value for name, value in VECTOR.items()}


@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.name)
def test_every_kind_reads_them_alike(kind):
    found = kind.provider.parse_callback(VECTOR, json.dumps(BODY).encode(), secrets=[KEY], now=NOW)
    assert found.task_id == "task_abc"


@pytest.mark.parametrize(
    ("body", "delivery"),
    [
        ({"code": 501, "msg": "x", "data": {"taskId": "task_abc", "state": "fail"}}, "task_abc:fail"),
        ({"code": 200, "data": {"callbackType": "first", "task_id": "task_abc", "data": []}}, "task_abc:first"),
        ({"code": 400, "data": {"task_id": "task_abc", "video_url": ""}}, "task_abc:400"),
        ({"code": 200, "data": {"taskId": "task_abc", "info": {"resultUrls": []}}}, "task_abc:200"),
        ({"data": {"taskId": "task_abc", "successFlag": 0}}, "task_abc:0"),
        ({"data": {"taskId": "task_abc"}}, "task_abc:-"),
        (
            {"data": {"taskId": "task_abc", "state": "x\ny" * 200}},
            "task_abc:" + "x yx yx yx yx yx yx yx yx yx yx yx yx y"[:39] + "…",
        ),
    ],
)
def test_a_delivery_is_a_task_in_a_state(body, delivery):
    assert told(body).delivery_id == delivery


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Webhook-Timestamp": "1700000000"},
        {"X-Webhook-Signature": VECTOR["X-Webhook-Signature"]},
        {**VECTOR, "X-Webhook-Signature": ""},
        {**VECTOR, "X-Webhook-Signature": "v1," + VECTOR["X-Webhook-Signature"]},
        {**VECTOR, "X-Webhook-Signature": VECTOR["X-Webhook-Signature"].lower()},
        {**VECTOR, "X-Webhook-Signature": "\udcff"},
        {**VECTOR, "X-Webhook-Timestamp": "1700000001"},
        {**VECTOR, "X-Webhook-Timestamp": "1700000000.0"},
        {**VECTOR, "X-Webhook-Timestamp": "-1"},
        {**VECTOR, "X-Webhook-Timestamp": "9" * 40},
        {**VECTOR, "X-Webhook-Timestamp": "\u0661700000000"},
        sign("another key", "task_abc", 1_700_000_000),
        sign(KEY, "task_abd", 1_700_000_000),
    ],
)
def test_forgeries_are_refused(headers):
    with pytest.raises(ProviderError) as caught:
        told(headers=headers)
    assert (caught.value.code, caught.value.fate) == ("callback_unverified", Fate.REJECTED)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        {},
        {"data": None},
        {"data": {}},
        {"data": {"taskId": "task_abd"}},
        {"data": {"taskId": 7}},
        {"data": {"taskId": "task_abc", "task_id": "task_abd"}},
        {"taskId": "task_abc"},
        b" " * (8 * 1024**2 + 1),
    ],
)
def test_a_body_about_nobody_or_somebody_else_is_refused(body):
    with pytest.raises(ProviderError, match="callback_unverified"):
        told(body)


@pytest.mark.parametrize("secrets", [[], [""], ["other"], ["other", ""]])
def test_without_the_right_key_it_fails_closed(secrets):
    with pytest.raises(ProviderError, match="callback_unverified"):
        told(secrets=secrets)


def test_an_empty_key_is_nobodys():
    with pytest.raises(ProviderError, match="callback_unverified"):
        told(headers=sign("", "task_abc", 1_700_000_000), secrets=["", "other"])


@pytest.mark.parametrize("secrets", [["new", KEY], [KEY, "new"], ["a", "", KEY]])
def test_a_key_can_be_rotated(secrets):
    assert told(secrets=secrets).task_id == "task_abc"


@pytest.mark.parametrize(
    ("seconds", "taken"), [(300, True), (-300, True), (301, False), (-301, False), (86_400, False)]
)
def test_an_old_one_cannot_be_replayed(seconds, taken):
    if taken:
        assert told(now=NOW + timedelta(seconds=seconds)).task_id == "task_abc"
        return
    with pytest.raises(ProviderError, match="out of tolerance"):
        told(now=NOW + timedelta(seconds=seconds))


@given(st.dictionaries(st.sampled_from(list(VECTOR)), st.text(max_size=50)), st.binary(max_size=200))
def test_anything_else_is_refused(headers, body):
    with pytest.raises(ProviderError, match="callback_unverified"):
        told(body, headers)
