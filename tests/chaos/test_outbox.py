"""What a settlement owes to others: told once a job, signed, in the end, whatever the receiver does meanwhile."""

import base64
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread

import pytest

from tests.chaos.conftest import MakeFleet
from tests.chaos.harness import Fleet, until

SECRET = "whsec_" + base64.b64encode(b"a secret of the test, 32 bytes..").decode()


@dataclass
class Receiver:
    """The app's address for notices: a real server, that answers as told and notes what came."""

    answer: int = 200
    notes: list[tuple[dict[str, str], bytes, int]] = field(default_factory=list)
    port: int = 0
    _lock: Lock = field(default_factory=Lock)
    _server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver._lock:
                    headers = {name.lower(): value for name, value in self.headers.items()}
                    receiver.notes.append((headers, body, receiver.answer))
                    answer = receiver.answer
                self.send_response(answer)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def accepted(self) -> Counter[str]:
        with self._lock:
            return Counter(headers["webhook-id"] for headers, _, answer in self.notes if answer < 300)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    made.start()
    yield made
    with suppress(OSError):
        made.stop()


@pytest.fixture
def told(make_fleet: MakeFleet, receiver: Receiver) -> Fleet:
    return make_fleet(CALLKEEPER_NOTICE_URL=f"http://127.0.0.1:{receiver.port}/ended", CALLKEEPER_NOTICE_SECRET=SECRET)


def delivered(fleet: Fleet) -> int:
    return int(fleet.one("select count(*) as n from callkeeper.notices where delivered_at is not null")["n"])


def verified(headers: dict[str, str], body: bytes) -> bool:
    """As any Standard Webhooks library does it, and not with our own function."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    wanted = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return hmac.compare_digest(wanted, headers["webhook-signature"])


def test_each_end_is_told_once_and_signed(told: Fleet, receiver: Receiver) -> None:
    told.sandbox.script({"rules": [{"when": {"route": "create", "contains": "fails."}, "do": {"fail": "no"}}]})
    stopped = told.picture("stopped.")
    told.stop(stopped)
    told.spawn()
    told.spawn()
    jobs = {told.picture("told."): "completed", told.picture("fails."): "failed", stopped: "cancelled"}
    jobs |= {told.words(f"told {number}."): "completed" for number in range(10)}
    told.until_done()
    until(lambda: delivered(told) == len(jobs), what="all notices")
    assert receiver.accepted() == Counter({f"job-ended:{job_id}": 1 for job_id in jobs})
    for headers, body, _ in receiver.notes:
        assert verified(headers, body)
        event = json.loads(body)
        assert headers["webhook-id"] == f"job-ended:{event['data']['job_id']}"
        assert event["type"] == "job.ended"
        assert {str(job_id): status for job_id, status in jobs.items()}[event["data"]["job_id"]] == event["data"][
            "status"
        ]
    told.check()


def test_an_address_that_is_down_or_refuses_is_tried_again_under_the_same_key(told: Fleet, receiver: Receiver) -> None:
    receiver.stop()
    told.spawn()
    job_id = told.words("down.")
    told.until_status(job_id, "completed")
    tried = "select attempts, last_error from callkeeper.notices"
    until(lambda: told.one(tried)["attempts"] >= 2, what="a second try")
    assert told.one(tried)["last_error"]
    assert delivered(told) == 0
    receiver.answer = 503
    receiver.start()
    until(lambda: receiver.notes, what="a try that is refused")
    receiver.answer = 204
    until(lambda: delivered(told) == 1, what="the delivery")
    assert {headers["webhook-id"] for headers, _, _ in receiver.notes} == {f"job-ended:{job_id}"}
    assert all(verified(headers, body) for headers, body, _ in receiver.notes)
    # Further work passes by, and the delivered notice is not told again.
    told.until_status(told.words("after."), "completed")
    until(lambda: delivered(told) == 2, what="the next delivery")
    assert set(receiver.accepted().values()) == {1}
    told.check()


@pytest.mark.slow
def test_a_slow_cancel_does_not_hold_up_or_repeat_the_others(told: Fleet, receiver: Receiver) -> None:
    """One upstream cancel never answers; what else is owed is delivered meanwhile, and once."""
    told.sandbox.script(
        {
            "defaults": {"run_seconds": 600},
            "rules": [{"name": "hangs", "when": {"route": "cancel", "nth": [1]}, "do": {"refuse": "hang"}}],
        }
    )
    told.spawn()
    jobs = [told.picture(f"cancel {number}.") for number in range(4)]
    for job_id in jobs:
        told.until_status(job_id, "waiting")
    for job_id in jobs:
        told.stop(job_id)
    until(
        lambda: sum(line["status"] == "canceled" for line in told.sandbox.bill()) == len(jobs),
        within=40,
        what="every cancel upstream",
    )
    owed = "select 1 from callkeeper.consequences where delivered_at is null"
    until(lambda: not told.rows(owed), within=30, what="all consequences")
    assert told.sandbox.stats()["rules"]["hangs"] == 1
    # One request more than cancels: only the one that hung was repeated.
    assert told.sandbox.stats()["requests"]["cancel"] == len(jobs) + 1
    until(lambda: delivered(told) == len(jobs), what="all notices")
    assert receiver.accepted() == Counter({f"job-ended:{job_id}": 1 for job_id in jobs})
    told.check()
