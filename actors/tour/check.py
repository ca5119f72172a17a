"""Whether a plan can be made at all, asked before any money is spent. Pure. Problems name field, value, remedy."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from actors.tour import capabilities
from actors.tour.capabilities import AVATAR_SCRIPT, MAX_SLACK, MIN_SPEECH, MODELS, MOVES, SCENES, Capabilities
from actors.tour.plan import LANGUAGES, Plan, Scene, Tour, spoken_seconds


@dataclass(frozen=True, slots=True)
class Problem:
    """`field` is a path into the plan. What is not `repairable` no other plan for the same listing would mend."""

    code: str
    field: str
    value: str
    remedy: str
    repairable: bool = True

    def __str__(self) -> str:
        return f"{self.field} is {self.value}: {self.remedy}"


def problems(tour: Tour) -> tuple[Problem, ...]:
    """All of them, in the plan's order. Empty: it may be paid for."""
    return (*_unmendable(tour), *_of_scenes(tour), *_of_totals(tour), *_of_speech(tour))


def _unmendable(tour: Tour) -> Iterator[Problem]:
    plan = tour.plan
    if tour.video_model not in MODELS:
        yield Problem(
            "unknown_model", "video_model", tour.video_model, f"choose one of {', '.join(MODELS)}", repairable=False
        )
    elif tour.frame.aspect not in MODELS[tour.video_model].aspects:
        yield Problem(
            "unsupported_aspect",
            "frame",
            f"{tour.frame.width} by {tour.frame.height}",
            f"{tour.video_model} makes {', '.join(MODELS[tour.video_model].aspects)}",
            repairable=False,
        )
    if plan.language[:2] not in LANGUAGES:
        yield Problem(
            "unsupported_language",
            "language",
            plan.language,
            f"voices here speak {', '.join(sorted(LANGUAGES))}",
            repairable=False,
        )
    if not tour.photos and any(scene.photo is not None for scene in plan.scenes):
        yield Problem(
            "no_photos", "photos", "empty", "the listing has no photo: add the ones that scenes show", repairable=False
        )


def _of_scenes(tour: Tour) -> Iterator[Problem]:
    model = MODELS.get(tour.video_model)
    counted = Counter(scene.id for scene in tour.plan.scenes)
    for name in (name for name, count in counted.items() if count > 1):
        yield Problem("scene_id_repeated", "scenes", name, "give each scene an id of its own", repairable=False)
    for number, scene in enumerate(tour.plan.scenes):
        yield from _of_scene(f"scenes.{number}", scene, tour, model)


def _of_scene(path: str, scene: Scene, tour: Tour, model: Capabilities | None) -> Iterator[Problem]:
    if scene.camera not in MOVES:
        yield Problem("unsupported_camera", f"{path}.camera", scene.camera, f"use one of {', '.join(MOVES)}")
    if model is not None and scene.seconds not in model.seconds:
        lengths = ", ".join(map(str, model.seconds))
        yield Problem("unsupported_duration", f"{path}.seconds", str(scene.seconds), f"use one of {lengths}")
    if model is not None and len(scene.prompt) + len(MOVES.get(scene.camera, "")) >= model.prompt:
        yield Problem(
            "prompt_too_long", f"{path}.prompt", f"{len(scene.prompt)} characters", f"at most {model.prompt} fit"
        )
    if scene.photo is not None and tour.photos and scene.photo not in tour.photos:
        known = ", ".join(sorted(tour.photos)[:20])
        yield Problem("missing_media", f"{path}.photo", scene.photo, f"the listing has {known}")


def _of_totals(tour: Tour) -> Iterator[Problem]:
    plan = tour.plan
    if len(plan.scenes) > SCENES:
        yield Problem("too_many_scenes", "scenes", str(len(plan.scenes)), f"use at most {SCENES}")
    total = planned_seconds(plan)
    if total > tour.longest:
        yield Problem("tour_too_long", "scenes", f"{total} s", f"together they may last {tour.longest} s")


def _of_speech(tour: Tour) -> Iterator[Problem]:
    plan = tour.plan
    if plan.language[:2] not in LANGUAGES:
        return
    if plan.avatar is not None and len(plan.avatar.script) > AVATAR_SCRIPT:
        size = f"{len(plan.avatar.script)} characters"
        yield Problem("greeting_too_long", "avatar.script", size, f"use at most {AVATAR_SCRIPT}")
    said, total = speech_seconds(plan), planned_seconds(plan)
    if said > total * MAX_SLACK:
        yield Problem(
            "speech_too_long",
            "voice.script",
            f"about {said:.0f} s with the greeting",
            f"the scenes last {total} s: shorten it, or lengthen them",
        )
    elif said < total * MIN_SPEECH:
        yield Problem(
            "speech_too_short",
            "voice.script",
            f"about {said:.0f} s with the greeting",
            f"the scenes last {total} s: lengthen it, or shorten them",
        )


def planned_seconds(plan: Plan) -> int:
    return sum(scene.seconds for scene in plan.scenes)


def speech_seconds(plan: Plan) -> float:
    """About how long greeting and voice-over take, one after the other."""
    scripts = [plan.voice.script, *([plan.avatar.script] if plan.avatar else [])]
    return sum(spoken_seconds(script, plan.language) for script in scripts)


def request_prompt(scene: Scene) -> str:
    """What a scene's video model is asked for. KeyError for a move that is not known."""
    return f"{scene.prompt} {capabilities.MOVES[scene.camera]}"
