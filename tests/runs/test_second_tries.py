"""Out of memory, lost workers, calls that ended without a result: one larger machine, a budget of calls, none doubled."""

from typing import Any
from uuid import UUID

import pytest

from actors import run_watch
from actors.runs import Step
from store import rollout, run_outcomes
from tests.chaos.harness import Fleet, until
from tests.runs import film
from tests.runs.test_flow import film as film_step
from tests.runs.test_flow import read, scenes, submit, until_ended

MODULES = (film.__name__,)


def job_of(fleet: Fleet, run_id: UUID, step: str) -> Any:
    return next(one for one in read(fleet, run_id)["steps"] if one["step"] == step)


def decisions(fleet: Fleet, flag: str) -> list[tuple[bool, str]]:
    rows = fleet.rows(
        "select did, decision ->> 'act' as act from callkeeper.rollout_decisions where flag = :flag order by id",
        flag=flag,
    )
    return [(row["did"], row["act"]) for row in rows]


@pytest.mark.parametrize("fault", ["oom", "memory_error", "child_killed"])
def test_out_of_memory_goes_once_to_the_larger_machine(studio: Fleet, fault: str) -> None:
    steps = [Step("scene:1", "film.scene", {"prompt": f"dune {fault}"}), film_step(studio, ["scene:1"], fault=fault)]
    ended = until_ended(studio, submit(studio, steps))
    assert ended["status"] == "completed"
    joined = job_of(studio, ended["id"], "film")
    assert studio.events(joined["job_id"])[-4:] == ["escalated", "started", "call_started", "completed"]
    assert studio.job(joined["job_id"])["queue"] == "large"
    assert studio.creates(f"dune {fault}") == 1
    assert decisions(studio, "classified_retries") == [(True, "larger")]
    studio.check()


def test_what_does_not_fit_the_larger_machine_fails_by_name(studio: Fleet) -> None:
    ended = until_ended(studio, submit(studio, [film_step(studio, [], fault="always oom")]))
    assert (ended["status"], ended["failure_code"]) == ("failed", "out_of_memory")
    assert len(studio.started()) == 2
    studio.check()


def test_a_worker_lost_over_heavy_work_is_succeeded_by_a_larger_one(fleet: Fleet) -> None:
    doomed = fleet.spawn(modules=MODULES, queues=["calls", "results", "maintenance"])
    steps = [Step("scene:1", "film.scene", {"prompt": "mesa 1"}), film_step(fleet, ["scene:1"], fault="worker_killed")]
    run_id = submit(fleet, steps)
    doomed.until_dead(within=30)
    fleet.spawn(modules=MODULES, queues=["large", "calls", "results", "maintenance"])
    ended = until_ended(fleet, run_id)
    assert ended["status"] == "completed"
    joined = job_of(fleet, run_id, "film")
    assert (fleet.job(joined["job_id"])["queue"], joined["attempt"]) == ("large", 2)
    assert fleet.creates("mesa") == 1
    fleet.check()


@pytest.mark.parametrize("point", ["after_accept", "after_checkpoint", "after_upload"])
def test_a_worker_killed_around_a_create_never_creates_twice(fleet: Fleet, point: str) -> None:
    doomed = fleet.spawn(modules=MODULES, env={"CRASH_AT": point})
    run_id = submit(fleet, scenes(fleet, 1, f"cliff {point}"))
    doomed.until_dead(within=30)
    fleet.spawn(modules=MODULES)
    ended = until_ended(fleet, run_id, within=60)
    assert ended["status"] == "completed"
    assert fleet.creates("cliff") == 1
    queue = fleet.job(job_of(fleet, run_id, "scene:1")["job_id"])["queue"]
    # Only the import may have been too large; a create in flight is resolved where it was.
    assert queue == ("large" if point == "after_upload" else "calls")
    fleet.check()


def fails(studio: Fleet, containing: str, words: str, **more: Any) -> None:
    rule = {"when": {"route": "create", "contains": containing, **more}, "do": {"fail": words}}
    studio.sandbox.script({"rules": [rule]})


def test_a_call_that_ended_without_a_result_is_made_anew_within_its_budget(studio: Fleet) -> None:
    fails(studio, "reef", "CUDA error")
    ended = until_ended(studio, submit(studio, scenes(studio, 1, "reef")))
    assert (ended["status"], ended["failure_code"]) == ("failed", "task_failed")
    assert job_of(studio, ended["id"], "scene:1")["recreates"] == 2
    assert studio.creates("reef") == 3
    assert len(studio.rows("select from callkeeper.notices where run_id = :id", id=ended["id"])) == 1
    studio.check()


