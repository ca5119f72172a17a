"""Callbacks over real HTTP: the only way home for a call that no list shows, and never more than a hint."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID, uuid4

import pytest

from actors.callbacks import CallbackRefused, make_token, receive
from actors.settings import Settings
from providers.sandbox.app import WEBHOOK_SECRET
from providers.webhooks import sign
from tests.chaos.harness import Fleet, until

OURS = "the door's own secret"
UNLISTED = {"name": "unlisted", "when": {"route": "list"}, "do": {"list_off": True}}
LOST = {"name": "lost", "when": {"route": "create"}, "do": {"accept_then": "drop"}}


class Door:
    """What an app mounts: verify, keep, commit, only then say thank you."""

    def __init__(self, fleet_url: str) -> None:
        from store.engine import make_engine

        self.engine = make_engine(fleet_url, name="door")
        self.answers: list[int] = []
        door = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                kind, token = self.path.strip("/").split("/")[-2:]
                status = door.let_in(kind, token, {k.lower(): v for k, v in self.headers.items()}, body)
                door.answers.append(status)
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/webhooks"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def let_in(self, kind: str, token: str, headers: dict[str, str], body: bytes, **changes: Any) -> int:
        secrets: dict[str, Any] = {"replicate-prediction": {"callback_secrets": [WEBHOOK_SECRET]}}
        options = Settings(kinds=secrets, callback_url=self.url, callback_secret=OURS, **changes)
        try:
            with self.engine.begin() as connection:
                receive(connection, options, kind=kind, token=token, headers=headers, body=body, now=datetime.now(UTC))
        except CallbackRefused as refused:
            return refused.status
        return 200

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.engine.dispose()


@contextmanager
def door_of(fleet: Fleet) -> Iterator[Door]:
    door = Door(fleet.url)
    fleet.env |= {"CALLKEEPER_CALLBACK_URL": door.url, "CALLKEEPER_CALLBACK_SECRET": OURS}
    try:
        yield door
    finally:
        door.close()


def _outcomes(fleet: Fleet) -> list[str | None]:
    return [row["outcome"] for row in fleet.rows("select outcome from callkeeper.webhook_deliveries order by id")]


def test_callback_names_the_lost_call_that_no_list_shows(fleet: Fleet) -> None:
    fleet.sandbox.script(
        {"defaults": {"webhook": "on_completion", "run_seconds": [0.5, 0.5]}, "rules": [UNLISTED, LOST]}
    )
    with door_of(fleet) as door:
        fleet.env["CALLKEEPER_KINDS"] = fleet.kinds(visibility_lag=20)
        fleet.spawn()
        job_id = fleet.picture("named by its callback")
        assert fleet.until_status(job_id, "completed", "failed") == "completed"
        assert 200 in door.answers
    assert fleet.creates("named by its callback") == 1
    assert "call_adopted" in fleet.events(job_id)
    sources = {row["source"] for row in fleet.rows("select source from callkeeper.call_receipts")}
    assert "callback" in sources
    fleet.check()


@pytest.mark.parametrize("manner", ["early", "twice", "late"])
def test_callback_whenever_it_comes_changes_nothing_but_the_time(fleet: Fleet, manner: str) -> None:
    fleet.sandbox.script({"defaults": {"webhook": manner, "run_seconds": [0.3, 0.3], "webhook_late": 0.5}})
    with door_of(fleet) as door:
        fleet.env["CALLKEEPER_KINDS"] = fleet.kinds(first_poll=1.5, poll_every=1.5)
        fleet.spawn()
        job_id = fleet.picture(f"callback {manner}")
        assert fleet.until_status(job_id, "completed", "failed") == "completed"
        until(lambda: door.answers, what="the callback")
        until(lambda: None not in _outcomes(fleet) and _outcomes(fleet), what="its application")
    assert fleet.creates(f"callback {manner}") == 1
    assert fleet.charged(job_id) == ("committed", 5)
    fleet.check()


def test_forged_callback_is_turned_away_and_leaves_nothing(fleet: Fleet) -> None:
    fleet.sandbox.script({"defaults": {"webhook": "forged", "run_seconds": [0.3, 0.3]}})
    with door_of(fleet) as door:
        fleet.spawn()
        job_id = fleet.picture("forged")
        until(lambda: door.answers, what="the forged callback")
        assert set(door.answers) == {401}
        assert fleet.until_status(job_id, "completed", "failed") == "completed"
    assert _outcomes(fleet) == []
    fleet.check()


def test_callback_for_nobody_is_kept_and_thanked(fleet: Fleet) -> None:
    with door_of(fleet) as door:
        fleet.spawn()
        body = b'{"id":"nobodysnobodysnobodysnobod","status":"succeeded"}'
        headers = sign(WEBHOOK_SECRET, "msg_1", int(datetime.now(UTC).timestamp()), body)
        token = make_token(OURS, uuid4(), 1)
        assert door.let_in("replicate-prediction", token, headers, body) == 200
        assert door.let_in("replicate-prediction", token, headers, body) == 200
        until(lambda: _outcomes(fleet) == ["unknown_task"], what="the only delivery, applied")


@pytest.mark.parametrize(
    ("token", "kind", "status"),
    [
        ("", "replicate-prediction", 404),
        ("not-a-token", "replicate-prediction", 404),
        (make_token("another secret", UUID(int=1), 1), "replicate-prediction", 404),
        (make_token(OURS, UUID(int=1), 1), "no-such-kind", 404),
        (make_token(OURS, UUID(int=1), 1), "anthropic-sync", 404),
        (make_token(OURS, UUID(int=1), 1), "replicate-prediction", 401),
    ],
)
def test_door_opens_to_nothing_it_did_not_sign(fleet: Fleet, token: str, kind: str, status: int) -> None:
    with door_of(fleet) as door:
        assert door.let_in(kind, token, {}, b"{}") == status
        assert door.let_in("replicate-prediction", make_token(OURS, UUID(int=1), 1), {}, b"x" * 300_000) == 413
    assert _outcomes(fleet) == []
