"""A result that never comes whole is fetched so often and not more; what was bought too late is cancelled where it runs."""

import pytest

from tests.chaos.conftest import MakeFleet
from tests.chaos.harness import Fleet, until

TRIES = 3


def downloads(fleet: Fleet) -> int:
    return int(fleet.sandbox.stats()["requests"]["download"])


def returned(fleet: Fleet, job_id: object) -> list[str]:
    rows = fleet.rows(
        "select data ->> 'why' as why from callkeeper.job_events where job_id = :id and kind = 'result_returned'"
        " order by seq", id=job_id,
    )  # fmt: skip
    return [row["why"] for row in rows]


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"download": "truncated", "fraction": 0.6}, "result_truncated"),
        # As long as announced, and it opens: only decoding it to its end shows that a tenth is missing.
        ({"download": "short", "fraction": 0.9}, "result_truncated"),
    ],
)
def test_a_result_that_stays_broken_ends_its_job(make_fleet: MakeFleet, broken: dict[str, object], why: str) -> None:
    fleet = make_fleet(CALLKEEPER_IMPORT_ATTEMPTS=str(TRIES))
    fleet.sandbox.script({"rules": [{"when": {"route": "download"}, "do": broken}]})
    job_id = fleet.picture("never whole.", video=True)
    fleet.spawn()
    fleet.until_status(job_id, "failed", within=30)
    job = fleet.job(job_id)
    assert (job["error_code"], job["attempt"], job["import_failures"]) == ("import_exhausted", 1, TRIES - 1)
    assert f"in {TRIES} tries" in job["error_message"]
    assert why in job["error_message"]
    assert returned(fleet, job_id) == [why] * (TRIES - 1)
    assert downloads(fleet) == TRIES
    until(lambda: fleet.alerts() == {f"import_exhausted:{why}": 1}, what="the alert")
    assert (fleet.creates("never whole."), fleet.charged(job_id)) == (1, ("refunded", 0))
    fleet.check()


def test_a_result_that_is_whole_the_last_time_completes_its_job(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(CALLKEEPER_IMPORT_ATTEMPTS=str(TRIES))
    first = list(range(1, TRIES))
    cut = {"when": {"route": "download", "nth": first}, "do": {"download": "short", "fraction": 0.5}}
    fleet.sandbox.script({"rules": [cut]})
    job_id = fleet.picture("whole at last.")
    fleet.spawn()
    fleet.until_status(job_id, "completed", within=30)
    assert downloads(fleet) == TRIES
    assert (fleet.job(job_id)["import_failures"], fleet.alerts()) == (TRIES - 1, {})
    fleet.check()


def test_an_answer_that_comes_after_the_job_was_given_up_ends_its_task(fleet: Fleet) -> None:
    """Frozen while the request is out; given up meanwhile; thawed, it learns the id of what runs for nobody."""
    slow = {"when": {"route": "create"}, "do": {"reply_delay": 1, "run_seconds": 600}}
    fleet.sandbox.script({"rules": [slow, {"when": {"route": "list"}, "do": {"list_off": True}}]})
    patient = {"CALLKEEPER_KINDS": fleet.kinds(send_deadline=60)}
    sleeper = fleet.spawn(env=patient)
    job_id = fleet.picture("too late.")
    until(lambda: fleet.creates("too late."), what="the create")
    sleeper.freeze()
    fleet.spawn(env=patient)
    fleet.until_event(job_id, "recovered")
    fleet.do("update callkeeper.jobs set resolve_by = now(), next_poll_at = now() where id = :id", id=job_id)
    fleet.until_status(job_id, "failed")
    settled = fleet.job(job_id)
    assert settled["error_code"] == "reconcile_no_recovery"
    assert fleet.sandbox.bill()[0]["status"] == "starting"

    sleeper.thaw()
    until(lambda: fleet.sandbox.bill()[0]["status"] == "canceled", what="the cancel upstream")
    (receipt,) = fleet.rows("select source, provider_task_id as task from callkeeper.call_receipts")
    assert receipt == {"source": "late_create", "task": fleet.sandbox.bill()[0]["task_id"]}
    assert fleet.job(job_id) == settled, "nothing was written after the end"
    assert fleet.charged(job_id) == ("refunded", 0)
    fleet.check()
