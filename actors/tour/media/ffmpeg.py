"""What FFmpeg is asked for here: to fit a scene, to join scenes, to measure loudness, to make the final video."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.tour.media import children
from actors.tour.media.children import Limits
from actors.tour.plan import Corner, Frame
from actors.tour.timeline import filters
from actors.tour.timeline.filters import Loudness
from actors.tour.timeline.words import Decision

Check = Callable[[], None]

_QUIET = (
    "-hide_banner",
    "-nostdin",
    "-nostats",
    "-y",
    "-threads",
    "2",
    "-filter_threads",
    "1",
    "-filter_complex_threads",
    "1",
)
_INSIDE = ("-protocol_whitelist", "file")
# One kind of picture everywhere, so that scenes can be joined without being encoded again.
_PICTURE = (
    "-c:v",
    "libx264",
    "-preset",
    "veryfast",
    "-threads",
    "2",
    "-bf",
    "0",
    "-pix_fmt",
    "yuv420p",
    "-video_track_timescale",
    "90000",
)
_SOUND = ("-c:a", "aac", "-b:a", "160k", "-ar", str(filters.HERTZ), "-ac", "2")
_PLAIN = ("-map_metadata", "-1", "-map_chapters", "-1", "-movflags", "+faststart", "-f", "mp4")


@dataclass(frozen=True, slots=True)
class Source:
    """A file and the one demuxer that is to read it."""

    path: Path
    demuxer: str

    def arguments(self, *before: str) -> list[str]:
        return [*_INSIDE, *before, "-f", self.demuxer, "-i", str(self.path)]


@dataclass(frozen=True, slots=True)
class Presenter:
    """Who greets in a corner: its file, how long it is shown, and what its own decision asks for."""

    source: Source
    decision: Decision
    corner: Corner


class Ffmpeg:
    """The program, for one handler: its folder is where everything is read and written.

    Every method raises children.MemoryRanOut, TookTooLong, DiskFull and ChildFailed.
    """

    def __init__(self, folder: Path, *, check: Check, limits: Limits) -> None:
        self._program = executable()
        self._folder, self._check, self._limits = folder, check, limits

    def fit(self, source: Source, decision: Decision, frame: Frame, target: Path) -> None:
        """A scene in the tour's own form: its picture alone, of the decided length."""
        looped = ("-stream_loop", "1") if filters.repeats(decision.edits) else ()
        chain = filters.picture(decision.edits, frame, decision.picture)
        self._run(
            *source.arguments(*looped), "-map", "0:v:0", "-an", "-vf", chain, "-crf", "16", *_PICTURE, *_PLAIN,
            str(target),
        )  # fmt: skip

    def join(self, scenes: Sequence[Path], target: Path) -> None:
        """Scenes one after the other, as they are. Their names are ours: a number and an ending."""
        listing = self._folder / "scenes.txt"
        listing.write_text("".join(f"file '{scene.name}'\n" for scene in scenes))
        self._run(
            *_INSIDE,
            "-f",
            "concat",
            "-safe",
            "1",
            "-i",
            str(listing),
            "-map",
            "0:v:0",
            "-c",
            "copy",
            *_PLAIN,
            str(target),
        )

    def loudness(self, sources: Sequence[Source]) -> Loudness | None:
        """How loud the sounds are, one after the other; None where there is nothing to be heard."""
        inputs = [argument for source in sources for argument in source.arguments()]
        parts = [f"[{place}:a:0]{filters.sound(())}[s{place}]" for place in range(len(sources))]
        joined = "".join(f"[s{place}]" for place in range(len(sources)))
        parts.append(f"{joined}concat=n={len(sources)}:v=0:a=1,{filters.measuring()}[out]")
        self._run(*inputs, "-filter_complex", ";".join(parts), "-map", "[out]", "-f", "null", "-", loud=True)
        return _loudness((self._folder / "child.err").read_text(errors="replace"))

    def finish(
        self,
        picture: Source,
        voice: Source,
        decision: Decision,
        frame: Frame,
        target: Path,
        *,
        presenter: Presenter | None = None,
        loudness: Loudness | None = None,
    ) -> None:
        """The tour: pictures, a presenter in the corner, the greeting and then the voice-over."""
        looped = ("-stream_loop", "1") if filters.repeats(decision.edits) else ()
        inputs = [*picture.arguments(*looped), *voice.arguments()]
        seen = [f"[0:v:0]{filters.picture(decision.edits, frame, decision.picture)}"]
        heard = [f"[1:a:0]{filters.sound(decision.edits)}[voice]"]
        last = "[voice]"
        if presenter is not None:
            inputs += presenter.source.arguments()
            length = presenter.decision.picture
            small, laid = filters.overlay(presenter.corner, frame, length)
            seen = [f"{seen[0]}[base]", f"[2:v:0]{small}[small]", f"[base][small]{laid},format=yuv420p"]
            heard.append(f"[2:a:0]{filters.sound(presenter.decision.edits, seconds=length)}[greeting]")
            heard.append("[greeting][voice]concat=n=2:v=0:a=1[said]")
            last = "[said]"
        chain = [filters.levelled(loudness), filters.sound((), seconds=_exact(decision, frame))]
        graph = ";".join([*seen[:-1], f"{seen[-1]}[v]", *heard, f"{last}{','.join(filter(None, chain))}[a]"])
        self._run(
            *inputs, "-filter_complex", graph, "-map", "[v]", "-map", "[a]", "-crf", "20", *_PICTURE, *_SOUND, *_PLAIN,
            str(target),
        )  # fmt: skip

    def _run(self, *arguments: str, loud: bool = False) -> None:
        level = ("-loglevel", "info" if loud else "error")
        command = [self._program, *_QUIET, *level, *arguments]
        children.run(command, folder=self._folder, limits=self._limits, check=self._check)


def executable() -> str:
    """The path of FFmpeg. ImportError without the extra `tour`."""
    import imageio_ffmpeg

    return str(imageio_ffmpeg.get_ffmpeg_exe())


def _exact(decision: Decision, frame: Frame) -> float:
    """The sound ends with the last picture, to the sample."""
    return filters.frames(decision.picture, frame.rate) / frame.rate


def _loudness(words: str) -> Loudness | None:
    """FFmpeg prints its measure as the last JSON object. What is not a number there was silence."""
    start = words.rfind("{")
    try:
        told = json.loads(words[start : words.rfind("}") + 1])
        names = ("input_i", "input_tp", "input_lra", "input_thresh", "target_offset")
        values = [float(told[name]) for name in names]
        for value in values:
            filters.number(value)
    except (ValueError, KeyError, TypeError):
        return None
    return Loudness(*values)
