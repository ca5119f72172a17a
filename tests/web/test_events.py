"""Server-Sent Events on real sockets: replayed and live, resumed anywhere, ended by themselves, closed to strangers."""

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store import tokens
from tests.web.conftest import Reader, Site, events, until

# A milestone whose writer cares for the order of its keys.
NOTE = sa.text(
    """
    with moved as (
      update callkeeper.jobs set event_seq = event_seq + 1 where id = :job_id returning id, event_seq, attempt, epoch
    )
    insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch, data, frame)
    select id, event_seq, 'note', attempt, epoch, :data, cast(:frame as text) from moved
    """
).bindparams(sa.bindparam("data", type_=pg.JSONB))
AWKWARD = {"z": "über ☃ \U0001f40b", "a": 'quote " backslash \\ line\nbreak', "nul": "\\u0000", "n": [1.50, 1e3]}


def note(site: Site, job_id: str, data: Mapping[str, Any] | None = None) -> None:
    data = data or {}
    site.db.once(
        lambda c: c.execute(NOTE, {"job_id": job_id, "data": data, "frame": json.dumps(data, ensure_ascii=False)})
    )


def submit(client: httpx.Client, **request: Any) -> str:
    answer = client.post("/jobs", json={"job_type": "sum", "request": {"numbers": [20, 22], **request}})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["job_id"])


@pytest.fixture(scope="module", autouse=True)
def _worker(site: Site) -> None:
    site.work()


def until_status(client: httpx.Client, job_id: str, status: str) -> None:
    until(lambda: client.get(f"/jobs/{job_id}").json()["status"] == status, what=f"job {job_id} being {status}")


def log(site: Site, job_id: str) -> list[str]:
    """The kinds of every event that is stored, in order."""
    found = site.rows("select seq, kind from callkeeper.job_events where job_id = :id order by seq", id=job_id)
    assert [row["seq"] for row in found] == list(range(1, len(found) + 1))
    return [row["kind"] for row in found]


class Live:
    """A stream read on a thread of its own."""

    def __init__(self, client: httpx.Client, job_id: str, **headers: str) -> None:
        self.seen: list[dict[str, str]] = []
        self.raw = b""
        self.open = threading.Event()
        self._client, self._path, self._headers = client, f"/jobs/{job_id}/events", headers
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        # A process that is killed breaks the connection; what came before counts.
        with suppress(httpx.TransportError), self._client.stream("GET", self._path, headers=self._headers) as response:
            self.open.set()
            for event in Reader(response):
                if "data" in event:
                    self.seen.append(event)

    def wait(self, within: float = 60) -> list[dict[str, str]]:
        self._thread.join(within)
        assert not self._thread.is_alive(), f"the stream has not ended; seen so far: {self.seen}"
        return self.seen


def kinds(seen: list[dict[str, str]]) -> list[str]:
    return [event["event"] for event in seen]


def test_b37_followed_before_during_and_after_the_run_it_ends_by_itself(site: Site) -> None:
    client, gate = site.of("ann"), site.folder / "gate-37"
    before = submit(client, gate=str(gate))
    early = Live(client, before)
    until(lambda: "started" in kinds(early.seen), what="the claim")
    during = Live(client, before)
    until(lambda: "started" in kinds(during.seen), what="what was before")
    gate.touch()
    seen = [kinds(early.wait()), kinds(during.wait()), kinds(events(client, before))]
    whole = log(site, before)
    assert (whole[0], whole[-1]) == ("queued", "completed")
    assert seen == [whole] * 3
    last = {"Last-Event-ID": str(len(whole))}
    assert events(client, before, **last) == [], "behind the last one there is nothing"


