"""The two steps that work on media: scenes become one picture, and that, a greeting and a voice-over become a tour."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from actors.context import Context, OutOfMemory, RetryLater, WorkFailed
from actors.rollout import Rollout
from actors.settings import settings
from actors.tour import orders
from actors.tour.media.children import DiskFull, Limits, MemoryRanOut, TookTooLong
from actors.tour.media.ffmpeg import Presenter, Source
from actors.tour.media.workshop import NotUsable, Workshop, talking
from actors.tour.orders import FinalOrder, JoinOrder
from actors.tour.plan import Frame
from actors.tour.timeline.policy import decide
from actors.tour.timeline.scenes import Arrangement, Shot, arrange
from actors.tour.timeline.words import Decision, Need, Probe, Quality, Speech
from store.run_outcomes import StepOutcome

_MEBIBYTE = 1024**2
_ROOM_AGAIN = 60.0  # seconds until a full disk is tried again
Outcomes = Mapping[str, StepOutcome]
Found = tuple[Source, Probe]


class Bench:
    """A handler's context and its workshop: files of earlier steps come in, decisions are allowed or refused."""

    def __init__(self, context: Context, folder: Path, frame: Frame) -> None:
        limits = Limits(memory=settings().tour_memory * _MEBIBYTE)
        self.context, self.frame = context, frame
        self.shop = Workshop(folder, frame, check=context.check, limits=limits)
        self.outcomes: Outcomes = context.outcomes()
        self.again: list[str] = []  # scenes that are there as they were made the second time
        self._paths = (folder / f"came-{number}" for number in count())

    def look(self, step: str) -> Found | None:
        """The one file of a step, looked at; None where there is none."""
        outcome = self.outcomes.get(step)
        media = (outcome.result or {}).get("media") if outcome is not None else None
        if not media:
            return None
        path = next(self._paths)
        self.context.fetch(media[0]["object_key"], path)
        return self.shop.look(path, media[0]["content_type"])

    def scene(self, name: str) -> Found | None:
        """A scene's newest file, looked at."""
        again = self.look(orders.scene_again_step(name))
        if again is not None:
            self.again.append(name)
        return again or self.look(orders.scene_step(name))

    def needed(self, step: str) -> Found:
        found = self.look(step)
        if found is None:
            raise WorkFailed("media_unusable", f"step {step} left no file")
        return found

    def greeting(self) -> tuple[Source, Decision] | None:
        """The presenter, if there is one who can be shown."""
        found = self.look(orders.AVATAR)
        if found is None:
            return None
        source, probe = found
        length = probe.picture.seconds if probe.picture else 1.0
        return source, decide(probe, Need(length, self.frame.rate, Speech.DIALOGUE))

    def allow(self, quality: Quality, reason: str, decision: dict[str, Any]) -> None:
        """Leave to go on with what is not as ordered. WorkFailed where media is beyond use, or salvage is off."""
        if quality is Quality.STANDARD:
            return
        if quality is Quality.UNUSABLE:
            raise WorkFailed("media_unusable", f"what came cannot be made into a tour: {reason}")
        mode = self.context.rollout("salvage")
        if mode is not Rollout.OFF:
            self.context.shadowed("salvage", {**decision, "quality": quality}, did=mode is Rollout.ON)
        if mode is not Rollout.ON:
            raise WorkFailed("media_mismatch", f"what came is not as ordered, and salvage is {mode}")

    def tell(self, decision: Decision, **details: str | float) -> None:
        """What was done to media, as warnings; customers hear of what they can see."""
        degraded = decision.quality is Quality.DEGRADED
        for code, numbers in decision.warnings:
            self.context.warn(
                code,
                severity="warning" if degraded else "info",
                customer_visible=degraded,
                quality=str(decision.quality),
                details={**details, **numbers},
            )
        if decision.quality is Quality.REPAIRED and not decision.warnings:
            acts = ",".join(edit.act for edit in decision.edits)
            told = {**details, "edits": acts}
            self.context.warn(
                "media_repaired", severity="info", customer_visible=False, quality="repaired", details=told
            )


@contextmanager
def _bench(context: Context, frame: Frame) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="callkeeper-tour-") as folder:
        try:
            yield Bench(context, Path(folder), frame)
        except MemoryRanOut as error:
            raise OutOfMemory(str(error)) from None
        except DiskFull as error:
            raise RetryLater(_ROOM_AGAIN, str(error)) from None
        except TookTooLong as error:
            raise WorkFailed("media_took_too_long", str(error)) from None
        except NotUsable as error:
            raise WorkFailed("media_unusable", error.reason) from None


