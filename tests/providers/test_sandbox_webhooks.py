"""The fake Replicate's callbacks, as a receiver sees them."""

import json
from datetime import UTC, datetime

import httpx
import pytest

from providers.errors import ProviderError
from providers.replicate import ReplicatePrediction
from providers.sandbox.app import WEBHOOK_SECRET

CREATE = "/v1/models/acme/draw/predictions"


def create(sandbox, receiver, script, **body):
    sandbox.script({"defaults": script})
    with httpx.Client(base_url=sandbox.url, headers={"authorization": "Bearer k"}, trust_env=False) as client:
        wanted = {"input": {}, "webhook": receiver.url, "webhook_events_filter": ["completed"], **body}
        return client.post(CREATE, json=wanted).json()["id"]


def parse(call):
    headers, body = call
    return ReplicatePrediction().parse_callback(headers, body, secrets=[WEBHOOK_SECRET], now=datetime.now(UTC))


def test_the_end_is_told_once_with_a_good_signature(sandbox, receiver):
    task_id = create(sandbox, receiver, {})
    call = receiver.calls.get(timeout=10)
    assert parse(call).task_id == task_id
    assert json.loads(call[1])["status"] == "succeeded"


def test_the_end_is_told_when_it_comes(sandbox, receiver):
    task_id = create(sandbox, receiver, {"run_seconds": 200})
    assert receiver.calls.empty()
    sandbox.advance(201)
    found = receiver.calls.get(timeout=10)
    # Its own clock signs: advanced past the tolerance it would be refused, here it is not.
    assert parse(found).task_id == task_id


@pytest.mark.parametrize("how", ["cancel", "finish"])
def test_an_end_by_hand_is_told_at_once(sandbox, receiver, how):
    task_id = create(sandbox, receiver, {"run_seconds": 600})
    if how == "finish":
        sandbox.finish(task_id)
    else:
        httpx.post(
            f"{sandbox.replicate_url}/predictions/{task_id}/cancel",
            headers={"authorization": "Bearer k"},
            trust_env=False,
        )
    status = json.loads(receiver.calls.get(timeout=10)[1])["status"]
    assert status == ("succeeded" if how == "finish" else "canceled")


def test_twice_is_twice_with_one_id(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "twice"})
    first, second = receiver.calls.get(timeout=10), receiver.calls.get(timeout=10)
    assert parse(first) == parse(second)


def test_early_comes_before_the_response(sandbox, receiver):
    task_id = create(sandbox, receiver, {"webhook": "early", "run_seconds": 600})
    call = receiver.calls.get_nowait()
    assert parse(call).task_id == task_id
    assert json.loads(call[1])["status"] == "starting"


def test_a_forged_signature_is_refused(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "forged"})
    with pytest.raises(ProviderError, match="callback_unverified"):
        parse(receiver.calls.get(timeout=10))


def test_late_is_late(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "late", "webhook_late": 100})
    assert receiver.calls.empty()
    sandbox.advance(101)
    assert parse(receiver.calls.get(timeout=10)).task_id


def test_off_is_off_and_so_is_another_events_filter(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "off"})
    create(sandbox, receiver, {}, webhook_events_filter=["start"])
    last = create(sandbox, receiver, {})
    assert parse(receiver.calls.get(timeout=10)).task_id == last
    assert receiver.calls.empty()


def test_a_refused_callback_is_sent_again_with_the_same_id(sandbox, receiver):
    receiver.statuses.put(500)
    create(sandbox, receiver, {})
    first, second = receiver.calls.get(timeout=10), receiver.calls.get(timeout=10)
    assert parse(first).delivery_id == parse(second).delivery_id