def test_a_second_call_that_succeeds_completes_the_run(studio: Fleet) -> None:
    fails(studio, "cove", "CUDA error", nth=[1])
    ended = until_ended(studio, submit(studio, scenes(studio, 1, "cove")))
    assert ended["status"] == "completed"
    assert studio.creates("cove") == 2
    studio.check()


def test_what_the_customer_must_change_is_not_tried_again(studio: Fleet) -> None:
    fails(studio, "gulf", "NSFW content detected")
    ended = until_ended(studio, submit(studio, scenes(studio, 1, "gulf")))
    assert (ended["status"], ended["failure_code"]) == ("failed", "content_policy")
    assert studio.creates("gulf") == 1
    studio.check()


@pytest.mark.parametrize(("mode", "told"), [("off", []), ("shadow", [(False, "recreate")])])
def test_a_flag_that_is_not_on_changes_nothing(fleet: Fleet, mode: str, told: list[Any]) -> None:
    fleet.db.once(rollout.set_flag, "classified_retries", mode)
    fleet.spawn(modules=MODULES)
    fails(fleet, "loch", "CUDA error")
    ended = until_ended(fleet, submit(fleet, scenes(fleet, 1, "loch")))
    assert (ended["status"], fleet.creates("loch")) == ("failed", 1)
    assert decisions(fleet, "classified_retries") == told
    gates = fleet.one("select * from callkeeper_audit.rollout_gates where flag = 'classified_retries'")
    assert (gates["mode"], gates["watched_failed"], gates["may_promote"]) == (mode, len(told), bool(told))
    fleet.check()


def test_a_late_success_completes_the_resumed_run_without_a_call(studio: Fleet) -> None:
    fails(studio, "fjord 2", "NSFW content detected")
    run_id = submit(studio, scenes(studio, 2, "fjord"))
    assert until_ended(studio, run_id)["status"] == "failed"
    late = job_of(studio, run_id, "scene:2")["job_id"]
    made = studio.creates("fjord")

    class Home:
        """What `came_home_late` asks of a process."""

        db = studio.db
        flags = type("On", (), {"of": staticmethod(lambda *_: "on")})()

    from actors.rollout import Rollout

    Home.flags.of = lambda *_: Rollout.ON
    assert run_watch.came_home_late(Home, late, result={"usage": {}}, assets=(), keep=lambda _: True)  # type: ignore[arg-type]
    ended = until_ended(studio, run_id)
    assert (ended["status"], ended["round"]) == ("completed", 1)
    again = job_of(studio, run_id, "scene:2")
    assert (again["result"], again["charged"], again["call_generation"]) == ({"usage": {}}, 0, 0)
    assert studio.creates("fjord") - made in (0, 1)  # scene:1, if it had been stopped
    studio.check()


def test_other_runs_outcomes_are_used_only_where_it_was_allowed(studio: Fleet) -> None:
    until_ended(studio, submit(studio, scenes(studio, 1, "tarn")))
    fresh = until_ended(studio, submit(studio, scenes(studio, 1, "tarn")))
    assert (fresh["status"], studio.creates("tarn")) == ("completed", 2)
    reused = until_ended(studio, submit(studio, scenes(studio, 1, "tarn"), reuse=True))
    assert (reused["status"], studio.creates("tarn")) == ("completed", 2)
    one, other = (job_of(studio, run["id"], "scene:1")["result"]["media"][0] for run in (fresh, reused))
    assert one["sha256"] == other["sha256"]
    assert one["object_key"] != other["object_key"]
    assert job_of(studio, reused["id"], "scene:1")["charged"] == 0
    somebody = until_ended(studio, submit(studio, scenes(studio, 1, "tarn"), reuse=True, user_id="bob"))
    assert (somebody["status"], studio.creates("tarn")) == ("completed", 3)
    assert studio.violations() == []


def test_a_runs_own_outcome_is_used_whatever_it_was_asked_for(studio: Fleet) -> None:
    """A crash after the import was kept and before it was settled, as the row stands then."""
    run_id = submit(studio, [Step("plan", "film.plan", {"scenes": ["skerry"], "starts": str(studio.starts)})])
    ended = until_ended(studio, run_id)
    key = job_of(studio, run_id, "scene:1")["operation_key"]
    kept = studio.db.once(run_outcomes.find_run_recovery_asset, run_id=run_id, operation_key=key)
    assert kept is not None
    assert kept.result == job_of(studio, run_id, "scene:1")["result"]
    assert studio.db.once(
        run_outcomes.find_run_recovery_asset, run_id=UUID(int=1), operation_key=key
    ) is None  # fmt: skip
    assert ended["status"] == "completed"
    until(lambda: studio.creates("skerry") == 1, what="one create")
