"""Plans that cannot work are refused before anything is written, by name; clients get two shapes."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from actors import steps as plan
from actors.runs import Step, response, submit_run
from actors.tour import jobs as tour_jobs  # noqa: F401  # registers them
from actors.tour import orders
from store import settle
from store.errors import InvalidRequest, PlanRefused, SubmitRefused
from store.models import Settlement
from store.states import State
from tests.runs import film  # registers the job types
from tests.runs.kit import step, submit
from tests.store.steps import Steps
from tests.tour.studio import tour

SCENE = {"prompt": "x"}


def scene(name: str = "scene:1", **more: Any) -> Step:
    return Step(name, "film.scene", SCENE, **more)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([], "0 steps"),
        ([scene() for _ in range(501)], "501 steps"),
        ([scene(), scene()], "two steps have this name"),
        ([scene("Scene 1")], "names are lower case"),
        ([scene("a" * 41)], "names are lower case"),
        ([scene(depends_on=["scene:2"])], "'scene:2', which is no step"),
        ([scene("a", depends_on=["b"]), scene("b", depends_on=["a"])], "circle"),
        ([scene("a", depends_on=["a"])], "circle"),
        ([Step("a", "no.such.type", {})], "not registered"),
        ([Step("a", "film.scene", {"words": 1})], "prompt"),
        ([Step("a", "film.scene", {"prompt": "x", "api_key": "1"})], "api_key"),
    ],
)
def test_a_plan_that_cannot_work_is_refused_by_name(asked: list[Step], words: str) -> None:
    with pytest.raises(SubmitRefused, match=words):
        submit_run(None, "film", asked, account_id="payer")  # type: ignore[arg-type]  # it is refused before


@pytest.mark.parametrize(
    ("node", "run"), [(timedelta(minutes=121), timedelta(minutes=120)), (timedelta(0), timedelta(minutes=1))]
)
def test_a_step_may_not_be_allowed_longer_than_its_run(node: timedelta, run: timedelta) -> None:
    with pytest.raises(ValueError, match="at most the run's deadline"):
        submit_run(None, "film", [scene()], node_deadline=node, deadline=run)  # type: ignore[arg-type]


def test_a_step_whose_provider_may_work_longer_is_refused() -> None:
    """Its deadline would give up work that is being paid for: that has to be meant."""
    asked = {"type": "avatar", "avatar_id": "a", "voice_id": "v", "script": "hello", "aspect_ratio": "16:9"}
    video = Step("avatar", "heygen-video", asked)
    more = {"account_id": None, "user_id": None}
    with pytest.raises(
        PlanRefused, match=r"steps\.avatar: heygen-video may run 2:00:00, a step of this run 1:30:00.*node_deadline"
    ):
        plan.prepare(video, node_limit=plan.NODE_DEADLINE, **more)  # type: ignore[arg-type]
    assert plan.prepare(video, node_limit=timedelta(hours=2), **more).run_limit == timedelta(hours=2)  # type: ignore[arg-type]


def test_every_step_of_a_tour_has_the_time_that_it_may_need() -> None:
    for one in orders.steps(tour("in time", optional=[2])):
        plan.prepare(one, user_id=None, account_id="payer", node_limit=plan.NODE_DEADLINE)


def test_the_defaults_are_ninety_and_a_hundred_and_twenty_minutes() -> None:
    assert (timedelta(minutes=90), timedelta(minutes=120)) == (plan.NODE_DEADLINE, plan.RUN_DEADLINE)


@pytest.mark.parametrize("email", ["nobody", "a@b, c@d", "a b@c", "<a@b>", "a@b\n", "@" * 400, ""])
def test_an_address_that_is_not_one_plain_address_is_refused(email: str) -> None:
    with pytest.raises(InvalidRequest, match="email"):
        submit_run(None, "film", [scene()], email=email)  # type: ignore[arg-type]


def test_a_run_has_one_payer(steps: Steps) -> None:
    account = steps.account(subscription=100)
    with steps.db.engine.begin() as connection:
        made = submit_run(connection, "film", [scene()], user_id="ann", account_id=account)
    row = steps.one("select * from callkeeper.runs where id = :id", id=made.run_id)
    assert (row["account_id"], row["user_id"], row["result_step"]) == (account, "ann", "scene:1")
    assert steps.pools(account)["reserved"] == (film.SCENE, 0)


def test_the_same_request_has_the_same_key_and_another_has_another() -> None:
    keys = [
        plan.prepare(one, user_id="u", account_id="a", node_limit=timedelta(minutes=90)).place.operation_key  # type: ignore[union-attr]
        for one in (scene(), scene(), Step("scene:1", "film.scene", {"prompt": "y"}), scene("scene:2"))
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert keys[0].startswith("scene:1:")


def test_steps_added_twice_are_the_same_steps(steps: Steps) -> None:
    run = submit(steps, [step("plan"), step("other")], result_step="film")
    more = [step("scene"), step("film", needs=["scene", "plan"])]
    placed = [replace(one, place=one.place and replace(one.place, run_id=run.id)) for one in more]
    for name in ("plan", "other"):
        lease = run.claim(name).lease
        steps.db.transact(settle.complete, lease, Settlement(State.COMPLETED, result={}, steps=placed))
    assert sorted(run.states()) == ["film", "other", "plan", "scene"]
    assert run.ready() == {"scene"}
    run.complete("scene")
    assert run.ready() == {"film"}
    assert steps.violations() == []


RUN: dict[str, Any] = {
    "id": uuid4(), "status": "completed", "quality": "degraded", "progress": 1.0, "failure_code": None, "result_step": "film",
    "steps": [{"step": "film", "result": {"media": [{"object_key": "media/film"}]}}],
    "warnings": [
        {"code": "scene_dropped", "stage": "join", "severity": "warning", "customer_visible": True, "details": {"scene": 2}},
        {"code": "machine", "stage": "join", "severity": "info", "customer_visible": False, "details": {}},
    ],
}  # fmt: skip


def test_the_answer_of_a_completed_run() -> None:
    assert response(RUN) == {
        "status": "completed",
        "result": {
            "assetId": "media/film",
            "quality": "degraded",
            "warnings": [
                {
                    "code": "scene_dropped", "stage": "join", "severity": "warning", "customerVisible": True,
                    "details": {"scene": 2},
                }
            ],
        },
        "error": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "shown"), [("failed", "failed"), ("timed_out", "failed"), ("cancelled", "cancelled")]
)
def test_the_answer_of_a_run_that_did_not_complete(status: str, shown: str) -> None:
    answer = response({**RUN, "status": status, "failure_code": "provider_credits_exhausted"})
    assert (answer["status"], answer["result"], answer["error"]["code"]) == (shown, None, "PROVIDER_CREDITS_EXHAUSTED")
    assert answer["error"]["message"]


def old_client(answer: dict[str, Any]) -> str:
    """It was written before there was quality: status, the asset, or the message."""
    if answer["status"] == "completed":
        return str(answer["result"]["assetId"])
    return "wait" if answer["status"] == "running" else str(answer["error"]["message"])


def test_an_old_client_reads_both() -> None:
    assert old_client(response(RUN)) == "media/film"
    assert old_client(response({**RUN, "status": "running"})) == "wait"
    assert "start it again" in old_client(response({**RUN, "status": "failed", "failure_code": "task_failed"}))


def test_a_refusal_is_a_plan_refused() -> None:
    with pytest.raises(PlanRefused) as refused:
        plan.check([scene(depends_on=["x"])])
    assert refused.value.step == "scene:1"
