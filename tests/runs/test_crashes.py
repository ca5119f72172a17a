"""A connection that is killed before any statement of a settlement leaves nothing half done, and the next try is whole."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

from store import resume, runs, settle
from store.models import Settlement, StepWarning
from store.states import State
from tests.runs.kit import Run, diamond, step, submit
from tests.store.steps import Steps, pid_of

TABLES = (
    "runs", "jobs", "usage_logs", "accounts", "job_events", "run_events", "notices", "run_warnings", "run_outcomes",
    "consequences", "job_signals", "assets",
)  # fmt: skip


class Killed(Exception):
    """This statement was the one to die at."""


@contextmanager
def dying_at(steps: Steps, number: int) -> Iterator[list[str]]:
    """The connection is terminated by the server just before its `number`-th statement. The statements that ran."""
    seen: list[str] = []
    killer = steps.db.engine

    def before(connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if connection.info.get("killer"):
            return
        seen.append(statement)
        if len(seen) == number:
            victim = connection.connection.driver_connection.info.backend_pid
            with killer.connect() as other:
                other.info["killer"] = True
                other.execute(sa.text("select pg_terminate_backend(:pid)"), {"pid": victim})
                other.rollback()
                other.info.pop("killer")

    event.listen(killer, "before_cursor_execute", before)
    try:
        yield seen
    finally:
        event.remove(killer, "before_cursor_execute", before)


def everything(steps: Steps) -> dict[str, list[Any]]:
    return {
        table: [dict(row) for row in steps.all(f"select * from callkeeper.{table} order by 1, 2")] for table in TABLES
    }


def last_step(steps: Steps) -> tuple[Run, Callable[[sa.Connection], Any]]:
    run = submit(steps, [step("a"), step("b", optional=True)])
    run.fail("b")
    lease = run.claim("a").lease
    done = Settlement(State.COMPLETED, result={}, warnings=[StepWarning("x", quality="repaired")])
    return run, lambda connection: settle.complete(connection, lease, done)


def failing(steps: Steps) -> tuple[Run, Callable[[sa.Connection], Any]]:
    account = steps.account(subscription=100)
    run = submit(steps, diamond(account_id=account, price=5), account_id=account)
    lease = run.claim("scene:1").lease
    failed = Settlement(State.FAILED, error_code="task_failed")
    return run, lambda connection: settle.end_held(connection, lease, failed)


def releasing(steps: Steps) -> tuple[Run, Callable[[sa.Connection], Any]]:
    run = submit(steps, [step("a"), step("b", needs=["a"])])
    lease = run.claim("a").lease
    return run, lambda connection: settle.complete(connection, lease, Settlement(State.COMPLETED, result={}))


def stopping(steps: Steps) -> tuple[Run, Callable[[sa.Connection], Any]]:
    run = submit(steps, diamond())
    return run, lambda connection: runs.request_stop(connection, run.id)


def resuming(steps: Steps) -> tuple[Run, Callable[[sa.Connection], Any]]:
    run = submit(steps, diamond())
    run.fail("scene:1")
    late = run.jobs["scene:1"]
    return run, lambda connection: resume.come_home_late(connection, late, result={}, assets=(), resumes=True)


ENDINGS = {
    "last_step": last_step,
    "failing": failing,
    "releasing": releasing,
    "stopping": stopping,
    "resuming": resuming,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_no_statement_leaves_half_a_state(steps: Steps, ending: str) -> None:
    run, act = ENDINGS[ending](steps)
    before = everything(steps)
    number, died = 0, True
    while died:
        number += 1
        died = False
        try:
            with dying_at(steps, number) as seen, steps.db.engine.begin() as connection:
                assert pid_of(connection)
                act(connection)
        except DBAPIError:
            died = True
        if died:
            assert everything(steps) == before, f"statement {number} ({seen[-1][:60]}) left something behind"
            assert steps.violations() == []
    assert number > 4
    assert everything(steps) != before
    assert steps.violations() == []
    assert run.status in {"completed", "failed", "running", "cancelled"}
