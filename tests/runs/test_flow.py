"""Runs by real workers against the sandbox: files handed on, steps added, warnings, honest failures."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from actors.runs import Step, response, run, submit_run
from tests.chaos.harness import Fleet, until


def submit(fleet: Fleet, steps: Sequence[Step], **more: Any) -> UUID:
    with fleet.db.engine.begin() as connection:
        made = submit_run(connection, "film", steps, **{"user_id": "ann", "account_id": fleet.account, **more})
    return made.run_id


def read(fleet: Fleet, run_id: UUID) -> Mapping[str, Any]:
    return fleet.db.once(run, run_id)


def until_ended(fleet: Fleet, run_id: UUID, *, within: float = 30) -> Mapping[str, Any]:
    return until(
        lambda: found if (found := read(fleet, run_id))["status"] != "running" else None,
        within=within,
        what="the run's end",
    )


def scenes(fleet: Fleet, count: int, tag: str, **changes: Any) -> list[Step]:
    made = [Step(f"scene:{n}", "film.scene", {"prompt": f"{tag} {n}"}, **changes) for n in range(1, count + 1)]
    return [*made, film(fleet, [one.name for one in made])]


def film(fleet: Fleet, needs: Sequence[str], **request: Any) -> Step:
    return Step("film", "film.join", {"starts": str(fleet.starts), **request}, depends_on=list(needs))


def test_a_plan_becomes_a_film(studio: Fleet) -> None:
    ended = until_ended(studio, submit(studio, scenes(studio, 3, "harbour")))
    assert (ended["status"], ended["quality"], ended["progress"]) == ("completed", "standard", 1.0)
    joined = next(one for one in ended["steps"] if one["step"] == "film")
    assert sorted(joined["result"]["sizes"]) == ["scene:1", "scene:2", "scene:3"]
    assert all(size > 0 for size in joined["result"]["sizes"].values())
    shape = response(ended)
    assert shape == {
        "status": "completed",
        "result": {"assetId": joined["result"]["media"][0]["object_key"], "quality": "standard", "warnings": []},
        "error": None,
    }
    assert studio.creates("harbour") == 3
    studio.check()


def test_steps_that_a_step_adds_run_in_the_same_run(studio: Fleet) -> None:
    request = {"scenes": ["pier 1", "pier 2"], "starts": str(studio.starts)}
    ended = until_ended(studio, submit(studio, [Step("plan", "film.plan", request)], result_step="film"))
    assert ended["status"] == "completed"
    assert [one["step"] for one in ended["steps"]] == ["plan", "scene:1", "scene:2", "film"]
    assert studio.creates("pier") == 2
    studio.check()


def test_an_optional_scene_that_fails_is_dropped_with_a_warning(studio: Fleet) -> None:
    steps = [
        Step("scene:1", "film.scene", {"prompt": "storm 1"}),
        Step("scene:2", "film.join", {"starts": str(studio.starts), "fault": "always media_unusable"}, optional=True),
        film(studio, ["scene:1", "scene:2"]),
    ]
    ended = until_ended(studio, submit(studio, steps))
    assert (ended["status"], ended["quality"]) == ("completed", "degraded")
    shown = response(ended)["result"]["warnings"]
    assert [one["code"] for one in shown] == ["step_failed", "scene_dropped"]
    assert shown[1] == {
        "code": "scene_dropped", "stage": "film", "severity": "warning", "customerVisible": True,
        "details": {"missing": "scene:2"},
    }  # fmt: skip
    studio.check()


def test_a_failure_is_told_by_its_code_and_nothing_else(studio: Fleet) -> None:
    steps = [
        Step("scene:1", "film.scene", {"prompt": "fog 1"}),
        film(studio, ["scene:1"], fault="always media_unusable"),
    ]
    ended = until_ended(studio, submit(studio, steps))
    shape = response(ended)
    assert (shape["status"], shape["result"], shape["error"]["code"]) == ("failed", None, "MEDIA_UNUSABLE")
    assert "s3cr3t" not in str(shape)
    assert ended["failed_nodes"] == ["film"]
    studio.check()
