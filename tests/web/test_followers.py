"""A crowd on one web process: everybody gets every milestone."""

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from bench.followers import crowd, measure, raise_file_limit
from tests.web.conftest import Site


def everybody(make_site: Callable[..., Site], *, followers: int, jobs: int, rounds: int) -> None:
    raise_file_limit()
    site = make_site(CALLKEEPER_WEB_STREAMS_PER_USER="5000", CALLKEEPER_WEB_HEARTBEAT="15")
    site.serve()
    client = site.of("ann")
    body = {"job_type": "sum", "request": {"numbers": [1]}}
    job_ids = [UUID(client.post("/jobs", json=body).json()["job_id"]) for _ in range(jobs)]
    people, _ = asyncio.run(
        crowd(site.db, site.port, site.token("ann"), job_ids, followers=followers, rounds=rounds, every=0.1)
    )
    wanted = list(range(1, rounds + 3))
    assert [one.seen for one in people] == [wanted] * followers
    assert all(one.ended for one in people)


def test_a_hundred_followers_of_one_process_all_get_every_milestone(make_site: Callable[..., Site]) -> None:
    everybody(make_site, followers=100, jobs=5, rounds=10)


@pytest.mark.slow
def test_a_thousand_followers_of_one_process_all_get_every_milestone(make_site: Callable[..., Site]) -> None:
    everybody(make_site, followers=1000, jobs=10, rounds=30)


@pytest.mark.slow
def test_the_measurement_runs_and_nobody_lacks_anything() -> None:
    delivery, memory = measure(followers=20, jobs=2, rounds=3, every=0.1)
    assert (delivery["complete_followers"], delivery["milestones"]) == (20, 20 * 4)
    assert delivery["value"] > 0
    assert memory["unit"] == "KiB"
