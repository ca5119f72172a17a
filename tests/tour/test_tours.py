"""Tours, good and otherwise, rendered side by side by one worker: quality, warnings, creates, credits, notices."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from actors.tour import orders
from providers.sandbox import Sandbox
from store import rollout
from tests.chaos.harness import Fleet, database
from tests.tour.studio import (
    AS_LONG_AS_PLANNED,
    FILM,
    MODULES,
    PRICE,
    Render,
    environment,
    order,
    plan,
    rule,
    script,
    tour,
)

ALL = 3 * PRICE + 2 * orders.AVATAR_CREDITS + 1  # credits: three scenes, a greeting, a voice-over


def scenes(name: str, **first: Any) -> list[dict[str, Any]]:
    made = plan(name)["scenes"]
    return [{**made[0], **first}, *made[1:]]


def broken(name: str) -> list[dict[str, Any]]:
    """The first scene asks for a move that nobody makes."""
    return scenes(name, camera="drone")


MENDED = json.dumps(plan("mendable"))
WORSE = json.dumps({**plan("hopeless"), "scenes": scenes("hopeless", camera="drone", seconds=99)})
RULES = (
    rule("create", "short scene 2", film={**FILM, "seconds": 1.7}),
    rule("create", "cut scene 2", film={**FILM, "seconds": 1.0}),
    rule("create", "clipped scene 2", nth=[1], film={**FILM, "seconds": 1.0}),
    rule("create", "lacking scene 2", fail="the model could not make it"),
    rule("download", "torn scene 1", nth=[1], download="truncated"),
    rule("create", "faceless greets", fail="the avatar is broken"),
    rule("create", "lipless greets", film={**FILM, "sound_extra": 0.6}),
    rule("create", "strict greets", film={**FILM, "sound_extra": 0.6}),
    rule("create", "needful greets", fail="the avatar is broken"),
    rule("message", '"text":"wordy', film={"seconds": 4.3}),
    rule("message", '"text":"lacking', film={"seconds": 6.0}),
    rule("message", "mendable scene", text=MENDED),
    rule("message", "hopeless scene", text=WORSE),
)
TOURS = (
    tour("plain"),
    tour("short"),
    tour("cut"),
    tour("clipped"),
    tour("lacking", count=4, optional=[2]),
    tour("torn"),
    tour("faceless"),
    tour("lipless"),
    tour("needful", avatar={**plan("needful")["avatar"], "optional": False}),
    tour("strict", avatar={**plan("strict")["avatar"], "optional": False}),
    tour("wordy"),
    tour("mendable", scenes=broken("mendable")),
    tour("hopeless", scenes=broken("hopeless")),
    tour("photoless", scenes=scenes("photoless", photo="front")),
    tour("cramped", frame={"width": 192, "height": 108, "rate": 24}),
)


@pytest.fixture(scope="module")
def fleet(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("tours")
    faults = {"TOUR_FAULTS": str(folder), "TOUR_KILL_CHILD": "192:108"}
    _one_sandbox.reset()
    with (
        database(server.url, server.url_of, template) as url,
        Fleet(url, _one_sandbox, folder / "fleet", {**environment(_one_sandbox), **faults}) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def renders(fleet: Fleet, request: pytest.FixtureRequest) -> Mapping[str, Render]:
    """The tours of all tests that are run, ordered at once."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    wanted = {call.params.get("render") for call in calls} | {"plain"}
    fleet.sandbox.script(script(*RULES, *AS_LONG_AS_PLANNED))
    ordered = {asked.plan.title: order(fleet, asked) for asked in TOURS if asked.plan.title in wanted}
    fleet.spawn(threads=4, modules=MODULES)
    return ordered


@pytest.fixture
def render(renders: Mapping[str, Render], request: Any) -> Render:
    return renders[request.param]


def one(name: str) -> Any:
    return pytest.mark.parametrize("render", [name], indirect=True)


def failed_honestly(render: Render, code: str, *, charged: int, creates: int) -> None:
    """A failure: no result, one settlement, one notice, everything that did not finish is paid back."""
    assert render.fate[0::2] == ("failed", code)
    assert render.answer["result"] is None
    assert render.answer["error"]["code"] == code.upper()
    assert render.notices() == [f"render-failed-email:{render.id}"]
    assert (render.settlements(), render.charged(), render.creates()) == (1, charged, creates)


def completed(render: Render, quality: str, *warnings: str, charged: int = ALL, creates: int = 5) -> None:
    assert render.fate == ("completed", quality, None)
    assert render.warnings == set(warnings)
    assert render.answer["result"]["quality"] == quality
    assert render.notices() == []
    assert (render.settlements(), render.charged(), render.creates()) == (1, charged, creates)


