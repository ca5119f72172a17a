"""Behaviours 1 to 8: submitting a job, its key, its secrets."""

import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

import actors
from actors import Followers, InvalidRequest, State
from store import settle
from store.models import Settlement
from tests.behaviours.kit import SECRET
from tests.chaos.harness import ROOT, Fleet, until
from tests.store.steps import DONE, Steps, at_once


def test_b01_a_submitted_job_is_one_committed_row_with_its_whole_request(steps: Steps) -> None:
    request = {"starts": "a file", "seconds": 0.5, "fail": "ü"}
    with steps.db.engine.begin() as connection:
        submitted = actors.submit(connection, "chore", request, account_id=steps.account(topup=10))
    (row,) = steps.all(
        "select j.id, j.status, r.request from callkeeper.jobs j join callkeeper.job_requests r on r.job_id = j.id"
    )
    assert (row["id"], row["status"]) == (submitted.job_id, "queued")
    assert row["request"] == {"gate": None, "spin": False, "deaf": False, **request}


SUBMITTER = """
import sys
import sqlalchemy as sa
import actors
import tests.chaos.kit
engine = sa.create_engine(sys.argv[1])
print("ready", flush=True)
for number in range(100_000):
    with engine.begin() as connection:
        actors.submit(connection, "chore", {"starts": f"{sys.argv[2]}/{number}"}, account_id="payer")
"""


def submitters_die(fleet: Fleet, kills: int) -> None:
    url = fleet.db.engine.url.render_as_string(hide_password=False)
    for kill in range(kills):
        folder = fleet.folder / f"starts-{kill}"
        folder.mkdir()
        command = [sys.executable, "-c", SUBMITTER, url, str(folder)]
        submitter = subprocess.Popen(command, cwd=ROOT, env=fleet.env, stdout=subprocess.PIPE)
        assert submitter.stdout is not None
        submitter.stdout.readline()
        before = fleet.one("select count(*) as n from callkeeper.jobs")["n"]
        until(lambda b=before: fleet.one("select count(*) as n from callkeeper.jobs")["n"] > b, what="a first submit")
        time.sleep(random.uniform(0.01, 0.05))
        submitter.send_signal(signal.SIGKILL)
        submitter.wait()
        submitter.stdout.close()
    fleet.spawn(threads=8)
    assert set(fleet.until_done(within=120)) == {"completed"}
    rows = fleet.rows(
        "select r.request ->> 'starts' as file from callkeeper.jobs j left join callkeeper.job_requests r on r.job_id = j.id"
    )
    assert all(Path(row["file"]).read_text().count("\n") == 1 for row in rows), "each ran once, with its own input"
    fleet.check()


def test_b02_a_submitter_that_is_killed_leaves_whole_jobs_or_none(fleet: Fleet) -> None:
    submitters_die(fleet, 2)


@pytest.mark.slow
def test_b02_a_submitter_that_is_killed_twenty_times(fleet: Fleet) -> None:
    submitters_die(fleet, 20)


def submit(steps: Steps, **options: Any) -> actors.Submitted:
    with steps.db.engine.begin() as connection:
        return actors.submit(connection, "book", {"chapters": 1}, **options)


def test_b03_fifty_racers_with_one_key_submit_one_job(steps: Steps) -> None:
    barrier = threading.Barrier(10)

    def race() -> list[Any]:
        barrier.wait()
        return [submit(steps, user_id="ann", idempotency_key="k").job_id for _ in range(5)]

    replies = [job_id for ids in at_once([race] * 10) for job_id in ids]
    assert len(replies) == 50
    assert len(set(replies)) == 1 == steps.count("callkeeper.jobs")


def test_b04_two_users_with_the_same_key_have_a_job_each(steps: Steps) -> None:
    ann, bob = (submit(steps, user_id=user, idempotency_key="k") for user in ("ann", "bob"))
    assert ann.job_id != bob.job_id
    assert (ann.created, bob.created) == (True, True)


