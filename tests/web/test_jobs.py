"""Submitting, looking, listing and stopping over HTTP: whose job it is, what a key stands for, what is refused and how."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from store import budgets, follow, settle
from store import jobs as store_jobs
from store.models import Settlement
from store.states import State
from tests.web.conftest import Reader, Site, events, until

SUM = {"job_type": "sum", "request": {"numbers": [20, 22]}}


def submit(client: httpx.Client, body: Any = None, *, key: str | None = None) -> httpx.Response:
    return client.post("/jobs", json=body or SUM, headers={"Idempotency-Key": key} if key else {})


def claim(site: Site, job_id: str) -> Any:
    claimed = site.db.once(store_jobs.claim_queued, UUID(job_id), owner="w", term=timedelta(minutes=5))
    assert claimed is not None
    return claimed.lease


def finish(site: Site, job_id: str, status: State = State.COMPLETED) -> None:
    good = (
        {"result": {"sum": 42}} if status is State.COMPLETED else {"error_code": "handler_error", "error_message": "no"}
    )
    site.db.transact(settle.end_held, claim(site, job_id), Settlement(status=status, **good))


def stored(site: Site, job_id: str) -> str:
    """Everything that is stored of a job, as text."""
    tables = ("jobs where id", "job_events where job_id", "job_signals where job_id", "notices where job_id")
    return json.dumps(
        [site.rows(f"select * from callkeeper.{table} = :id order by 1, 2", id=job_id) for table in tables], default=str
    )


def test_b01_a_submit_is_one_committed_row_with_its_whole_request(site: Site) -> None:
    answer = submit(site.of("ann"))
    assert answer.status_code == 201
    job_id = answer.json()["job_id"]
    assert answer.json() == {"job_id": job_id, "status": "queued", "created": True}
    assert answer.headers["location"] == f"/jobs/{job_id}"
    (row,) = site.rows(
        "select j.status, j.user_id, r.request from callkeeper.jobs j join callkeeper.job_requests r on r.job_id = j.id"
        " where j.id = :id",
        id=job_id,
    )
    assert row["status"] == "queued"
    assert row["user_id"] == "ann"
    assert row["request"] == {"numbers": [20, 22], "gate": None, "secret": None}


def test_b03_fifty_submits_of_one_key_are_one_job(site: Site) -> None:
    with site.of("crowd") as client, ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: submit(client, key="the same"), range(50)))
    assert sorted({answer.status_code for answer in answers}) == [200, 201]
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert len(site.rows("select 1 from callkeeper.jobs where user_id = 'crowd'")) == 1


def test_b04_one_key_of_two_users_is_two_jobs_and_tells_neither_of_the_other(site: Site) -> None:
    ann, bob = (submit(site.of(name), key="shared-key") for name in ("ann-4", "bob-4"))
    assert (ann.status_code, bob.status_code) == (201, 201)
    assert ann.json()["job_id"] != bob.json()["job_id"]
    assert ann.json()["job_id"] not in bob.text


def test_b06_a_used_key_gives_the_same_job_with_its_status_now(site: Site) -> None:
    client = site.of("ann-6")
    job_id = submit(client, key="k").json()["job_id"]
    assert submit(client, key="k").json() == {"job_id": job_id, "status": "queued", "created": False}
    lease = claim(site, job_id)
    running = submit(client, key="k")
    assert (running.status_code, running.json()["status"]) == (200, "running")
    site.db.transact(settle.end_held, lease, Settlement(status=State.COMPLETED, result={"sum": 42}))
    assert submit(client, key="k").json() == {"job_id": job_id, "status": "completed", "created": False}


@pytest.mark.parametrize("end", [State.FAILED, State.TIMED_OUT, State.CANCELLED])
def test_b07_the_key_of_a_job_that_did_not_complete_is_free(site: Site, end: State) -> None:
    client = site.of(f"ann-7-{end}")
    first = submit(client, key="k").json()["job_id"]
    finish(site, first, end)
    again = submit(client, key="k")
    assert again.status_code == 201
    assert again.json()["job_id"] != first


def test_a_used_key_with_another_request_is_refused_and_names_nothing(site: Site) -> None:
    client = site.of("ann-c")
    job_id = submit(client, key="my-own-key").json()["job_id"]
    answer = submit(client, {"job_type": "sum", "request": {"numbers": [1]}}, key="my-own-key")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "idempotency_conflict")
    assert "my-own-key" not in answer.text
    assert job_id not in answer.text


def test_who_pays_is_the_tokens_account_and_an_empty_one_is_402(site: Site) -> None:
    poem = {"job_type": "paid-poem", "request": {"about": "rain"}}
    nobody = submit(site.of("poor"), poem)
    assert (nobody.status_code, nobody.json()["error"]["code"]) == (402, "insufficient_credits")
    site.grant("firm", 5)
    clerk = site.client(site.token("clerk", account="firm"))
    assert submit(clerk, poem).status_code == 201
    short = submit(clerk, poem)
    assert (short.status_code, short.json()["error"]["message"]) == (
        402,
        "1 credits are available, this job reserves 4",
    )
    assert site.rows("select account_id, price from callkeeper.jobs where user_id = 'clerk'") == [
        {"account_id": "firm", "price": 4}
    ]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**SUM, "job_type": 7}, "job_type"),
        ({**SUM, "job_type": "no-such-type"}, "job_type"),
        ({**SUM, "job_type": "replicate-prediction", "request": {"model": "a/b", "input": {}}}, "job_type"),
        ({**SUM, "delay_seconds": -1}, "delay_seconds"),
        ({**SUM, "delay_seconds": True}, "delay_seconds"),
        ({**SUM, "colour": "red"}, "colour"),
        ({"job_type": "sum"}, "request"),
        ({"job_type": "sum", "request": []}, "request"),
        ({"job_type": "sum", "request": {"numbers": "many"}}, "request.numbers"),
        ({"job_type": "sum", "request": {"numbers": [1, None]}}, "request.numbers.1"),
        ({"job_type": "sum", "request": {"numbers": [], "gate": "a\x00b"}}, "request.gate"),
        ({"job_type": "sum", "request": {"numbers": [], "api_key": "hunter2"}}, "request.api_key"),
        ([], "(body)"),
        ("text", "(body)"),
    ],
)
def test_a_wrong_body_is_422_and_names_the_field(site: Site, body: Any, field: str) -> None:
    answer = site.of("ann").post("/jobs", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert [one["field"] for one in error["fields"]] == [field]
    assert field in error["message"]
    assert "hunter2" not in answer.text


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"job_type": "sum", "request": {"numbers": [NaN]}}', 400, "NaN is no number in JSON"),
        (b"\xff\xfe", 400, "byte 0 is not UTF-8"),
        (b'"\\ud800"', 422, "(body)"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b"9" * 5_000, 400, "not JSON"),
        (b" " * (1024 * 1024 + 1), 413, "more than 1048576 bytes"),
        (json.dumps({"job_type": "sum", "request": {"gate": "x" * 300_000}}).encode(), 422, "the limit is 262144"),
        (json.dumps({"job_type": "sum", "request": {"a": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]}}).encode(), 422, "deeper than 32 levels"),
    ],
)  # fmt: skip
def test_a_body_that_cannot_be_read_is_a_clear_4xx(site: Site, content: bytes, status: int, said: str) -> None:
    answer = site.of("ann").post("/jobs", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]["message"]


def test_a_body_without_its_length_is_limited_too(site: Site) -> None:
    client = site.of("ann")
    parts = (b" " * 65_536 for _ in range(40))
    answer = client.post("/jobs", content=parts, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert client.get("/jobs").status_code == 200, "the connection that follows is clean"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"])
def test_a_body_of_another_kind_is_415(site: Site, kind: str) -> None:
    answer = site.of("ann").post("/jobs", content=b"{}", headers={"Content-Type": kind} if kind else {})
    assert answer.status_code == 415


@pytest.mark.parametrize("key", ["", "a\tb", "x" * 257, "k\u00e9y", "sk-abcdefghijklmnopqrstuvwx"])
def test_a_key_that_cannot_be_kept_is_422(site: Site, key: str) -> None:
    headers = {b"Idempotency-Key": key.encode(), b"Authorization": b"Bearer " + site.token("ann").encode()}
    answer = httpx.post(f"{site.address}/jobs", json=SUM, headers=list(headers.items()))
    assert answer.status_code == 422, answer.text
    assert [one["field"] for one in answer.json()["error"]["fields"]] == ["Idempotency-Key"]


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ck_",
        "Basic YW5uOmFubg==",
        "Bearer ck_" + "A" * 43,
        "Bearer ck_" + "A" * 5_000,
        "Bearer \u00fc",
        "ck_good",
    ],
)
@pytest.mark.parametrize("path", ["/jobs", f"/jobs/{UUID(int=1)}", f"/jobs/{UUID(int=1)}/events", "/operator/state"])
def test_a_forged_token_is_401_everywhere(site: Site, header: str | None, path: str) -> None:
    headers = [] if header is None else [(b"Authorization", header.encode())]
    answer = httpx.get(site.address + path, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/json"


def test_a_revoked_and_an_expired_token_are_401(site: Site) -> None:
    from store import tokens

    number, revoked = site.db.once(tokens.create, scope="user", user_id="ann")
    _, expired = site.db.once(tokens.create, scope="user", user_id="ann", life=timedelta(seconds=-1))
    assert site.client(revoked).get("/jobs").status_code == 200
    assert site.db.once(tokens.revoke, number) is True
    assert site.client(revoked).get("/jobs").status_code == 401
    assert site.client(expired).get("/jobs").status_code == 401


def test_each_scope_opens_its_own_doors(site: Site) -> None:
    operator, user = site.client(site.operator_token()), site.of("ann")
    assert operator.get("/jobs").status_code == 403
    assert operator.post("/jobs", json=SUM).status_code == 403
    assert user.get("/operator/state").status_code == 403
    assert user.get("/operator/violations").status_code == 403
    assert operator.get("/operator/state").status_code == 200


def test_b40_another_users_job_is_404_everywhere_before_any_stream_opens(site: Site) -> None:
    job_id = submit(site.of("ann")).json()["job_id"]
    before = stored(site, job_id)
    bob = site.of("bob")
    for wanted in (job_id, uuid4(), "not-an-id", "0", "%00", job_id + "0", "\u00fc"):
        answers = [bob.get(f"/jobs/{wanted}"), bob.get(f"/jobs/{wanted}/events"), bob.post(f"/jobs/{wanted}/stop")]
        assert [answer.status_code for answer in answers] == [404] * 3
        assert {answer.headers["content-type"] for answer in answers} == {"application/json"}
        assert len({answer.content for answer in answers}) == 1, (
            "nothing tells a job that is there from one that is not"
        )
    assert stored(site, job_id) == before


def test_b26_a_queued_job_that_is_stopped_is_cancelled_at_once(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client).json()["job_id"]
    answer = client.post(f"/jobs/{job_id}/stop")
    assert (answer.status_code, answer.json()) == (200, {"job_id": job_id, "status": "cancelled"})
    job = client.get(f"/jobs/{job_id}").json()
    assert job["error"] == {"code": "cancelled", "message": "stopped on request"}
    assert job["finished_at"] is not None
    assert site.rows("select kind from callkeeper.job_events where job_id = :id order by seq", id=job_id) == [
        {"kind": "queued"},
        {"kind": "cancelled"},
    ]


def test_a_running_job_is_asked_to_end(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client).json()["job_id"]
    claim(site, job_id)
    for _ in range(2):
        answer = client.post(f"/jobs/{job_id}/stop")
        assert (answer.status_code, answer.json()["status"]) == (202, "running")
    assert len(site.rows("select 1 from callkeeper.job_signals where job_id = :id", id=job_id)) == 1


@pytest.mark.parametrize("end", [State.COMPLETED, State.FAILED, State.TIMED_OUT, State.CANCELLED])
def test_b27_stopping_a_finished_job_changes_no_byte_and_names_its_state(site: Site, end: State) -> None:
    client = site.of("ann")
    job_id = submit(client).json()["job_id"]
    finish(site, job_id, end)
    before = stored(site, job_id)
    answer = client.post(f"/jobs/{job_id}/stop")
    assert (answer.status_code, answer.json()["status"]) == (200, end)
    assert stored(site, job_id) == before


def test_pages_hold_every_job_once_whatever_comes_meanwhile(site: Site) -> None:
    client = site.of("pages")
    ids = [submit(client).json()["job_id"] for _ in range(7)]
    seen: list[str] = []
    query: dict[str, Any] = {"limit": 3}
    while True:
        page = client.get("/jobs", params=query).json()
        seen += [job["id"] for job in page["jobs"]]
        submit(client)  # newer than every page: it must not push anything onto the next
        if page["next"] is None:
            break
        query["cursor"] = page["next"]
    assert seen == list(reversed(ids))


def test_pages_are_filtered_and_only_ones_own(site: Site) -> None:
    ann, bob = site.of("ann-l"), site.of("bob-l")
    site.grant("ann-l", 100)
    done = submit(ann).json()["job_id"]
    finish(site, done)
    submit(ann, {"job_type": "paid-poem", "request": {"about": "rain"}})
    submit(bob)
    assert len(ann.get("/jobs").json()["jobs"]) == 2
    (job,) = ann.get("/jobs", params={"status": "completed"}).json()["jobs"]
    assert (job["id"], job["status"]) == (done, "completed")
    assert "result" not in job
    assert [job["job_type"] for job in ann.get("/jobs", params={"job_type": "paid-poem"}).json()["jobs"]] == [
        "paid-poem"
    ]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("status=sleeping", "status"),
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=many", "limit"),
        ("limit=1&limit=2", "limit"),
        ("cursor=nonsense", "cursor"),
        ("cursor=WyIyMDI2IiwgMV0", "cursor"),
        ("cursor=", "cursor"),
        ("colour=red", "colour"),
    ],
)
def test_a_wrong_query_is_422_and_names_the_parameter(site: Site, query: str, field: str) -> None:
    answer = site.of("ann").get(f"/jobs?{query}")
    assert answer.status_code == 422
    assert [one["field"] for one in answer.json()["error"]["fields"]] == [field]


def test_a_job_is_shown_with_its_outcome_and_nothing_of_the_machinery(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client).json()["job_id"]
    finish(site, job_id)
    job = client.get(f"/jobs/{job_id}").json()
    assert (job["status"], job["result"], job["error"]) == ("completed", {"sum": 42}, None)
    assert job["last_event"] == 3
    assert not {"lease_token", "lease_owner", "call_key", "provider_task_id", "user_id", "idempotency_key"} & set(job)


def test_what_is_not_there_is_json_too(site: Site) -> None:
    client = site.of("ann")
    assert client.get("/nowhere").json()["error"]["code"] == "not_found"
    wrong = client.put("/jobs", json=SUM)
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_b34_tokens_are_passed_on_live_and_never_stored(site: Site) -> None:
    client = site.of("ann")
    job_id = submit(client).json()["job_id"]
    lease = claim(site, job_id)
    word = ',"kind":"token","data":{"text":"h\u00e9"}}'
    with client.stream("GET", f"/jobs/{job_id}/events") as open_stream:
        stream = (event for event in Reader(open_stream) if "data" in event)
        assert [next(stream)["event"], next(stream)["event"]] == ["queued", "started"]
        until(lambda: site.db.once(follow.say, lease, word), what="the follower's mark")
        token = next(stream)
        site.db.transact(settle.end_held, lease, Settlement(status=State.COMPLETED, result={"sum": 42}))
        assert [event["event"] for event in stream if event["event"] != "token"] == ["completed"]
    assert (token["event"], token["id"]) == ("token", "2"), "its id moves no cursor"
    assert json.loads(token["data"])["data"] == {"text": "h\u00e9"}
    assert site.rows("select 1 from callkeeper.job_events where job_id = :id and kind = 'token'", id=job_id) == []
    assert [event["event"] for event in events(client, job_id)] == ["queued", "started", "completed"]


def test_a_full_queue_is_429_and_says_when_to_come_again(site: Site) -> None:
    client = site.of("eager")
    limited = partial(site.db.once, budgets.set_budget, scope="user", name="eager", per=None, by="operator")
    limited(measure="queued", at_most=1)
    assert submit(client, key="first").status_code == 201
    full = submit(client, key="second")
    assert (full.status_code, full.json()["error"]["code"]) == (429, "queue_full")
    assert int(full.headers["retry-after"]) >= 1
    assert submit(client, key="first").status_code == 200, "what was accepted is known by its key, however full"
    assert len(site.rows("select 1 from callkeeper.jobs where user_id = 'eager'")) == 1
    assert "eager" not in full.text
