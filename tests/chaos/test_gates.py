"""Closed provider accounts: a revoked key, an empty account, an outage, a rate limit. No job fails for any of them."""

from tests.chaos.harness import Fleet, until

REFUSED = {"detail": "Unauthenticated", "title": "Unauthenticated", "status": 401}
EMPTY = {"detail": "Insufficient credit", "title": "Insufficient credit", "status": 402}
SLOW = {"detail": "Request was throttled. Your rate limit resets in ~1s.", "status": 429}


def _reply(status: int, body: object, route: str = "create", **headers: str) -> dict[str, object]:
    return {
        "name": str(status),
        "when": {"route": route},
        "do": {"reply": {"status": status, "body": body, "headers": headers}},
    }


def _gate(fleet: Fleet) -> dict[str, object]:
    rows = fleet.rows(
        "select reason, stops_clocks, failures, closed_until > now() as closed from callkeeper.provider_gates"
    )
    return dict(rows[0]) if rows else {}


def _requests(fleet: Fleet) -> int:
    return int(fleet.sandbox.stats()["requests"]["create"])


def test_operators_trouble_pauses_the_kind_and_fails_nobody(fleet: Fleet) -> None:
    for status, body, code in ((401, REFUSED, "provider_auth_invalid"), (402, EMPTY, "provider_credits_exhausted")):
        fleet.sandbox.script({"rules": [_reply(status, body)]})
        if not fleet.workers:
            fleet.spawn()
        jobs = [fleet.picture(f"paused by {status}, {number}") for number in range(6)]
        until(lambda code=code: _gate(fleet).get("reason") == code, what=f"a gate closed by {code}")
        until(lambda code=code: fleet.alerts().get(f"replicate-prediction:{code}"), what="an alert")
        assert all(fleet.status(job) in ("queued", "running") for job in jobs)
        fleet.sandbox.script({})
        fleet.until_done()
        assert {fleet.status(job) for job in jobs} == {"completed"}
        assert {fleet.job(job)["attempt"] for job in jobs} == {1}
        until(lambda: not _gate(fleet)["stops_clocks"], what="the gate's reopening")
    fleet.check()


def test_a_synchronous_kind_opens_its_gate_again_too(fleet: Fleet) -> None:
    body = {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}
    fleet.sandbox.script({"rules": [_reply(401, body, route="message")]})
    fleet.spawn()
    job = fleet.words("paused, then said")
    until(lambda: _gate(fleet).get("stops_clocks"), what="a closed gate")
    fleet.sandbox.script({})
    fleet.until_done()
    assert fleet.status(job) == "completed"
    until(lambda: not _gate(fleet)["stops_clocks"], what="the gate's reopening")
    fleet.check()


def test_outage_trips_the_breaker_spares_the_provider_and_gives_time_back(fleet: Fleet) -> None:
    fleet.env |= {"CALLKEEPER_BREAKER_FAILURES": "2", "CALLKEEPER_BREAKER_WAIT": "2"}
    fleet.sandbox.stop()
    fleet.spawn()
    jobs = [fleet.picture(f"outage {number}") for number in range(8)]
    until(lambda: _gate(fleet).get("reason") == "outage", what="the breaker")
    # Their queue deadline passes while it is closed, and the sweep looks at every one of them.
    fleet.do("update callkeeper.jobs set queue_deadline_at = now(), next_check_at = now() where finished_at is null")
    before = fleet.rows("select last_success_at from callkeeper.passes where name = 'sweep'")
    _send_sweep(fleet)
    until(
        lambda: fleet.rows("select last_success_at from callkeeper.passes where name = 'sweep'") not in ([], before),
        what="a sweep",
    )
    assert {fleet.status(job) for job in jobs} <= {"queued", "running"}
    # Given back is what was lost, and no more; a slow machine needs a little longer to start eight calls.
    fleet.do("update callkeeper.jobs set queue_deadline_at = queue_deadline_at + interval '1 minute'")
    fleet.sandbox.start()
    fleet.until_done(within=40)
    assert {fleet.status(job) for job in jobs} == {"completed"}
    assert fleet.sandbox.totals(containing="outage")["all"] == len(jobs)
    fleet.check()


def test_rate_limit_slows_the_fleet_and_costs_no_attempt(fleet: Fleet) -> None:
    fleet.sandbox.script({"rules": [_reply(429, SLOW, **{"retry-after": "1"})]})
    for _ in range(2):
        fleet.spawn()
    jobs = [fleet.picture(f"slow {number}") for number in range(20)]
    until(lambda: _gate(fleet).get("closed") and _gate(fleet)["reason"] == "rate_limited", what="the gate")
    asked = _requests(fleet)
    until(lambda: _gate(fleet)["closed"] is False or _requests(fleet) > asked, what="a second's silence")
    # Without the gate each of twenty jobs would have asked at once; with it only those that were already on their way.
    assert asked <= 10
    fleet.sandbox.script({})
    fleet.until_done()
    assert {fleet.job(job)["attempt"] for job in jobs} == {1}
    assert not _gate(fleet)["stops_clocks"]
    fleet.check()


def _send_sweep(fleet: Fleet) -> None:
    fleet.do(
        "with m as (select gen_random_uuid() as id) insert into dramatiq.queue (message_id, queue_name, state, message)"
        " select id, 'maintenance', 'queued', jsonb_build_object('queue_name', 'maintenance', 'actor_name', 'sweep',"
        " 'args', '[]'::jsonb, 'kwargs', '{}'::jsonb, 'options', '{}'::jsonb, 'message_id', id, 'message_timestamp', 0) from m"
    )
