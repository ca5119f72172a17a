"""Readiness shows what is really so: a pass that is late, a worker that died, a queue nobody claims from."""

from collections.abc import Callable

import httpx
import pytest

from actors.readiness import expected_passes
from tests.web.conftest import Site, until

PASSED = """
insert into callkeeper.passes (name, last_started_at, last_success_at)
select name, clock_timestamp(), clock_timestamp() - make_interval(secs => :age) from unnest(cast(:names as text[])) as name
on conflict (name) do update set last_success_at = excluded.last_success_at
"""
MESSAGE = """
insert into dramatiq.queue (message_id, queue_name, state, message, available_at)
values (gen_random_uuid(), 'large', cast(:state as dramatiq.state), '{}', clock_timestamp() - make_interval(secs => :age))
"""
WORKER = "insert into dramatiq.worker values (gen_random_uuid(), clock_timestamp() - make_interval(secs => :age))"


def wrong(site: Site) -> list[str]:
    """The checks that fail, by the answer of /readyz."""
    answer = httpx.get(f"{site.address}/readyz", timeout=20)
    found = [check["name"] for check in answer.json()["checks"] if not check["ok"]]
    assert answer.status_code == (503 if found else 200)
    assert answer.json()["ready"] is (not found)
    assert all(check["said"] for check in answer.json()["checks"] if not check["ok"])
    return found


def until_wrong(site: Site, *names: str) -> None:
    """An answer is up to a second old."""
    until(lambda: wrong(site) == list(names), what=f"/readyz naming {names}")


@pytest.fixture
def well(site: Site) -> Site:
    for table in ("callkeeper.passes", "dramatiq.queue", "dramatiq.worker", "callkeeper.jobs"):
        site.do(f"delete from {table}")
    site.do(PASSED, names=expected_passes(), age=200)
    site.do(WORKER, age=1)
    until_wrong(site)
    return site


def test_a_late_pass(well: Site) -> None:
    well.do(PASSED, names=["sweep"], age=301)
    until_wrong(well, "passes")


def test_no_worker_and_one_that_went_without_a_word(well: Site) -> None:
    well.do(WORKER, age=25)
    until_wrong(well, "workers")
    well.do("delete from dramatiq.worker")
    until_wrong(well, "workers")


def test_a_queue_that_nobody_claims_from(well: Site) -> None:
    well.do(MESSAGE, state="queued", age=30)
    until_wrong(well)
    well.do(MESSAGE, state="queued", age=70)
    until_wrong(well, "queues")
    well.do(MESSAGE, state="consumed", age=70)
    until_wrong(well)


def test_a_lease_and_a_poll_that_everybody_forgot(well: Site) -> None:
    job = """
    insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, status, max_attempts, queue_limit,
      run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, epoch, lease_owner, lease_token, lease_until,
      provider_kind, provider_task_id, provider_call_started_at, call_key, call_handle, call_generation, next_poll_at)
    select 't', 'calls', 'a', 'async', 'f', 0, s, 3, '1 h', '1 h', now(), now(), now(), now(), 1,
      case s when 'running' then 'w' end, case s when 'running' then gen_random_uuid() end,
      case s when 'running' then now() - interval '61 s' end, 'replicate-prediction', case s when 'waiting' then 't1' end,
      case s when 'waiting' then now() end, case s when 'waiting' then gen_random_uuid() end,
      case s when 'waiting' then '{}'::jsonb end, 1, case s when 'waiting' then now() - interval '61 s' end
    from (select cast(:status as text) as s) wanted
    """
    well.do(job, status="running")
    until_wrong(well, "leases")
    well.do(job, status="waiting")
    until_wrong(well, "leases", "polls")


@pytest.mark.slow  # a worker is given up after 20 s of silence
def test_a_real_workers_death_shows(make_site: Callable[..., Site]) -> None:
    site = make_site(CALLKEEPER_LEASE="6", CALLKEEPER_BEAT="1")
    site.do(PASSED, names=expected_passes(), age=1)
    site.serve()
    until_wrong(site, "workers")
    worker = site.work()
    until_wrong(site)
    worker.kill()
    until(lambda: wrong(site) == ["workers"], within=40, what="the death of the only worker showing")


def test_health_needs_no_database_and_readiness_says_that_it_is_away(make_site: Callable[..., Site]) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:9/nothing?connect_timeout=2"
    site = make_site()
    site.env["DATABASE_URL"] = nowhere
    site.serve()
    assert wrong(site) == ["database"]
    refused = site.client("ck_" + "A" * 43).get("/jobs")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert int(refused.headers["retry-after"]) >= 1