def test_b36_live_and_replayed_bytes_are_the_same(site: Site) -> None:
    client, gate = site.of("ann"), site.folder / "gate-36"
    job_id = submit(client, gate=str(gate))
    live = Live(client, job_id)
    until(lambda: "started" in kinds(live.seen), what="the claim")
    for _ in range(3):
        note(site, job_id, AWKWARD)
    gate.touch()
    seen = live.wait()
    assert seen == events(client, job_id)
    stored = site.rows("select seq, frame from callkeeper.job_events where job_id = :id order by seq", id=job_id)
    assert [(int(event["id"]), event["data"]) for event in seen] == [(row["seq"], row["frame"]) for row in stored]
    notes = [json.loads(event["data"])["data"] for event in seen if event["event"] == "note"]
    assert notes == [AWKWARD] * 3
    assert list(notes[0]) == list(AWKWARD), "in the writer's order"


def test_b35_cut_after_any_event_and_resumed_it_brings_each_later_one_once(site: Site) -> None:
    client, gate = site.of("ann"), site.folder / "gate-35"
    job_id = submit(client, gate=str(gate))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [note(site, job_id, {"n": n}) for n in range(60)] and gate.touch())
        seen: list[int] = []
        cut, last = 1, ""
        while last != "completed":
            headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
            with client.stream("GET", f"/jobs/{job_id}/events", headers=headers) as response:
                for number, event in enumerate(e for e in Reader(response) if "data" in e):
                    seen.append(int(event["id"]))
                    last = event["event"]
                    if number + 1 >= cut:
                        break  # the connection is closed in the middle
            cut = cut % 5 + 1
        writing.result()
    assert seen == list(range(1, len(seen) + 1))
    whole = log(site, job_id)
    assert (len(seen), whole.count("note")) == (len(whole), 60)


@pytest.mark.parametrize("given", [None, "", "garbage", "-1", "0", "1.5", "99999", "9" * 400, "2; drop", " "])
def test_b39_what_is_no_id_of_this_log_means_everything(site: Site, given: str | None) -> None:
    client = site.of("ann")
    job_id = submit(client)
    until_status(client, job_id, "completed")
    headers = {} if given is None or given == " " else {"Last-Event-ID": given}
    assert kinds(events(client, job_id, **headers)) == log(site, job_id)
    assert kinds(events(client, job_id, **{"Last-Event-ID": "1"})) == log(site, job_id)[1:]


def test_b38_a_reader_that_dawdles_misses_no_milestone(site: Site) -> None:
    client, gate = site.of("ann"), site.folder / "gate-38"
    job_id = submit(client, gate=str(gate))
    large = {"text": "x" * 60_000}
    with client.stream("GET", f"/jobs/{job_id}/events") as response:
        reader = iter(Reader(response))
        first = next(event for event in reader if "data" in event)
        # Far more than sockets and mailbox hold, and written while nobody reads.
        for _ in range(150):
            note(site, job_id, large)
        gate.touch()
        until_status(client_of(site), job_id, "completed")
        seen = [first, *(event for event in reader if "data" in event)]
    assert kinds(seen) == log(site, job_id)
    assert [int(event["id"]) for event in seen] == list(range(1, len(seen) + 1))


def client_of(site: Site) -> httpx.Client:
    return site.of("ann")


def test_a_stream_that_nothing_happens_on_shows_that_it_lives(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client, gate=str(site.folder / "never-1"))
    with client.stream("GET", f"/jobs/{job_id}/events") as response:
        comments = (event[""] for event in Reader(response) if "" in event)
        assert [next(comments), next(comments)] == ["still here"] * 2
    client.post(f"/jobs/{job_id}/stop")


def test_a_stop_ends_the_stream_with_its_event(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client, gate=str(site.folder / "never-2"))
    live = Live(client, job_id)
    until(lambda: "started" in kinds(live.seen), what="the claim")
    assert client.post(f"/jobs/{job_id}/stop").status_code == 202
    assert kinds(live.wait())[-1] == "cancelled"


def test_a_stream_ends_when_its_token_is_revoked(site: Site) -> None:
    number, token = site.db.once(tokens.create, scope="user", user_id="ann")
    job_id = submit(site.of("ann"), gate=str(site.folder / "never-3"))
    live, other = Live(site.client(token), job_id), Live(site.of("ann"), job_id)
    until(lambda: live.seen and other.seen, what="both streams")
    site.db.once(tokens.revoke, number)
    assert "completed" not in kinds(live.wait())
    site.of("ann").post(f"/jobs/{job_id}/stop")
    assert kinds(other.wait())[-1] == "cancelled", "the same user's other token is as good as before"