@one("plain")
def test_a_good_plan_becomes_a_tour(render: Render, tmp_path: Path) -> None:
    completed(render, "standard")
    assert render.film(tmp_path) == pytest.approx(6, abs=0.1)
    assert render.result(orders.FINAL)["greeted"] is True


@pytest.mark.slow
@one("short")
def test_a_scene_that_is_a_little_short_is_repaired(render: Render, tmp_path: Path) -> None:
    completed(render, "repaired", "media_repaired")
    assert render.answer["result"]["warnings"] == []
    assert render.film(tmp_path) == pytest.approx(6, abs=0.1)


@one("cut")
def test_a_needed_scene_that_is_cut_short_each_time_fails_the_tour_and_keeps_the_others(render: Render) -> None:
    """It is made a second time, at our cost, and there is no third."""
    failed_honestly(render, "media_unusable", charged=ALL, creates=5 + 1)
    assert render.ended["failed_nodes"] == [orders.JOINED_AGAIN]
    assert [status for step, status in render.steps().items() if step.startswith("scene")] == ["completed"] * 4


@one("clipped")
def test_a_needed_scene_that_cannot_be_used_is_made_once_more_at_our_cost(render: Render, tmp_path: Path) -> None:
    completed(render, "repaired", "scene_made_again", creates=5 + 1)
    assert render.answer["result"]["warnings"] == []
    assert render.result(orders.JOINED) == {"again": {"s2": "too_short"}}
    assert render.film(tmp_path) == pytest.approx(6, abs=0.1)
    told = render.fleet.rows(
        "select did from callkeeper.rollout_decisions where run_id = :id and flag = 'classified_retries'", id=render.id
    )
    assert told == [{"did": True}]


@one("lacking")
def test_an_optional_scene_may_be_missing(render: Render, tmp_path: Path) -> None:
    # Its provider says each time that the call has ended, so it is made anew, twice and no more.
    completed(
        render,
        "degraded",
        "step_failed",
        "scene_dropped",
        *(render.warnings & {"picture_stretched", "media_repaired"}),
        creates=3 + 3 + 2,
    )
    assert {one["code"] for one in render.answer["result"]["warnings"]} >= {"scene_dropped"}
    assert list(render.result(orders.JOINED)["scenes"]) == ["s1", "s3", "s4"]
    assert render.film(tmp_path) > 6


@pytest.mark.slow
@one("torn")
def test_a_file_that_came_cut_is_fetched_again_and_not_paid_again(render: Render) -> None:
    completed(render, "standard")


@pytest.mark.slow
@one("faceless")
def test_a_tour_goes_on_without_its_avatar(render: Render, tmp_path: Path) -> None:
    assert "step_failed" in render.warnings
    paid = ALL - 2 * orders.AVATAR_CREDITS
    completed(render, "degraded", *render.warnings, charged=paid, creates=5 + 2)
    assert render.result(orders.FINAL)["greeted"] is False
    assert render.film(tmp_path) > 4


@pytest.mark.slow
@one("lipless")
def test_an_avatar_whose_lips_are_apart_is_left_out(render: Render, tmp_path: Path) -> None:
    assert "avatar_dropped" in render.warnings
    completed(render, "degraded", *render.warnings)
    assert render.result(orders.FINAL)["greeted"] is False
    assert render.film(tmp_path) > 4


@pytest.mark.slow
@one("strict")
def test_a_needed_avatar_whose_lips_are_apart_fails_the_tour(render: Render) -> None:
    failed_honestly(render, "media_unusable", charged=ALL, creates=5)
    assert render.ended["failed_nodes"] == [orders.FINAL]


@pytest.mark.slow
@one("needful")
def test_a_needed_avatar_that_fails_fails_the_tour(render: Render) -> None:
    """What its other calls had come to by then is charged, and nothing else."""
    paid = {
        orders.AVATAR: 2 * orders.AVATAR_CREDITS,
        orders.VOICE: 1,
        **{step: PRICE for step in render.steps() if step.startswith("scene")},
    }
    done = sum(paid[step] for step, status in render.steps().items() if status == "completed" and step in paid)
    failed_honestly(render, "task_failed", charged=done, creates=render.creates())
    assert render.steps()[orders.AVATAR] == "failed"
    assert render.ended["failed_nodes"] == [orders.AVATAR]
    assert render.creates() <= 5 + 2


