"""The fake KIE's callbacks, as a receiver sees them and as each kind reads them."""

import json
import queue
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from providers.errors import ProviderError
from providers.kie import KINDS
from providers.registry import get_kind
from providers.sandbox.app import WEBHOOK_SECRET

URL = "https://files.example/in.png"
PATHS = {
    "kie-standard": ("/api/v1/jobs/createTask", {"model": "nano-banana-pro", "input": {"prompt": "x"}}),
    "kie-veo": ("/api/v1/veo/generate", {"prompt": "x"}),
    "kie-suno": ("/api/v1/generate", {"customMode": False, "instrumental": True, "model": "V5", "prompt": "x"}),
    "kie-kontext": ("/api/v1/flux/kontext/generate", {"prompt": "x"}),
    "kie-luma": ("/api/v1/modify/generate", {"prompt": "x", "videoUrl": URL}),
    "kie-kling3": ("/api/v1/jobs/createTask", {"model": "kling-3.0/video", "input": {"prompt": "x"}}),
    "kie-runway": ("/api/v1/runway/generate", {"prompt": "x"}),
    "kie-lip-sync": ("/api/v1/jobs/createTask", {"model": "omnihuman-1-5", "input": {"image_url": URL}}),
}
every_kind = pytest.mark.parametrize("name", list(PATHS))


def create(sandbox, receiver, script, name="kie-standard"):
    sandbox.script({"defaults": script})
    path, body = PATHS[name]
    with httpx.Client(base_url=sandbox.kie_url, headers={"authorization": "Bearer k"}, trust_env=False) as client:
        return client.post(path, json={**body, "callBackUrl": receiver.url}).json()["data"]["taskId"]


def parse(call, name="kie-standard", now=None):
    headers, body = call
    provider = get_kind(name).provider
    return provider.parse_callback(headers, body, secrets=[WEBHOOK_SECRET], now=now or datetime.now(UTC))


def test_every_asynchronous_kind_is_called_back_here():
    assert list(PATHS) == [kind.name for kind in KINDS[:-1]]


@every_kind
@pytest.mark.parametrize("fail", [None, "400: Content was flagged"])
def test_the_end_is_told_in_the_familys_words(sandbox, receiver, name, fail):
    task_id = create(sandbox, receiver, {"fail": fail}, name)
    call = receiver.calls.get(timeout=10)
    found = parse(call, name)
    assert found.task_id == task_id
    assert found.delivery_id.startswith(f"{task_id}:")
    assert json.loads(call[1])["code"] == (200 if fail is None else 400)


def test_an_end_and_its_failure_are_two_deliveries(sandbox, receiver):
    seen = set()
    for fail in (None, "oops"):
        task_id = create(sandbox, receiver, {"fail": fail})
        seen.add(parse(receiver.calls.get(timeout=10)).delivery_id.removeprefix(task_id))
    assert seen == {":success", ":fail"}


def test_twice_is_the_same_delivery_twice(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "twice"})
    first, second = receiver.calls.get(timeout=10), receiver.calls.get(timeout=10)
    assert parse(first) == parse(second)


@every_kind
def test_early_comes_before_the_response(sandbox, receiver, name):
    task_id = create(sandbox, receiver, {"webhook": "early", "run_seconds": 600}, name)
    assert parse(receiver.calls.get_nowait(), name).task_id == task_id


def test_a_forged_signature_is_refused(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "forged"})
    with pytest.raises(ProviderError, match="no signature matches"):
        parse(receiver.calls.get(timeout=10))


def test_a_captured_signature_is_good_for_its_task_and_its_minutes_only(sandbox, receiver):
    mine = create(sandbox, receiver, {})
    headers, body = receiver.calls.get(timeout=10)
    other = body.replace(mine.encode(), b"task_somebody_elses")
    for call, later in (((headers, other), 0), ((headers, body), 301)):
        with pytest.raises(ProviderError, match="callback_unverified"):
            parse(call, now=datetime.now(UTC) + timedelta(seconds=later))
    # The body is not signed: whatever it claims, the task's id is all that is taken from it.
    claimed = json.dumps(
        {"code": 200, "data": {"taskId": mine, "state": "success", "resultUrls": ["https://evil.example"]}}
    )
    assert parse((headers, claimed.encode())).task_id == mine


def test_late_is_late_and_off_is_off(sandbox, receiver):
    create(sandbox, receiver, {"webhook": "off"})
    task_id = create(sandbox, receiver, {"webhook": "late", "webhook_late": 100})
    assert receiver.calls.empty()
    sandbox.advance(101)
    assert json.loads(receiver.calls.get(timeout=10)[1])["data"]["taskId"] == task_id
    with pytest.raises(queue.Empty):
        receiver.calls.get_nowait()


def test_a_refused_callback_is_sent_again(sandbox, receiver):
    receiver.statuses.put(500)
    create(sandbox, receiver, {})
    first, second = receiver.calls.get(timeout=10), receiver.calls.get(timeout=10)
    assert parse(first) == parse(second)
