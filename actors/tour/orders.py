"""What each step of a tour is asked for, and the tour as a run of such steps. Pure."""

import hashlib
import math
from collections.abc import Container, Iterable

from pydantic import Field

from actors.steps import Step
from actors.tour.check import planned_seconds, request_prompt
from actors.tour.plan import Avatar, Corner, Frame, Id, Language, Name, Part, Photo, Scene, Tour, Voice, spoken_seconds

SCENE_CREDITS, AVATAR_CREDITS, SPEECH_CREDITS = 4, 3, 1  # a second of a scene, of an avatar; 100 characters of speech

PLAN, PLAN_REPAIR, PLAN_MENDED = "plan", "plan-repair", "plan-mended"
VOICE, AVATAR, JOINED, FINAL = "voiceover", "avatar-video", "joined-scenes", "final-video"
JOINED_AGAIN = "joined-again"


class SceneOrder(Part):
    """One scene, as a video model is asked for it."""

    model: str
    prompt: str
    seconds: int
    aspect: str
    photo: Photo | None = None

    @property
    def price(self) -> int:
        return self.seconds * SCENE_CREDITS


class AvatarOrder(Part):
    """The greeting. `title` is for people who look into the vendor's list."""

    title: str
    language: Language
    aspect: str
    avatar: Avatar

    @property
    def price(self) -> int:
        return math.ceil(spoken_seconds(self.avatar.script, self.language)) * AVATAR_CREDITS


class VoiceOrder(Part):
    """The voice-over."""

    voice: Voice

    @property
    def price(self) -> int:
        return math.ceil(len(self.voice.script) / 100) * SPEECH_CREDITS


class PlannedShot(Part):
    """What the join needs to know of a scene. `order` is what was asked for, to ask for it once more."""

    id: Name
    seconds: int
    optional: bool
    moves: bool
    order: SceneOrder


class JoinOrder(Part):
    """`made_of` names everything that was ordered: the joined scenes of one tour are never taken for another's.

    `again`: some scenes have been made a second time, and there is no third.
    """

    shots: list[PlannedShot] = Field(min_length=1)
    frame: Frame
    avatar: bool
    made_of: str
    again: bool = False


class FinalOrder(Part):
    """`seconds` is how long the tour was planned to be; `greeting_needed`: no tour without its presenter."""

    seconds: int
    frame: Frame
    corner: Corner | None
    made_of: str
    greeting_needed: bool = False


def steps(tour: Tour, *, after: str | None = None) -> list[Step]:
    """The steps of a tour whose plan has no problem. `after` names the step that found that out."""
    plan, first = tour.plan, [] if after is None else [after]
    made_of = hashlib.sha256(tour.model_dump_json().encode()).hexdigest()
    scenes = [
        Step(scene_step(scene.id), "tour.scene", _scene(tour, scene), first, optional=scene.optional)
        for scene in plan.scenes
    ]
    spoken = [Step(VOICE, "tour.voice", VoiceOrder(voice=plan.voice), first)]
    if plan.avatar is not None:
        order = AvatarOrder(title=plan.title, language=plan.language, aspect=tour.frame.aspect, avatar=plan.avatar)
        spoken.append(Step(AVATAR, "tour.avatar", order, first, optional=plan.avatar.optional))
    return [
        *scenes,
        *spoken,
        Step(JOINED, "tour.join", _join(tour, made_of), [step.name for step in (*scenes, *spoken)]),
        Step(FINAL, "tour.final", _final(tour, made_of), [JOINED, *(step.name for step in spoken)]),
    ]


def scene_step(scene_id: str) -> str:
    return f"scene-video:{scene_id}"


def scene_again_step(scene_id: str) -> str:
    return f"scene-again:{scene_id}"


def steps_again(order: JoinOrder, lost: Container[str], *, others: Iterable[str]) -> list[Step]:
    """The lost scenes a second time, and all scenes joined after them. `others`: what the first join depended on.

    A second scene that fails is none; whether there is a tour without it is the join's to say.
    """
    scenes = [
        Step(scene_again_step(shot.id), "tour.scene-again", shot.order, [JOINED], optional=True)
        for shot in order.shots
        if shot.id in lost
    ]
    again = order.model_copy(update={"again": True})
    return [*scenes, Step(JOINED_AGAIN, "tour.join", again, [*others, *(step.name for step in scenes)])]


def _scene(tour: Tour, scene: Scene) -> SceneOrder:
    return SceneOrder(
        model=tour.video_model,
        prompt=request_prompt(scene),
        seconds=scene.seconds,
        aspect=tour.frame.aspect,
        photo=None if scene.photo is None else tour.photos[scene.photo],
    )


def _join(tour: Tour, made_of: str) -> JoinOrder:
    shots = [
        PlannedShot(
            id=one.id,
            seconds=one.seconds,
            optional=one.optional,
            moves=one.camera != "static",
            order=_scene(tour, one),
        )
        for one in tour.plan.scenes
    ]
    return JoinOrder(shots=shots, frame=tour.frame, avatar=tour.plan.avatar is not None, made_of=made_of)


def _final(tour: Tour, made_of: str) -> FinalOrder:
    avatar = tour.plan.avatar
    return FinalOrder(
        seconds=planned_seconds(tour.plan),
        frame=tour.frame,
        corner=None if avatar is None else avatar.corner,
        made_of=made_of,
        greeting_needed=avatar is not None and not avatar.optional,
    )


__all__ = ["AvatarOrder", "FinalOrder", "Id", "JoinOrder", "SceneOrder", "VoiceOrder", "scene_step", "steps"]
