"""A waiting call holds no thread, no connection and no lease; it is a row."""

import pytest

from tests.chaos.harness import Fleet, until


def connections(fleet: Fleet) -> int:
    mine = (
        "select count(*) as n from pg_stat_activity where datname = current_database() and application_name <> 'test'"
    )
    return int(fleet.one(mine)["n"])


@pytest.mark.parametrize("calls", [300, pytest.param(2_000, marks=pytest.mark.slow)])
def test_waiting_costs_no_thread_and_no_connection(fleet: Fleet, calls: int) -> None:
    # As busy as it will get: pools and threads are opened by need, and stay. Bursts need them, waiting does not.
    worker = fleet.spawn(threads=8, env={"CALLKEEPER_KINDS": fleet.kinds(poll_every=2)})
    for number in range(200):
        fleet.picture(f"warm-up {number}.")
    fleet.until_done(within=60)
    before = (worker.child.num_threads(), connections(fleet))

    fleet.sandbox.script({"defaults": {"run_seconds": 3600}})
    with fleet.db.engine.begin() as connection:
        from actors import submit

        jobs = [
            submit(connection, "picture", {"prompt": f"waits {number}."}, account_id=fleet.account).job_id
            for number in range(calls)
        ]
    waiting = "select count(*) as n from callkeeper.jobs where status = 'waiting'"
    until(lambda: fleet.one(waiting)["n"] == calls, within=30 + calls / 50, what=f"{calls} waiting calls")
    # Every one of them is polled again and again meanwhile.
    polled = fleet.sandbox.stats()["requests"]["poll"]
    until(
        lambda: fleet.sandbox.stats()["requests"]["poll"] >= polled + 2 * calls, within=30, what="two rounds of polls"
    )
    threads, links = worker.child.num_threads(), connections(fleet)
    # Two more may have been opened by chance in the burst of creates; one for each call would be hundreds.
    assert threads <= before[0] + 2
    assert links <= before[1] + 2
    assert fleet.rows("select 1 from callkeeper.jobs where lease_token is not null") == []

    # They all come home when their runs end.
    fleet.sandbox.advance(3600)
    fleet.until_done(within=30 + calls / 20)
    assert {fleet.status(job_id) for job_id in jobs[:: max(1, calls // 50)]} == {"completed"}
    assert fleet.sandbox.totals()["all"] == 200 + calls
    fleet.check()
