"""A secret put wherever something can be put turns up nowhere: no table, no log, no event, no notification."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

import httpx
import psycopg

from actors import job_types
from actors.callbacks import make_token
from providers.sandbox.app import WEBHOOK_SECRET
from providers.webhooks import sign
from store import follow, signals
from store.engine import libpq_url
from tests.web.conftest import Reader, Site, until

CANARY = "sk-canary0123456789abcdefghij"
PLAIN = "blue-canary-of-no-shape-4711"  # by its looks, it could be anything
OURS = "r8_canary0123456789abcdefghij"  # what the deployment itself is given
MARKER = "nothing to hide"
CHANNELS = [follow.EVENTS, follow.EPHEMERAL, signals.CHANNEL]
CHANNELS += [f'"dramatiq.{queue}.enqueue"' for queue in (*job_types.QUEUES, "results", "maintenance")]


@contextmanager
def notifications(site: Site) -> Iterator[list[str]]:
    """All that is notified meanwhile: channel and payload."""
    heard: list[str] = []
    ended, ready = threading.Event(), threading.Event()

    def listen() -> None:
        with psycopg.connect(libpq_url(site.url), autocommit=True) as link:
            for channel in CHANNELS:
                link.execute(f"listen {channel}")
            ready.set()
            while not ended.is_set():
                heard.extend(f"{note.channel} {note.payload}" for note in link.notifies(timeout=0.2))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert ready.wait(20)
    yield heard
    ended.set()
    thread.join(10)


def tables(site: Site) -> str:
    """Every row of every table there is, as text."""
    names = site.rows(
        "select format('%I.%I', schemaname, tablename) as name from pg_tables"
        " where schemaname not in ('pg_catalog', 'information_schema')"
    )
    assert len(names) > 15
    return "\n".join(
        f"{name['name']} {row['text']}"
        for name in names
        for row in site.rows(f"select t::text as text from {name['name']} t")
    )


def everywhere(site: Site, client: httpx.Client, secret: str) -> list[int]:
    """The secret in every place of every request; the statuses that were answered."""
    job = {"job_type": "paid-poem", "request": {"about": MARKER}}
    poem = {"job_type": "paid-poem"}
    bodies = [
        {**job, "job_type": secret},
        {**job, secret: 1},
        {**job, "delay_seconds": secret},
        {**poem, "request": secret},
        {**poem, "request": {"about": f"tell {secret} on"}},
        {**poem, "request": {"about": MARKER, "style": secret}},
        {**poem, "request": {"about": MARKER, secret: 1}},
        {"job_type": "sum", "request": {"numbers": [secret]}},
        {"job_type": "sum", "request": {"numbers": [], "secret": {"$secret": secret}}},
        {"job_type": "sum", "request": {"numbers": [], "password": secret}},
    ]
    answers = [client.post("/jobs", json=body) for body in bodies]
    answers += [
        client.post("/jobs", json=job, headers={"Idempotency-Key": secret}),
        client.post("/jobs", content=secret.encode(), headers={"Content-Type": "application/json"}),
        client.post("/jobs", content=f'{{"{secret}'.encode(), headers={"Content-Type": "application/json"}),
        client.post("/jobs", content=b"{}", headers={"Content-Type": secret}),
    ]
    noise = {"User-Agent": secret, "Cookie": f"session={secret}", "X-Request-Id": secret, "Last-Event-ID": secret}
    for path in (f"/jobs/{secret}", f"/jobs/{secret}/events", "/operator", "/healthz", f"/{secret}", "/operator/state"):
        answers.append(client.get(path, params={"token": secret}, headers=noise))
    for name in ("status", "job_type", "cursor", "limit", secret):
        answers.append(client.get("/jobs", params={name: secret}, headers=noise))
    answers.append(client.post(f"/jobs/{secret}/stop", headers=noise))
    for header in (f"Bearer {secret}", f"Basic {secret}", f"Bearer ck_{secret}", secret):
        answers.append(httpx.get(f"{site.address}/jobs", headers={"Authorization": header}))
    answers.append(client.post(f"/webhooks/{secret}/{secret}", content=secret.encode(), headers=noise))
    return [answer.status_code for answer in answers]


def unkept(site: Site, client: httpx.Client, secret: str) -> list[int]:
    """Text that looks like nothing, in every place of a request that is read and never kept."""
    noise = {"User-Agent": secret, "Cookie": f"session={secret}", "X-Request-Id": secret, "Last-Event-ID": secret}
    noise |= {"Referer": f"https://{secret}.example/{secret}", "X-Forwarded-For": secret, secret: secret}
    answers = [
        client.request(method, path, params={"token": secret, secret: "1"}, headers=noise)
        for method in ("GET", "POST", "DELETE")
        for path in (f"/jobs/{secret}", f"/jobs/{secret}/events", f"/jobs/{secret}/stop", f"/{secret}", "/healthz")
    ]
    answers += [client.get("/jobs", params={name: secret}, headers=noise) for name in ("status", "cursor", "limit")]
    answers += [
        client.post(
            f"/webhooks/{kind}/{secret}", content=secret.encode(), headers={**noise, "webhook-signature": secret}
        )
        for kind in (secret, "replicate-prediction", "kie-veo")
    ]
    answers += [
        client.post("/jobs", json={"job_type": secret, "request": {"deep": [{"er": [secret]}], secret: secret}}),
        client.post("/jobs", json={"job_type": "sum", "request": {"numbers": [{"deep": [secret]}]}}),
        client.post("/jobs", json={"job_type": "sum", "request": {"numbers": [], "api_key": secret}}),
        client.post("/jobs", json={"job_type": "sum", "request": {"numbers": [], "deep": {"password": [secret]}}}),
        client.post("/jobs", content=secret.encode(), headers={"Content-Type": "application/json"}),
        client.post("/jobs", content=b"{}", headers={"Content-Type": f"text/{secret}"}),
    ]
    answers += [
        httpx.get(f"{site.address}/jobs", headers={"Authorization": f"{scheme} {secret}"})
        for scheme in ("Bearer", "Basic", "ck_", "Digest")
    ]
    return [answer.status_code for answer in answers]


def callbacks(site: Site, secret: str) -> list[int]:
    """One that is forged and one that is not, with the secret in their bodies."""
    body = {
        "id": "task-of-nobody",
        "status": "succeeded",
        "output": [f"https://x.test/y?sig={secret}"],
        "error": secret,
    }
    content = json.dumps(body).encode()
    token = make_token(OURS, UUID(int=7), 1)
    signed = sign(WEBHOOK_SECRET, "msg_canary", int(datetime.now(UTC).timestamp()), content)
    path = f"{site.address}/webhooks/replicate-prediction/{token}"
    forged = {**signed, "webhook-signature": f"v1,{secret}"}
    return [httpx.post(path, content=content, headers=headers).status_code for headers in (forged, signed)]


def test_b08_a_canary_in_every_input_is_found_nowhere(make_site: Callable[..., Site]) -> None:
    site = make_site(
        CALLKEEPER_SECRET_VENDOR=CANARY,
        CALLKEEPER_CALLBACK_SECRET=OURS,
        CALLKEEPER_CALLBACK_URL="https://example.test/webhooks",
        CALLKEEPER_KINDS=json.dumps({"replicate-prediction": {"callback_secrets": [WEBHOOK_SECRET], "api_key": OURS}}),
        CALLKEEPER_LOG_LEVEL="DEBUG",
    )
    site.grant("ann", 100)
    token = site.token("ann")
    site.serve()
    site.work()
    client = site.client(token)
    with notifications(site) as heard:
        statuses = everywhere(site, client, CANARY) + unkept(site, client, PLAIN)
        assert callbacks(site, CANARY) == [401, 200]
        job = {
            "job_type": "sum",
            "request": {"numbers": [1], "gate": str(site.folder / "g"), "secret": {"$secret": "vendor"}},
        }
        job_id = client.post("/jobs", json=job).json()["job_id"]
        with client.stream("GET", f"/jobs/{job_id}/events") as response:
            events = ""
            for event in Reader(response):
                events += json.dumps(event)
                if event.get("event") == "started":
                    (site.folder / "g").touch()
        until(
            lambda: site.rows("select 1 from callkeeper.webhook_deliveries where applied_at is not null"),
            what="it applied",
        )
        shown = client.get(f"/jobs/{job_id}").text
        assert client.post("/jobs", json={"job_type": "paid-poem", "request": {"about": MARKER}}).status_code == 201
        cli = site.run("token", "create", "--user", CANARY)
        assert cli.process.wait(60) == 2
    for command in site.commands[:2]:
        command.terminate()
    logs = "\n".join(command.text() for command in site.commands)
    assert {status // 100 for status in statuses} <= {2, 4}, statuses
    assert 422 in statuses
    assert "the vendor said no to [redacted]" in shown, "the handler had the secret, and told"
    stored = tables(site)
    assert MARKER in stored, "what is no secret is found by the same look"
    assert any(job_id in one for one in heard)
    assert job_id in stored
    for secret in (CANARY, PLAIN, OURS, token, token.removeprefix("ck_")):
        for place, text in (
            ("table", stored),
            ("log", logs),
            ("event", events),
            ("NOTIFY", "\n".join(heard)),
            ("job", shown),
        ):
            assert secret not in text, place
    assert site.rows("select * from callkeeper_audit.violations") == []
