"""SIGKILL at each named point, for each kind of work: the right end by the recovery table, and never a second bill.

All cases run side by side, each with a database, a worker that dies and a worker that finds what is left; each test
then asserts on what became of its case.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from providers.sandbox import Sandbox
from tests.chaos.harness import Fleet, database, until
from tests.chaos.kit import CHORE, PICTURE, WORDS

AT_ONCE = 7


@dataclass(frozen=True)
class Case:
    """`creates` is exact: what the provider's own bill must say, or, for a chore, how often it was started."""

    job_type: str
    point: str
    creates: int
    status: str = "completed"
    attempt: int = 1
    error: str | None = None
    events: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.job_type}-{self.point}"


UNKNOWN: dict[str, Any] = {"status": "failed", "error": "reconcile_no_recovery"}
LOST: dict[str, Any] = {"status": "failed", "error": "worker_lost"}
CASES = [
    Case("picture", "after_claim", creates=1, attempt=2, events=("recovered",)),
    Case("picture", "after_intent", creates=0, **UNKNOWN),
    Case("picture", "after_accept", creates=1, events=("recovered", "call_adopted")),
    Case("picture", "after_checkpoint", creates=1, events=("call_accepted",)),
    Case("picture", "mid_poll", creates=1),
    Case("picture", "after_result", creates=1, events=("recovered",)),
    Case("picture", "after_upload", creates=1, events=("recovered",)),
    Case("picture", "after_settle", creates=1),
    Case("words", "after_claim", creates=1, attempt=2, events=("recovered",)),
    Case("words", "after_intent", creates=0, **UNKNOWN),
    Case("words", "after_accept", creates=1, **UNKNOWN),
    Case("words", "after_result", creates=1, **UNKNOWN),
    Case("words", "after_settle", creates=1),
    Case("words-again", "after_intent", creates=1, attempt=2, events=("recovered",)),
    # The app said that a second run does no harm, so here, and only here, the provider sees two.
    Case("words-again", "after_accept", creates=2, attempt=2, events=("recovered",)),
    Case("chore", "after_claim", creates=1, attempt=2, events=("recovered",)),
    Case("chore", "after_intent", creates=0, **LOST),
    Case("chore", "after_settle", creates=1),
    Case("chore-again", "after_intent", creates=1, attempt=2, events=("recovered",)),
    Case("chore-again", "after_settle", creates=1),
]
PRICES = {"picture": PICTURE, "words": WORDS, "words-again": WORDS, "chore": CHORE, "chore-again": CHORE}


@dataclass(frozen=True)
class End:
    """What there was to see of one case when its job had ended and every message was gone."""

    job: dict[str, Any]
    events: list[str]
    credits: tuple[str, int]
    creates: int
    fired: int
    epoch_at_kill: int
    receipts: int


def run(case: Case, url: str, sandbox: Sandbox, folder: Path) -> End:
    with Fleet(url, sandbox, folder, {"CALLKEEPER_LEASE": "3"}) as fleet:
        doomed = fleet.spawn(threads=2, env={"CRASH_AT": case.point})
        prompt = f"kill {case}."
        asked = {"starts": str(fleet.starts)} if case.job_type.startswith("chore") else {"prompt": prompt}
        job_id = fleet.submit(case.job_type, **asked)
        try:
            fleet.until_fired(case.point)
            doomed.until_dead()
            epoch = fleet.job(job_id)["epoch"]
            fleet.spawn(threads=2)
            fleet.until_status(job_id, case.status, within=30)
            # What the dead process had taken from the queue comes back; here at once instead of after its 20 seconds.
            fleet.do("delete from dramatiq.worker where heartbeat_at < now() - interval '6 seconds'")
            fleet.do("update dramatiq.queue set state = 'queued', worker_id = null where state = 'consumed'")
            until(lambda: not fleet.rows("select 1 from dramatiq.queue"), what="the end of all messages")
            fleet.check()
            return End(
                job=dict(fleet.job(job_id)),
                events=fleet.events(job_id),
                credits=fleet.charged(job_id),
                creates=len(fleet.started()) if case.job_type.startswith("chore") else fleet.creates(prompt),
                fired=fleet.fired(case.point, job_id),
                epoch_at_kill=epoch,
                receipts=fleet.one("select count(*) as n from callkeeper.call_receipts")["n"],
            )
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}\n{fleet.tail()}") from error


@pytest.fixture(scope="module")
def ends(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Case, Future[End]]]:
    folder = tmp_path_factory.mktemp("kill")
    _one_sandbox.reset()

    def begin(case: Case) -> End:
        with database(server.url, server.url_of, template) as url:
            return run(case, url, _one_sandbox, folder / str(case))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {case: pool.submit(begin, case) for case in CASES}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_the_instant_the_job_comes_home(case: Case, ends: dict[Case, Future[End]]) -> None:
    end = ends[case].result(120)
    assert end.fired >= 1, "the worker was killed at this very point"
    assert end.creates == case.creates
    assert (end.job["status"], end.job["error_code"], end.job["attempt"]) == (case.status, case.error, case.attempt)
    assert end.credits == (("committed", PRICES[case.job_type]) if case.status == "completed" else ("refunded", 0))
    assert end.events.count(case.status) == 1
    assert end.events[-1] == case.status
    assert set(case.events) <= set(end.events)
    assert end.receipts == (case.status == "completed" and not case.job_type.startswith("chore"))


def test_settled_is_settled(ends: dict[Case, Future[End]]) -> None:
    """Killed between settlement and acknowledgement: the message comes back and finds nothing to do."""
    for case in (one for one in CASES if one.point == "after_settle"):
        end = ends[case].result(120)
        assert end.job["epoch"] == end.epoch_at_kill, "nobody claimed it again"
