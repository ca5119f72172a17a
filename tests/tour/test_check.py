"""What is wrong with a plan, known before any money is spent; and whether a repair of it may be used."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from actors.tour.check import planned_seconds, problems, request_prompt, speech_seconds
from actors.tour.plan import Tour, spoken_seconds
from actors.tour.plan_repair import MAX_TOKENS, is_mendable, judge, question
from providers.anthropic import AnthropicRequest
from tests.tour.plans import NARRATION, PHOTOS, plan, scene, tour


def codes(asked: Tour) -> list[str]:
    return [one.code for one in problems(asked)]


def scenes(**first: Any) -> list[dict[str, Any]]:
    return [scene(0, **first), *(scene(number) for number in range(1, 4))]


def test_a_good_plan_has_no_problem() -> None:
    assert problems(tour()) == ()
    assert planned_seconds(tour().plan) == 24
    assert 20 < speech_seconds(tour().plan) < 26


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"scenes": scenes(camera="drone_flight")}, "unsupported_camera", "scenes.0.camera"),
        ({"scenes": scenes(seconds=7)}, "unsupported_duration", "scenes.0.seconds"),
        ({"scenes": scenes(photo="cellar")}, "missing_media", "scenes.0.photo"),
        ({"scenes": scenes(prompt="x" * 2000)}, "prompt_too_long", "scenes.0.prompt"),
        ({"voice": {"voice_id": "v", "script": NARRATION * 2}}, "speech_too_long", "voice.script"),
        ({"voice": {"voice_id": "v", "script": "Buy it."}}, "speech_too_short", "voice.script"),
        (
            {"avatar": {"avatar_id": "a", "voice_id": "v", "script": "No word. " * 200}, "scenes": scenes(seconds=8) * 6},
            "greeting_too_long",
            "avatar.script",
        ),
        ({"scenes": [scene(n) for n in range(25)], "voice": {"voice_id": "v", "script": NARRATION * 6}}, "too_many_scenes", "scenes"),
    ],
)  # fmt: skip
def test_each_fault_is_named_with_its_field_and_remedy(changes: dict[str, Any], code: str, field: str) -> None:
    found = problems(tour(**changes))
    (named,) = [one for one in found if one.code == code]
    assert named.field == field
    assert named.remedy
    assert named.value in str(named)
    assert named.repairable


def test_a_tour_may_be_too_long() -> None:
    asked = tour().model_copy(update={"longest": 20})
    assert codes(asked) == ["tour_too_long"]


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (tour(language="tl"), "unsupported_language"),
        (tour(photos={}), "no_photos"),
        (tour(scenes=[scene(0), scene(0)], avatar=None), "scene_id_repeated"),
        (tour().model_copy(update={"video_model": "acme/film"}), "unknown_model"),
    ],
)
def test_some_faults_no_other_plan_would_mend(asked: Tour, code: str) -> None:
    found = problems(asked)
    assert code in [one.code for one in found]
    assert not is_mendable(found)


def test_a_plan_that_is_none_is_not_even_looked_at() -> None:
    with pytest.raises(ValidationError):
        tour(scenes=[])
    with pytest.raises(ValidationError):
        tour(scenes=scenes(seconds=0))


def test_a_scene_is_asked_for_with_its_move_in_words() -> None:
    assert request_prompt(tour().plan.scenes[0]) == "A bright room, number 0. The camera moves slowly forwards."


def test_speech_is_counted_in_words_or_in_characters() -> None:
    assert spoken_seconds("one two three", "en-GB") == pytest.approx(3 / 2.6)
    assert spoken_seconds("東 京", "ja") == pytest.approx(2 / 7)


BROKEN = tour(scenes=scenes(camera="drone_flight"))


def answer(**changes: Any) -> str:
    return json.dumps(plan(**changes))


def test_the_question_is_one_the_provider_takes() -> None:
    """It says what is wrong and what is allowed, and no address of a photo."""
    asked = question(BROKEN, problems(BROKEN))
    sent = AnthropicRequest.model_validate(asked)
    text = str(sent.messages[0].content)
    assert "drone_flight" in text
    assert "push_in" in text
    assert "example.com" not in text
    assert sent.max_tokens == MAX_TOKENS


def test_a_mended_plan_is_taken() -> None:
    verdict = judge(BROKEN, f"Here it is:\n```json\n{answer()}\n```")
    assert verdict.tour is not None
    assert problems(verdict.tour) == ()
    assert verdict.tour.photos == PHOTOS


@pytest.mark.parametrize(
    ("mended", "why"),
    [
        ("I am sorry, I cannot do that.", "not_a_plan"),
        ('{"scenes": []}', "not_a_plan"),
        (answer(scenes=scenes(camera="drone_flight")), "still_wrong"),
        (answer(scenes=scenes(camera="drone_flight", seconds=7)), "made_it_worse"),
        (answer(scenes=scenes(seconds=7)), "made_it_worse"),
        (answer(scenes=[*scenes(), scene(4)]), "changed_scenes"),
        (answer(scenes=scenes()[1:]), "changed_scenes"),
        (answer(scenes=scenes(optional=True)), "changed_optional"),
        (answer(title="Lake Road 8"), "changed_title_or_language"),
        (answer(avatar=None), "changed_avatar"),
        (answer(avatar={"avatar_id": "bob", "voice_id": "voice2", "script": "Hi."}), "changed_avatar"),
        (answer(voice={"voice_id": "voice9", "script": NARRATION}), "changed_voice"),
    ],
)
def test_a_repair_that_is_none_is_refused(mended: str, why: str) -> None:
    verdict = judge(BROKEN, mended)
    assert verdict.tour is None
    assert verdict.why == why
    assert verdict.left


def test_a_repair_may_leave_out_what_nobody_needs() -> None:
    asked = tour(scenes=[*scenes(), scene(4, optional=True, camera="spin")])
    verdict = judge(asked, answer(scenes=scenes()))
    assert verdict.tour is not None