def test_b05_jobs_of_nobody_share_one_space_of_keys(steps: Steps) -> None:
    assert submit(steps, idempotency_key="k").job_id == submit(steps, idempotency_key="k").job_id
    assert submit(steps, user_id="ann", idempotency_key="k").created


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.COMPLETED])
def test_b06_a_used_key_answers_with_the_job_and_its_state_now(steps: Steps, state: State) -> None:
    first = submit(steps, idempotency_key="k").job_id
    if state is not State.QUEUED:
        lease = steps.claim(first).lease
        if state is State.COMPLETED:
            with steps.db.engine.begin() as connection:
                settle.complete(connection, lease, DONE)
    again = submit(steps, idempotency_key="k")
    assert (again.job_id, again.status, again.created) == (first, state, False)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.TIMED_OUT])
def test_b07_a_key_whose_job_came_to_nothing_is_free(steps: Steps, state: State) -> None:
    first = submit(steps, idempotency_key="k").job_id
    lease = steps.claim(first).lease
    with steps.db.engine.begin() as connection:
        settle.end_held(connection, lease, Settlement(state, error_code="x"))
    again = submit(steps, idempotency_key="k")
    assert (again.job_id != first, again.status, again.created) == (True, State.QUEUED, True)


def test_b08_a_secret_is_nowhere_and_reaches_every_attempt(office: Fleet, followers: Followers) -> None:
    """Not even where the app's own code puts it: events, words, results, errors."""
    with office.db.engine.begin() as connection, pytest.raises(InvalidRequest):
        actors.submit(connection, "book", {"api_key": SECRET})
    heard: list[str] = []
    with (
        office.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as link,
        ThreadPoolExecutor(1) as pool,
    ):
        for channel in ("callkeeper_event", "callkeeper_ephemeral", "callkeeper_signal"):
            link.execute(sa.text(f"listen {channel}"))
        gate = office.folder / "gate-8"
        job_id = office.submit("diary", ink={"$secret": "diary"}, again=True, gate=str(gate))
        told = pool.submit(list, followers.follow(job_id, tokens=True))
        until(lambda: office.rows("select 1 from callkeeper.followed where ephemeral_until > now()"), what="its mark")
        gate.touch()
        lost = office.submit("diary", ink={"$secret": "elsewhere"})
        broken = office.submit("diary", ink={"$secret": "diary"}, broken=True)
        office.until_status(job_id, "completed")
        office.until_status(lost, "failed")
        office.until_status(broken, "failed")
        frames = b"".join(frame.bytes for frame in told.result(30)).decode()
        heard += [note.payload for note in link.connection.driver_connection.notifies(timeout=0.2)]  # type: ignore[union-attr]
    job = office.job(job_id)
    assert (job["attempt"], job["result"]) == (2, {"length": len(SECRET), "key": "it is [redacted]"})
    assert office.job(lost)["error_code"] == "secret_missing"
    assert office.job(broken)["error_message"] == "RuntimeError: [redacted] fits no lock"
    assert office.events(job_id).count("app.opened") == 2
    assert f"I opened it with {'*' * len(SECRET)}, and " in "".join(heard)
    assert SECRET not in everything(office) + "".join(heard) + frames + office.workers[0].text()


def everything(fleet: Fleet) -> str:
    """Every row of every table, as text."""
    names = fleet.rows(
        "select format('%I.%I', table_schema, table_name) as name from information_schema.tables"
        " where table_schema in ('callkeeper', 'dramatiq') and table_type = 'BASE TABLE'"
    )
    text = [str(fleet.rows(f"select t::text as row from {name['name']} t")) for name in names]
    assert len(text) > 10
    return "\n".join(text)


def test_b08_the_dump_would_show_it(office: Fleet) -> None:
    office.do("insert into callkeeper.alerts (subject) values (:secret)", secret=SECRET)
    assert SECRET in everything(office)