def joined(context: Context, order: JoinOrder) -> dict[str, Any]:
    """Fit every scene to its place and put them together. Raises WorkFailed and OutOfMemory."""
    with _bench(context, order.frame) as bench:
        shots = [Shot(one.id, float(one.seconds), optional=one.optional, moves=one.moves) for one in order.shots]
        found = {shot.id: bench.scene(shot.id) for shot in shots}
        context.progress(0.3)
        came = {name: one[1] if one else None for name, one in found.items()}
        arranged = arrange(shots, came, speech=_speech(bench, order), rate=order.frame.rate)
        dropped = dict(arranged.dropped)
        if arranged.quality is Quality.UNUSABLE and _made_again(bench, order, dropped, came):
            return {"again": dropped}
        bench.allow(
            arranged.quality, f"{arranged.reason} {dropped}", {"scenes": len(arranged.placed), "dropped": dropped}
        )
        for name in bench.again:
            context.warn(
                "scene_made_again", severity="info", customer_visible=False, quality="repaired", details={"scene": name}
            )
        for name, why in arranged.dropped:
            context.warn("scene_dropped", quality="degraded", details={"scene": name, "reason": why})
        for one in arranged.placed:
            bench.tell(one.decision, scene=one.shot.id)
        path, out = bench.shop.join([(one, _source(found[one.shot.id])) for one in arranged.placed])
        context.progress(0.9)
        context.keep(path, "video/mp4")
        return _told(out, scenes=_lengths(arranged), dropped=dropped)


def _made_again(bench: Bench, order: JoinOrder, lost: Mapping[str, str], came: Mapping[str, Probe | None]) -> bool:
    """Whether scenes that came and cannot be used are made once more: that they came proves that their calls ended."""
    if order.again or not lost or any(came[name] is None for name in lost):
        return False
    mode = bench.context.rollout("classified_retries")
    if mode is not Rollout.OFF:
        told = {"act": "scene_again", "scenes": ",".join(lost)}
        bench.context.shadowed("classified_retries", told, did=mode is Rollout.ON)
    if mode is not Rollout.ON:
        return False
    bench.context.add_steps(orders.steps_again(order, lost, others=bench.outcomes), first=True)
    return True


def final(context: Context, order: FinalOrder) -> dict[str, Any]:
    """Lay sound and presenter over the joined scenes. Raises WorkFailed and OutOfMemory."""
    with _bench(context, order.frame) as bench:
        picture, seen = bench.needed(orders.JOINED_AGAIN if orders.JOINED_AGAIN in bench.outcomes else orders.JOINED)
        voice, heard = bench.needed(orders.VOICE)
        presenter = _presenter(bench, order)
        context.progress(0.3)
        start = presenter.decision.picture if presenter else 0.0
        whole = talking(seen, presenter.decision if presenter else None, heard)
        need = Need(order.seconds, order.frame.rate, Speech.NARRATION, moves=False, fixed=start, sound_needed=True)
        decision = decide(whole, need)
        acts = [f"{edit.act}={edit.number:.3f}" for edit in decision.edits]
        bench.allow(decision.quality, decision.reason, {"edits": acts})
        bench.tell(decision)
        path, out = bench.shop.finish(picture, voice, decision, presenter)
        context.progress(0.95)
        context.keep(path, "video/mp4")
        return _told(out, greeted=presenter is not None)


def _presenter(bench: Bench, order: FinalOrder) -> Presenter | None:
    if order.corner is None:
        return None
    found = bench.greeting()
    if found is None:
        return None  # its own step has failed, and said so
    source, decision = found
    if decision.quality is Quality.UNUSABLE:
        bench.allow(
            Quality.UNUSABLE if order.greeting_needed else Quality.DEGRADED,
            decision.reason,
            {"avatar": decision.reason},
        )
        bench.context.warn("avatar_dropped", quality="degraded", details={"reason": decision.reason})
        return None
    bench.allow(decision.quality, decision.reason, {"avatar": [edit.act for edit in decision.edits]})
    bench.tell(decision, part="avatar")
    return Presenter(source, decision, order.corner)


def _speech(bench: Bench, order: JoinOrder) -> float:
    """How long the tour will talk."""
    _, voice = bench.needed(orders.VOICE)
    greeting = bench.greeting() if order.avatar else None
    start = greeting[1].picture if greeting and greeting[1].quality is not Quality.UNUSABLE else 0.0
    return start + (voice.sound.seconds if voice.sound else 0.0)


def _source(found: Found | None) -> Source:
    assert found is not None  # noqa: S101  # what is placed was looked at
    return found[0]


def _lengths(arranged: Arrangement) -> dict[str, float]:
    return {one.shot.id: round(one.decision.picture, 3) for one in arranged.placed}


def _told(out: Probe, **more: Any) -> dict[str, Any]:
    assert out.picture is not None  # noqa: S101  # it was accepted
    apart = abs(out.sound.seconds - out.picture.seconds) if out.sound else 0.0
    return {"seconds": round(out.picture.seconds, 3), "frames": out.picture.frames, "apart": round(apart, 3), **more}
