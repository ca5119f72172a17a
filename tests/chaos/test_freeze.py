"""SIGSTOP past the lease, recovery by another worker, SIGCONT: the old holder wakes up late and can do no harm."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from providers.sandbox import Sandbox
from tests.chaos.harness import Fleet, database, until
from tests.chaos.kit import PICTURE

AT_ONCE = 5


@dataclass(frozen=True)
class Case:
    """`refused`: the write that the old holder tries when it wakes; None where it knows better than to try."""

    job_type: str
    point: str
    creates: int
    refused: str | None
    status: str = "completed"

    def __str__(self) -> str:
        return f"{self.job_type}-{self.point}"


CASES = [
    Case("picture", "after_claim", creates=1, refused="mark_call_started"),
    # Its trust in the lease is over, so it does not send: no write, no request.
    Case("picture", "after_intent", creates=0, refused=None, status="failed"),
    # The answer is in its hands: the write is refused, the task id is kept all the same.
    Case("picture", "after_accept", creates=1, refused="checkpoint_call"),
    Case("picture", "after_upload", creates=1, refused=None),
    Case("words", "after_claim", creates=1, refused="mark_call_started"),
    Case("words", "after_intent", creates=0, refused=None, status="failed"),
    Case("words", "after_result", creates=1, refused="complete", status="failed"),
    Case("chore-again", "after_claim", creates=1, refused="mark_call_started"),
    Case("chore-again", "after_intent", creates=1, refused=None),
]


def run(case: Case, url: str, sandbox: Sandbox, folder: Path) -> None:
    with Fleet(url, sandbox, folder) as fleet:
        sleeper = fleet.spawn(threads=2, env={"PAUSE_AT": case.point})
        prompt = f"freeze {case}."
        chore = case.job_type.startswith("chore")
        job_id = fleet.submit(case.job_type, **({"starts": str(fleet.starts)} if chore else {"prompt": prompt}))
        try:
            fleet.until_fired(case.point)
            sleeper.until_frozen()
            fleet.spawn(threads=2)
            fleet.until_status(job_id, case.status, within=30)
            settled = fleet.job(job_id)

            sleeper.thaw()
            until(lambda: "lease.lost" in sleeper.text(), what="the old holder giving up")
            if case.refused is not None:
                until(lambda: case.refused in fleet.stale_writes(), what="the refused write being counted")
            else:
                assert fleet.stale_writes() == []
            # It is well again, and does honest work.
            again = fleet.picture(f"after {case}.")
            fleet.until_status(again, "completed")

            assert fleet.job(job_id) == settled, "nothing was written after the end"
            assert (len(fleet.started()) if chore else fleet.creates(prompt)) == case.creates
            fleet.check()
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}\n{fleet.tail()}") from error


@pytest.fixture(scope="module")
def thaws(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[None]]]:
    folder = tmp_path_factory.mktemp("freeze")
    _one_sandbox.reset()

    def begin(case: Case) -> None:
        with database(server.url, server.url_of, template) as url:
            run(case, url, _one_sandbox, folder / str(case))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {case: pool.submit(begin, case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_holder_that_wakes_too_late_changes_nothing(case: Case, thaws: dict[Case, Future[None]]) -> None:
    thaws[case].result(120)


def test_the_id_of_a_create_in_flight_is_kept_when_the_lease_is_gone(fleet: Fleet) -> None:
    """Frozen while the request is out and the list does not show the task yet: only the late answer can name it."""
    fleet.sandbox.script(
        {
            "rules": [
                {"name": "slow", "when": {"route": "create", "contains": "in flight"}, "do": {"reply_delay": 1}},
                {"name": "hidden", "when": {"route": "list"}, "do": {"list_off": True}},
            ]
        }
    )
    # The quiet period outlasts the test: what is asked here is whether the receipt brings the job home.
    patient = {"CALLKEEPER_KINDS": fleet.kinds(send_deadline=25)}
    sleeper = fleet.spawn(env=patient)
    job_id = fleet.picture("in flight")
    until(lambda: fleet.creates("in flight"), what="the create")
    sleeper.freeze()
    fleet.spawn(env=patient)
    fleet.until_event(job_id, "recovered")
    assert (fleet.status(job_id), fleet.job(job_id)["provider_task_id"]) == ("waiting", None)
    assert not fleet.rows("select 1 from callkeeper.call_receipts"), "nobody knows the task's id yet"

    sleeper.thaw()
    fleet.until_status(job_id, "completed", within=20)
    (receipt,) = fleet.rows("select source, provider_task_id as task from callkeeper.call_receipts")
    assert receipt == {"source": "late_create", "task": fleet.sandbox.bill()[0]["task_id"]}
    assert "checkpoint_call" in fleet.stale_writes()
    assert "call_adopted" in fleet.events(job_id)
    assert fleet.creates("in flight") == 1
    assert fleet.sandbox.stats()["rules"]["slow"] == 1
    assert fleet.charged(job_id) == ("committed", PICTURE)
    fleet.check()


@pytest.mark.slow
def test_a_frozen_process_loses_its_sync_call_and_says_so(fleet: Fleet) -> None:
    """Frozen while the paid request is open: its lease ends, the job fails by the table, the late answer is refused."""
    fleet.sandbox.script({"rules": [{"name": "slow", "when": {"route": "message"}, "do": {"reply_delay": 1}}]})
    sleeper = fleet.spawn()
    job_id = fleet.words("sync in flight")
    until(lambda: fleet.creates("sync in flight"), what="the call")
    sleeper.freeze()
    fleet.spawn()
    fleet.until_status(job_id, "failed")
    settled = fleet.job(job_id)
    assert settled["error_code"] == "reconcile_no_recovery"
    sleeper.thaw()
    until(lambda: "lease.lost" in sleeper.text(), what="the old holder giving up")
    assert fleet.job(job_id) == settled
    assert fleet.charged(job_id) == ("refunded", 0)
    assert fleet.creates("sync in flight") == 1
    fleet.check()