def test_b40_a_denied_stream_is_json_and_never_opens(site: Site) -> None:
    job_id = submit(site.of("ann"))
    answer = site.of("bob").get(f"/jobs/{job_id}/events")
    assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


def test_a_head_and_a_wrong_parameter_open_no_stream(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client)
    head = client.head(f"/jobs/{job_id}/events")
    assert (head.status_code, head.content) == (200, b"")
    assert client.get(f"/jobs/{job_id}/events?tokens=perhaps").status_code == 422


def test_streams_are_limited_a_user_and_given_back(make_site: Callable[..., Site]) -> None:
    site = make_site(CALLKEEPER_WEB_STREAMS_PER_USER="2", CALLKEEPER_WEB_STREAMS="3")
    site.serve()
    ann, bob = site.of("ann"), site.of("bob")
    jobs = {client: submit(client) for client in (ann, bob)}
    streams = [ann.stream("GET", f"/jobs/{jobs[ann]}/events") for _ in range(2)]
    for stream in streams:
        assert stream.__enter__().status_code == 200
    third = ann.get(f"/jobs/{jobs[ann]}/events")
    assert (third.status_code, third.headers["retry-after"]) == (429, "5")
    with bob.stream("GET", f"/jobs/{jobs[bob]}/events") as response:
        assert response.status_code == 200
        assert bob.get(f"/jobs/{jobs[bob]}/events").status_code == 503
    for stream in streams:
        stream.__exit__(None, None, None)

    def free() -> bool:
        with ann.stream("GET", f"/jobs/{jobs[ann]}/events") as response:
            return response.status_code == 200

    until(free, what="the places given back")


def test_b32_at_sigterm_streams_end_and_go_on_elsewhere(make_site: Callable[..., Site]) -> None:
    site = make_site()
    first = site.serve()
    client = site.of("ann")
    job_id = submit(client)
    live = Live(client, job_id)
    until(lambda: live.seen, what="the first event")
    assert first.terminate() == 0, first.text()
    assert kinds(live.wait(10)) == ["queued"]
    assert "Traceback" not in first.text()
    until(lambda: not site.rows(CONNECTED), what="its connections gone")
    site.serve()
    rest = Live(client, job_id, **{"Last-Event-ID": "1"})
    until(rest.open.is_set, what="the stream")
    client_of(site).post(f"/jobs/{job_id}/stop")
    assert kinds(rest.wait()) == ["cancelled"]


CONNECTED = (
    "select 1 from pg_stat_activity where datname = current_database() and application_name like 'callkeeper%'"
    " and pid <> pg_backend_pid()"
)


def test_a_web_process_is_killed_and_its_readers_resume_on_another(make_site: Callable[..., Site]) -> None:
    """The job runs on a worker of its own meanwhile; each milestone comes once, over two lives of the web process."""
    site = make_site()
    site.serve()
    site.work()
    gate = site.folder / "gate"
    client = site.of("ann")
    job_id = submit(client, gate=str(gate))
    seen: list[dict[str, str]] = []
    for life in range(2):
        live = Live(client, job_id, **({"Last-Event-ID": seen[-1]["id"]} if seen else {}))
        if life == 0:
            until(lambda live=live: "started" in kinds(live.seen), what="the claim")
        for number in range(4):
            note(site, job_id, {"life": life, "number": number})
        until(lambda live=live: kinds(live.seen)[-4:] == ["note"] * 4, what="the notes")
        if life == 1:
            gate.touch()
        else:
            assert site.web is not None
            site.web.kill()
        seen += live.wait()
        if life == 0:
            site.serve()
    assert [int(event["id"]) for event in seen] == list(range(1, len(seen) + 1))
    assert (kinds(seen), kinds(seen)[-1]) == (log(site, job_id), "completed")