@pytest.mark.slow
@one("wordy")
def test_words_that_are_too_many_are_hurried_and_said_so(render: Render, tmp_path: Path) -> None:
    completed(render, "degraded", "speech_hurried")
    assert render.film(tmp_path) == pytest.approx(6, abs=0.1)


@one("mendable")
def test_a_plan_is_mended_before_anything_is_rendered(render: Render, tmp_path: Path) -> None:
    completed(render, "repaired", "plan_repaired", creates=6, charged=ALL + 2)
    assert render.result(orders.PLAN)["problems"] != []
    assert render.film(tmp_path) == pytest.approx(6, abs=0.1)


@one("hopeless")
def test_a_repair_that_makes_it_worse_is_refused(render: Render) -> None:
    failed_honestly(render, "plan_unfixable", charged=2, creates=1)
    assert list(render.steps()) == [orders.PLAN, orders.PLAN_REPAIR, orders.PLAN_MENDED]


@one("photoless")
def test_a_plan_that_can_never_pass_fails_before_any_money(render: Render) -> None:
    failed_honestly(render, "listing_photos_missing", charged=0, creates=0)
    assert list(render.steps()) == [orders.PLAN]


@one("cramped")
def test_work_whose_child_is_killed_goes_once_to_a_larger_machine(render: Render) -> None:
    completed(render, "standard")
    assert render.events(orders.JOINED).count("escalated") == 1
    row = render.fleet.one(
        "select queue, attempt from callkeeper.jobs where run_id = :id and step = :step",
        id=render.id, step=orders.JOINED,
    )  # fmt: skip
    assert row == {"queue": "large", "attempt": 2}


def test_the_books_agree_with_all_of_it(renders: Mapping[str, Render]) -> None:
    assert all(render.settlements() == 1 for render in renders.values() if render.ended)
    fleet = renders["plain"].fleet
    assert fleet.violations() == []
    billed = fleet.sandbox.bill()
    assert len({entry["task_id"] for entry in billed}) == len(billed)


@pytest.mark.slow
@one("plain")
def test_another_tours_scenes_are_used_only_where_the_customer_allows_it(render: Render, tmp_path: Path) -> None:
    """The same tour three times: fresh means that all of it is bought anew, reuse that nothing is."""
    completed(render, "standard")
    fresh = order(render.fleet, tour("plain"), key="plain, fresh")
    completed(fresh, "standard", creates=10)
    again = order(render.fleet, tour("plain"), key="plain, again", reuse=True)
    completed(again, "standard", creates=10, charged=0)
    assert again.answer["result"]["assetId"] != fresh.answer["result"]["assetId"]
    assert again.film(tmp_path) == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize(
    "mode", ["shadow", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("off", "canary"))]
)
def test_what_is_not_switched_on_is_not_done(renders: Mapping[str, Render], mode: str) -> None:
    """Shadow writes down what it would have done; a canary of none of the runs is off."""
    fleet = renders["plain"].fleet
    assert all(render.ended for render in renders.values())
    for flag in ("salvage", "plan_repair", "classified_retries"):
        fleet.db.once(rollout.set_flag, flag, mode, percent=0)
    rule_of_two = rule("create", f"unsalvaged-{mode} scene 2", film={**FILM, "seconds": 1.7})
    cut_short = rule("create", f"unremade-{mode} scene 2", film={**FILM, "seconds": 1.0})
    fleet.sandbox.script(script(rule_of_two, cut_short, *AS_LONG_AS_PLANNED))
    name = f"unmended-{mode}"
    # Flags are remembered for a moment; a new process remembers none.
    fleet.workers[-1].kill()
    unmended = order(fleet, tour(name, scenes=broken(name)))
    unsalvaged = order(fleet, tour(f"unsalvaged-{mode}"))
    unremade = order(fleet, tour(f"unremade-{mode}"))
    fleet.spawn(threads=4, modules=MODULES)
    failed_honestly(unmended, "plan_invalid", charged=0, creates=0)
    failed_honestly(unsalvaged, "media_mismatch", charged=ALL, creates=5)
    failed_honestly(unremade, "media_unusable", charged=ALL, creates=5)
    for render, flag in ((unmended, "plan_repair"), (unsalvaged, "salvage"), (unremade, "classified_retries")):
        told = fleet.rows(
            "select did from callkeeper.rollout_decisions where run_id = :id and flag = :flag",
            id=render.id, flag=flag,
        )  # fmt: skip
        assert [row["did"] for row in told] == ([False] if mode == "shadow" else [])
