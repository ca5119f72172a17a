"""Runs by the protocol of all probes: what their rows say, and where one that came to nothing goes on."""

import asyncio
from uuid import UUID, uuid4

from actors.probe import Found, follow
from actors.run_probe import RunProbe, continued_as
from tests.runs.kit import Run, step, submit
from tests.store.steps import Steps

PLAN = [step("a")]


def keyed(steps: Steps, **changes: str) -> Run:
    return submit(steps, PLAN, **{"idempotency_key": "k", "user_id": "ann", **changes})


def look(steps: Steps, run_id: UUID) -> tuple[Found, str]:
    verdict = asyncio.run(follow(RunProbe(steps.db), str(run_id)))
    return verdict.found, verdict.code


def test_a_run_is_what_its_row_says(steps: Steps) -> None:
    run = submit(steps, PLAN)
    assert look(steps, run.id) == (Found.RUNNING, "")
    run.fail("a")
    assert look(steps, run.id) == (Found.FAILED, "task_failed")
    done = submit(steps, PLAN)
    done.complete("a")
    assert look(steps, done.id) == (Found.SUCCEEDED, "")
    assert look(steps, uuid4()) == (Found.MISSING, "run_not_found")


def test_one_that_came_to_nothing_goes_on_as_the_run_that_has_its_key(steps: Steps) -> None:
    first = keyed(steps)
    assert continued_as(steps.db, first.id) is None
    first.fail("a")
    assert continued_as(steps.db, first.id) is None, "nobody used the key again"
    second = keyed(steps)
    second.fail("a")
    third = keyed(steps)
    for run in (first, second):
        went_on = continued_as(steps.db, run.id)
        assert went_on is not None
        assert (went_on[0], went_on[1].found) == (third.id, Found.RUNNING)
    third.complete("a")
    assert look(steps, first.id) == (Found.SUCCEEDED, "")
    assert continued_as(steps.db, third.id) is None


def test_somebody_elses_run_of_that_key_is_no_continuation(steps: Steps) -> None:
    run = keyed(steps)
    run.fail("a")
    keyed(steps, user_id="bob")
    keyed(steps, idempotency_key="other")
    submit(steps, PLAN)
    assert continued_as(steps.db, run.id) is None
