"""Carries decisions out: one pass over the media, and then what came out is looked at again before anybody gets it."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from actors.tour.media.children import ChildFailed, Limits
from actors.tour.media.ffmpeg import Ffmpeg, Presenter, Source
from actors.tour.media.probe import DEMUXERS, probe
from actors.tour.plan import Frame
from actors.tour.timeline.policy import accepts
from actors.tour.timeline.scenes import Placed
from actors.tour.timeline.words import Decision, Probe, Quality

log = logging.getLogger("callkeeper.tour")

MP4 = "mov"
T = TypeVar("T")


class NotUsable(Exception):
    """What came out, or what came in, cannot be used. `reason` is for people, and names no file."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Workshop:
    """One handler's bench: a folder of its own, and the tools. `check` may raise at any time: what runs is ended then.

    Every method raises children.MemoryRanOut, TookTooLong and DiskFull, and NotUsable for media that cannot be worked.
    """

    def __init__(self, folder: Path, frame: Frame, *, check: Callable[[], None], limits: Limits) -> None:
        self._folder, self._frame, self._check = folder, frame, check
        self._tool = Ffmpeg(folder, check=check, limits=limits)

    def look(self, path: Path, content_type: str) -> tuple[Source, Probe]:
        """A file that came in. A type that no demuxer here reads counts as nothing."""
        demuxer = DEMUXERS.get(content_type)
        if demuxer is None:
            raise NotUsable(f"{content_type} is not media that can be worked with here")
        return Source(path, demuxer), self._probe(path, demuxer)

    def join(self, placed: Sequence[tuple[Placed, Source]]) -> tuple[Path, Probe]:
        """All scenes as one picture. Each is fitted by itself, and the whole is looked at."""
        parts = []
        for number, (one, source) in enumerate(placed):
            part = self._folder / f"part-{number:03}.mp4"
            self._do(partial(self._tool.fit, source, one.decision, self._frame, part))
            parts.append(part)
        whole = self._folder / "joined.mp4"
        self._do(lambda: self._tool.join(parts, whole))
        seconds = sum(_rounded(one.decision, self._frame).picture for one, _ in placed)
        return whole, self._accepted(whole, Decision(Quality.STANDARD, picture=seconds))

    def finish(
        self, picture: Source, voice: Source, decision: Decision, presenter: Presenter | None
    ) -> tuple[Path, Probe]:
        """The tour as it is handed out: sound and picture together, to the last frame."""
        heard = [*([presenter.source] if presenter else []), voice]
        loudness = self._do(lambda: self._tool.loudness(heard))
        whole = self._folder / "final.mp4"
        self._do(
            lambda: self._tool.finish(
                picture, voice, decision, self._frame, whole, presenter=presenter, loudness=loudness
            )
        )
        return whole, self._accepted(whole, _rounded(decision, self._frame))

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except ChildFailed as failed:
            log.warning("media.child_failed status=%s words=%s", failed.status, failed.words)
            raise NotUsable(f"the media could not be worked ({failed})") from None

    def _accepted(self, path: Path, decision: Decision) -> Probe:
        came = self._probe(path, MP4)
        if (wrong := accepts(came, decision, rate=self._frame.rate)) is not None:
            raise NotUsable(f"what came out is not as it should be: {wrong}")
        return came

    def _probe(self, path: Path, demuxer: str) -> Probe:
        return self._do(lambda: probe(path, demuxer, check=self._check))


def talking(joined: Probe, greeting: Decision | None, voice: Probe) -> Probe:
    """The whole tour before it is made: its picture, and all that is said one after the other."""
    said = voice.sound.seconds if voice.sound else 0.0
    start = greeting.picture if greeting else 0.0
    heard = None if voice.sound is None else replace(voice.sound, seconds=start + said, start=0.0)
    return Probe(joined.picture, heard, joined.errors + voice.errors)


def _rounded(decision: Decision, frame: Frame) -> Decision:
    """To whole pictures, as everything is made."""
    seconds = max(1, round(decision.picture * frame.rate)) / frame.rate
    return replace(decision, picture=seconds, sound=None if decision.sound is None else seconds)
