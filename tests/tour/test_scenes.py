"""Which scenes make the tour when one is missing."""

from dataclasses import replace

from actors.tour.timeline.scenes import Shot, arrange
from actors.tour.timeline.words import Picture, Probe, Quality

SHOTS = [Shot(f"s{number}", 6, optional=number == 2) for number in range(5)]


def came(seconds: float = 6.0, **more: float) -> Probe:
    return Probe(Picture(seconds, 0.0, round(seconds * 24), 160, 90, 24.0, **more), None)


ALL = {shot.id: came() for shot in SHOTS}


def made(changes: dict[str, Probe | None], *, shots: list[Shot] = SHOTS, speech: float = 30.0):
    return arrange(shots, {**ALL, **changes}, speech=speech, rate=24)


def test_all_scenes_as_planned() -> None:
    whole = made({})
    assert (whole.quality, whole.seconds, whole.dropped) == (Quality.STANDARD, 30.0, ())


def test_an_optional_scene_may_be_missing_and_the_others_take_its_time() -> None:
    whole = made({"s2": None})
    assert whole.quality is Quality.DEGRADED
    assert whole.dropped == (("s2", "missing"),)
    assert [one.shot.id for one in whole.placed] == ["s0", "s1", "s3", "s4"]
    assert 24 < whole.seconds <= 30


def test_without_much_to_say_the_others_stay_as_long_as_they_are() -> None:
    assert made({"s2": None}, speech=20).seconds == 24


def test_an_unusable_optional_scene_is_a_missing_one() -> None:
    whole = made({"s2": came(2.0)})
    assert (whole.quality, whole.dropped) == (Quality.DEGRADED, (("s2", "too_short"),))


def test_a_needed_scene_may_not_be_missing() -> None:
    whole = made({"s1": None})
    assert (whole.quality, whole.reason, whole.placed) == (Quality.UNUSABLE, "scene_needed", ())


def test_neither_may_the_first_or_the_last() -> None:
    shots = [replace(shot, optional=True) for shot in SHOTS]
    assert made({"s0": None}, shots=shots).reason == "first_or_last_missing"
    assert made({"s4": None}, shots=shots).reason == "first_or_last_missing"


def test_three_quarters_have_to_be_left() -> None:
    shots = [replace(shot, optional=True) for shot in SHOTS[:3]]
    assert made({"s1": None}, shots=shots).reason == "too_little_left"
    every = [replace(shot, optional=True) for shot in SHOTS]
    assert made({"s1": None, "s3": None}, shots=every).reason == "too_little_left"


def test_scenes_that_stand_still_are_no_tour() -> None:
    still = came(8.0, longest_frozen=3.5, frozen=3.5)
    shots = [replace(shot, seconds=8) for shot in SHOTS]
    moving = {shot.id: came(8.0) for shot in shots}
    assert made({**moving, "s0": still}, shots=shots).quality is Quality.STANDARD
    assert made({**moving, "s0": still, "s1": still}, shots=shots).reason == "frozen"
    standing = [replace(shot, moves=False) for shot in shots]
    assert made({**moving, "s0": still, "s1": still}, shots=standing).quality is Quality.STANDARD


def test_a_short_scene_that_cannot_take_over_time_keeps_its_own() -> None:
    whole = made({"s2": None, "s1": came(4.6)})
    lengths = {one.shot.id: one.decision.picture for one in whole.placed}
    assert lengths["s1"] == 6
    assert lengths["s0"] > 6
