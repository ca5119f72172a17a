"""The web process dies at any instant of a submit: a job is there whole, once, or not at all."""

import random
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from tests.web.conftest import Site, until


def storm(make_site: Callable[..., Site], *, kills: int, keys: int, seed: int) -> None:
    rng = random.Random(seed)
    site = make_site()
    site.serve()
    token = site.token("ann")
    done: dict[int, str] = {}
    asked = threading.Event()

    def insist(number: int) -> None:
        """What a client does: the same key and request until there is an answer."""
        body = {"job_type": "sum", "request": {"numbers": [number, 1]}}
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"order-{number}"}
        while number not in done:
            try:
                answer = httpx.post(f"{site.address}/jobs", json=body, headers=headers, timeout=10)
            except httpx.TransportError:
                time.sleep(0.05)
                continue
            asked.set()
            assert answer.status_code in (200, 201, 503), answer.text
            if answer.status_code != 503:
                done[number] = answer.json()["job_id"]

    crowd = [threading.Thread(target=lambda mine=range(n, keys, 8): [insist(k) for k in mine]) for n in range(8)]
    for one in crowd:
        one.start()
    for _ in range(kills):
        assert asked.wait(30)
        time.sleep(rng.uniform(0, 0.15))  # an arbitrary instant is the point
        assert site.web is not None
        site.web.kill()
        asked.clear()
        site.serve()
    for one in crowd:
        one.join(60)
    assert len(done) == keys
    assert len(site.rows("select 1 from callkeeper.jobs")) == keys, "each key is one job, however often it was sent"
    site.work()
    client = site.client(token)
    until(lambda: not client.get("/jobs?status=queued&limit=1").json()["jobs"], within=60, what="all jobs started")
    for number, job_id in done.items():
        until(lambda job_id=job_id: client.get(f"/jobs/{job_id}").json()["status"] == "completed", what=f"job {job_id}")
        assert client.get(f"/jobs/{job_id}").json()["result"] == {"sum": number + 1}, "with its original input"
    assert site.rows("select * from callkeeper_audit.violations") == []


def test_b02_the_api_is_killed_in_the_middle_of_submits(make_site: Callable[..., Site]) -> None:
    storm(make_site, kills=2, keys=40, seed=2)


@pytest.mark.slow
def test_b02_the_api_is_killed_in_the_middle_of_submits_many_times(make_site: Callable[..., Site]) -> None:
    storm(make_site, kills=12, keys=600, seed=3)
