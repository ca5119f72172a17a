"""Callbacks through the real door: kept before they are thanked for, once, and never from strangers."""

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from actors.callbacks import make_token
from providers.sandbox import Sandbox
from providers.sandbox.app import WEBHOOK_SECRET
from providers.webhooks import sign
from tests.web.conftest import Site, until

OURS = "the door's own secret"


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


def door(make_site: Callable[..., Site], **kind: Any) -> Site:
    kinds = {"replicate-prediction": {"callback_secrets": [WEBHOOK_SECRET], "api_key": "good", **kind}}
    site = make_site(
        CALLKEEPER_KINDS=json.dumps(kinds),
        CALLKEEPER_CALLBACK_SECRET=OURS,
        CALLKEEPER_WEB_JOB_TYPES="replicate-prediction,sum",
    )
    site.env["CALLKEEPER_CALLBACK_URL"] = f"{site.address}/webhooks"
    site.env["CALLKEEPER_MEDIA_URL"] = str(site.folder / "media")
    site.serve()
    return site


def test_a_callback_is_kept_once_and_strangers_are_turned_away(make_site: Callable[..., Site]) -> None:
    site = door(make_site)
    body = b'{"id":"nobodysnobodysnobodysnobod","status":"succeeded"}'
    signed = sign(WEBHOOK_SECRET, "msg_1", int(datetime.now(UTC).timestamp()), body)
    path = f"{site.address}/webhooks/replicate-prediction/{make_token(OURS, uuid4(), 1)}"
    foreign = make_token("another secret", UUID(int=1), 1)
    with httpx.Client() as client:
        assert client.post(path, content=body).status_code == 401, "not signed"
        assert client.post(path, content=body + b" ", headers=signed).status_code == 401, "another body"
        assert client.post(path, content=b"x" * (256 * 1024 + 1), headers=signed).status_code == 413
        for wrong in (
            f"replicate-prediction/{foreign}",
            "replicate-prediction/x",
            "anthropic-sync/" + path[-60:],
            "no/no",
        ):
            answer = client.post(f"{site.address}/webhooks/{wrong}", content=body, headers=signed)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        assert client.get(path).status_code == 405
        assert site.rows("select 1 from callkeeper.webhook_deliveries") == []
        site.do("alter table callkeeper.webhook_deliveries rename to away")
        assert client.post(path, content=body, headers=signed).status_code >= 500, "not committed, not thanked for"
        site.do("alter table callkeeper.away rename to webhook_deliveries")
        first, again = (client.post(path, content=body, headers=signed) for _ in range(2))
    assert (first.status_code, first.json()) == (200, {"kept": True})
    assert (again.status_code, again.json()) == (200, {"kept": False})
    assert len(site.rows("select 1 from callkeeper.webhook_deliveries")) == 1
    assert path.rpartition("/")[2] not in site.web.text(), "the token in the path is in no log"


@pytest.mark.slow  # the short version is the chaos tests' own door
def test_a_real_call_comes_home_by_its_callback(make_site: Callable[..., Site], sandbox: Sandbox) -> None:
    """Polled once a minute, it would come late; the provider's callback through this door brings it in seconds."""
    sandbox.script({"defaults": {"webhook": "on_completion", "run_seconds": [0.5, 0.5]}})
    site = door(make_site, base_url=sandbox.replicate_url, first_poll=60, poll_every=60)
    site.work(CALLKEEPER_INSECURE_MEDIA_HOSTS=sandbox.netloc)
    client = site.of("ann")
    job = {"job_type": "replicate-prediction", "request": {"model": "acme/draw", "input": {"prompt": "a lighthouse"}}}
    started = time.monotonic()
    job_id = client.post("/jobs", json=job).json()["job_id"]
    until(lambda: client.get(f"/jobs/{job_id}").json()["status"] == "completed", within=50, what="the job's completion")
    assert time.monotonic() - started < 55
    assert len(client.get(f"/jobs/{job_id}").json()["assets"]) == 1
    assert site.rows("select outcome from callkeeper.webhook_deliveries") == [{"outcome": "polled"}]
    assert sandbox.totals()["all"] == 1
    assert site.rows("select * from callkeeper_audit.violations") == []
