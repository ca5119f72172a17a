"""Leases kept and leases lost: long work is started once, and who cannot renew stops before anybody else starts."""

import psutil
import pytest

from tests.chaos.harness import Fleet, until
from tests.chaos.kit import CHORE

THREE_LEASES = 3 * 2.0 + 0.5


@pytest.mark.slow
def test_work_of_three_leases_is_started_once(fleet: Fleet) -> None:
    """One handler sleeps and looks up, one never lets go of the interpreter, one sync call just waits."""
    fleet.sandbox.script(
        {"rules": [{"name": "slow", "when": {"route": "message"}, "do": {"reply_delay": THREE_LEASES}}]}
    )
    fleet.env |= {"CALLKEEPER_LEASE": "2", "CALLKEEPER_BEAT": "0.4"}
    fleet.spawn()
    jobs = [
        fleet.chore(seconds=THREE_LEASES),
        fleet.chore(seconds=THREE_LEASES, spin=True, deaf=True),
        fleet.words("three leases."),
    ]
    until(lambda: len(fleet.started()) == 2 and fleet.creates("three leases."), what="all three at work")
    fleet.spawn()
    ends = fleet.until_done(within=30)
    assert ends == {"completed": 3}
    for job_id in jobs:
        job = fleet.job(job_id)
        assert (job["epoch"], job["attempt"]) == (1, 1)
        took = fleet.one(
            "select extract(epoch from finished_at - started_at) as s from callkeeper.jobs where id = :id", id=job_id
        )
        assert took["s"] > 6, "it really lasted three leases"
    assert len(fleet.started()) == 2
    assert fleet.sandbox.totals()["all"] == 1
    assert fleet.stale_writes() == []
    fleet.check()


def test_a_heartbeat_is_one_statement_a_process_on_a_connection_of_its_own(fleet: Fleet) -> None:
    gate = fleet.folder / "gate"
    fleet.spawn(threads=6)
    jobs = [fleet.chore(gate=str(gate)) for _ in range(6)]
    until(lambda: len(fleet.started()) == 6, what="six jobs at work")
    beat = "select pid from pg_stat_activity where datname = current_database() and application_name = 'callkeeper heartbeat'"
    until(lambda: fleet.rows(beat), what="the heartbeat's connection")
    assert len(fleet.rows(beat)) == 1
    before = {job_id: fleet.job(job_id)["lease_until"] for job_id in jobs}
    until(lambda: all(fleet.job(job_id)["lease_until"] > before[job_id] for job_id in jobs), what="a beat")
    renewed = fleet.rows("select lease_until from callkeeper.jobs where status = 'running'")
    spread = max(row["lease_until"] for row in renewed) - min(row["lease_until"] for row in renewed)
    assert spread.total_seconds() < 0.1, "all of them by one statement"
    gate.touch()
    assert fleet.until_done() == {"completed": 6}
    fleet.check()


def test_a_holder_that_cannot_renew_stops_before_its_lease_ends(fleet: Fleet) -> None:
    """No beat gets through: the handler's next look ends it while the lease still runs; another worker does the job."""
    gate = fleet.folder / "gate"
    mute = fleet.spawn(env={"BREAK_BEATS": "1"})
    job_id = fleet.chore(job_type="chore-again", gate=str(gate))
    until(fleet.started, what="the start")
    first_until = fleet.job(job_id)["lease_until"]
    until(lambda: "lease.lost" in mute.text(), what="the holder giving up")
    clock = fleet.one("select clock_timestamp() as now, lease_until from callkeeper.jobs where id = :id", id=job_id)
    assert clock["now"] < first_until == clock["lease_until"], "it gave up while the lease was still its own"
    assert fleet.fired("no_beat") >= 1
    mute.kill()
    fleet.spawn()
    until(lambda: len(fleet.started()) == 2, what="the successor")
    gate.touch()
    fleet.until_status(job_id, "completed")
    assert fleet.job(job_id)["attempt"] == 2
    fleet.check()


@pytest.mark.slow
def test_a_deaf_holder_that_cannot_renew_is_refused(fleet: Fleet) -> None:
    """It never looks up, so it works on; what it then writes is refused, and counted."""
    # One thread, so that it cannot be its own successor.
    mute = fleet.spawn(threads=1, env={"BREAK_BEATS": "1"})
    job_id = fleet.chore(job_type="chore-again", seconds=5, deaf=True)
    until(fleet.started, what="the start")
    fleet.spawn()
    until(lambda: "verb=complete" in mute.text(), what="the late write")
    until(lambda: "complete" in fleet.stale_writes(), what="the refusal being counted")
    fleet.until_status(job_id, "completed")
    pids = [line.split()[0] for line in fleet.started()]
    assert len(pids) == 2
    assert str(mute.child.pid) == pids[0]
    assert fleet.job(job_id)["result"]["pid"] == int(pids[1]), "the successor's result counts"
    assert fleet.charged(job_id) == ("committed", CHORE)
    fleet.check()


def test_t29_a_beat_that_fails_once_aborts_nothing(fleet: Fleet) -> None:
    fleet.sandbox.script({"rules": [{"name": "slow", "when": {"route": "message"}, "do": {"reply_delay": 5}}]})
    fleet.spawn(env={"BREAK_BEATS": "first"})
    job_id = fleet.words("steady.")
    until(lambda: fleet.creates("steady."), what="the call")
    term = fleet.job(job_id)["lease_until"]
    fleet.until_status(job_id, "completed")
    assert fleet.fired("no_beat") == 1
    assert fleet.one("select finished_at > :term as later from callkeeper.jobs where id = :id", id=job_id, term=term)[
        "later"
    ]
    assert (fleet.job(job_id)["attempt"], fleet.creates("steady.")) == (1, 1)
    fleet.check()


@pytest.mark.slow
def test_a_sync_call_whose_lease_cannot_be_renewed_is_aborted(fleet: Fleet) -> None:
    fleet.sandbox.script({"rules": [{"name": "slow", "when": {"route": "message"}, "do": {"reply_delay": 30}}]})
    mute = fleet.spawn(env={"BREAK_BEATS": "1"})
    job_id = fleet.words("mute.")
    until(lambda: fleet.creates("mute."), what="the call")
    port = fleet.sandbox.port

    def still_open() -> bool:
        links = psutil.Process(mute.child.pid).net_connections("tcp")
        return any(link.raddr and link.raddr.port == port and link.status == "ESTABLISHED" for link in links)

    assert still_open()
    until(lambda: "lease.lost" in mute.text(), what="the holder giving up")
    until(lambda: not still_open(), what="the request being dropped")
    fleet.until_status(job_id, "failed")
    assert fleet.job(job_id)["error_code"] == "reconcile_no_recovery"
    assert fleet.creates("mute.") == 1
    fleet.check()
