"""A late success of the step that was the sole cause of a run's failure: kept, and the run goes on with it."""

from uuid import UUID

import pytest

from actors import run_watch
from store import budgets, runs, settle
from store.models import NewJob
from tests.passes.conftest import Stand
from tests.passes.kit import POSTER
from tests.passes.test_late import GONE, aftercare
from tests.runs.kit import Run, new_run, step

PAID = {"mode": "async", "actor": "start_call", "provider_kind": "replicate-prediction", "price": POSTER}


def shot(stand: Stand, name: str, *, needs: tuple[str, ...] = ()) -> NewJob:
    request = {"model": "acme/draw", "input": {"prompt": f"{name} of a pier"}}
    return step(name, needs=needs, job_type="placard", request=request, account_id=stand.account, **PAID)


def started(stand: Stand, *more: NewJob) -> tuple[Run, UUID]:
    """`a` waits for its task, which runs on; `b` needs it."""
    plan = [*more, shot(stand, "a"), shot(stand, "b", needs=("a",))]
    run = Run(stand.steps, stand.rt.db.transact(runs.create, new_run(plan, account_id=stand.account), plan))
    stand.sandbox.script({"defaults": {"run_seconds": 10_000, "webhook": "off"}})
    return run, stand.start(run.jobs["a"])


def give_up(stand: Stand) -> None:
    stand.steps.by_hand("update callkeeper.jobs set next_poll_at = now() where status = 'waiting'")
    (due,) = stand.steps.due(kinds=["replicate-prediction"])
    stand.rt.db.transact(settle.end_polled, due.lease, GONE, upstream_ended=True)


def failed(stand: Stand) -> tuple[Run, UUID]:
    """`a` was given up as lost while its task runs on; `b` never ran."""
    run, first = started(stand)
    give_up(stand)
    assert run.status == "failed"
    return run, first


def finish_up(stand: Stand, run: Run, first: UUID) -> None:
    """The resumed run completes: its late step without a call or a charge, the other one as ever."""
    assert (run.status, run.read()["round"]) == ("running", 1)
    again = stand.rt.db.once(runs.jobs_of, run.id)
    assert again["a"] != first
    stand.start(again["a"])
    assert stand.end(again["a"]) == ("completed", None)
    assert stand.creates() == 1, "its task was paid for once"
    stand.start(again["b"])
    stand.finish(again["b"])
    stand.poll(again["b"])
    assert run.status == "completed"
    assert [stand.credits(job) for job in (first, again["a"], again["b"])] == [
        ("refunded", 0), ("committed", 0), ("committed", POSTER),
    ]  # fmt: skip


def test_the_run_goes_on_with_what_came_home_late(stand: Stand) -> None:
    run, first = failed(stand)
    stand.finish(first)
    assert aftercare(stand)["recovered"] == 1
    finish_up(stand, run, first)


def test_a_run_with_no_room_to_queue_is_resumed_once_there_is(stand: Stand) -> None:
    run, first = failed(stand)
    stand.rt.db.once(budgets.set_budget, "queued", "global", "", at_most=1, per=None, by="test")
    stand.submit()
    stand.finish(first)
    assert aftercare(stand)["recovered"] == 1
    assert (run.status, stand.alerts()) == ("failed", {}), "kept; nobody need be told"
    assert stand.steps.count("callkeeper.standalone_assets") == 1
    stand.deliver()
    assert run.status == "failed"
    stand.rt.db.once(budgets.remove_budget, "queued", "global", "", by="test")
    stand.steps.by_hand("update callkeeper.consequences set available_at = now()")
    stand.deliver()
    finish_up(stand, run, first)
    assert stand.steps.count("callkeeper.consequences", "effect = 'resume_run' and delivered_at is not null") == 1


def test_an_outcome_kept_before_the_end_resumes_the_run_as_well(stand: Stand) -> None:
    """The result was kept, and then its worker died before it settled."""
    run, first = failed(stand)
    stand.steps.by_hand(
        "insert into callkeeper.run_outcomes (run_id, operation_key, job_id, result, assets, cost)"
        " select run_id, operation_key, id, '{\"usage\": {}}', '[]', null from callkeeper.jobs where id = :id",
        id=first,
    )
    stand.finish(first)
    assert aftercare(stand)["recovered"] == 1
    assert (run.status, run.read()["round"]) == ("running", 1)


def test_a_run_that_is_not_resumed_later_either_is_told_of(stand: Stand) -> None:
    run, first = failed(stand)
    stand.finish(first)
    stand.steps.by_hand(
        "update callkeeper.accounts set granted_subscription = granted_subscription - balance_subscription,"
        " granted_topup = granted_topup - balance_topup, balance_subscription = 0, balance_topup = 0"
    )
    aftercare(stand)
    assert (run.status, stand.alerts()) == ("failed", {"run_not_resumed": 1})
    run_watch.resume_owed(stand.rt, first)
    assert stand.alerts() == {"run_not_resumed": 2}


@pytest.mark.parametrize("spoiled", ["cancelled", "failed"])
def test_several_causes_or_a_stop_leave_the_run_as_it_is(stand: Stand, spoiled: str) -> None:
    run, first = started(stand, step("c"))
    if spoiled == "cancelled":
        stand.rt.db.transact(runs.request_stop, run.id)
    else:
        held = run.claim("c").lease
        give_up(stand)
        run.fail("c", lease=held)
    assert run.status == spoiled
    stand.finish(first)
    assert aftercare(stand)["recovered"] == 1
    assert (run.status, run.read()["round"]) == (spoiled, 0)
    assert stand.steps.count("callkeeper.standalone_assets") == 1, "the file is the user's all the same"
