"""A decision in FFmpeg's words. Pure, and made of numbers only: nothing that anybody wrote is ever part of a filter."""

from collections.abc import Sequence
from dataclasses import dataclass

from actors.tour.plan import Corner, Frame
from actors.tour.timeline.policy import FADE, LATE_LIMIT
from actors.tour.timeline.words import Act, Edit

HERTZ = 48_000
_TARGET = "loudnorm=I=-16:TP=-1.5:LRA=11"  # as streaming services ask
_STEREO = f"aresample={HERTZ},aformat=sample_fmts=fltp:channel_layouts=stereo"
_PIP = 0.28  # of the picture's width
_MARGIN = 0.03


@dataclass(frozen=True, slots=True)
class Loudness:
    """What the first pass of `loudnorm` measured, in its own units."""

    integrated: float
    peak: float
    spread: float
    threshold: float
    offset: float


def number(value: float) -> str:
    """A number as filters take it. ValueError for what is none."""
    if not abs(value) < 1e7:  # noqa: PLR2004  # also refuses what is not a number
        raise ValueError(f"{value} is no length or factor")
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"


def frames(seconds: float, rate: float) -> int:
    """Pictures that last so long, at least one."""
    return max(1, round(seconds * rate))


def picture(edits: Sequence[Edit], frame: Frame, seconds: float) -> str:
    """The chain that makes any picture fit the frame and last exactly so many seconds."""
    size = f"{frame.width}:{frame.height}"
    chain = [
        "setpts=PTS-STARTPTS",
        f"scale={size}:force_original_aspect_ratio=decrease:flags=bicubic",
        f"pad={size}:(ow-iw)/2:(oh-ih)/2",
        "setsar=1",
        *(f"setpts={number(edit.number)}*PTS" for edit in edits if edit.act is Act.SLOW),
        f"fps={frame.rate}",
    ]
    # Half a second more than is kept, so that rounding never leaves a picture out.
    frozen = sum(edit.number for edit in edits if edit.act is Act.FREEZE)
    chain.append(f"tpad=stop_mode=clone:stop_duration={number(frozen + 0.5)}")
    count = frames(seconds, frame.rate)
    chain.append(f"trim=end_frame={count}")
    if any(edit.act is Act.CUT_PICTURE for edit in edits) and seconds > 2 * FADE:
        chain.append(f"fade=t=out:st={number(seconds - FADE)}:d={number(FADE)}")
    return ",".join([*chain, "setpts=PTS-STARTPTS", "format=yuv420p"])


def repeats(edits: Sequence[Edit]) -> bool:
    """Whether the input is to be read a second time."""
    return any(edit.act is Act.LOOP for edit in edits)


def sound(edits: Sequence[Edit], *, seconds: float | None = None) -> str:
    """The chain that makes any sound stereo at 48 kHz; with `seconds`, exactly so long."""
    chain = [_STEREO, "asetpts=PTS-STARTPTS"]
    for edit in edits:
        match edit.act:
            case Act.TEMPO:
                chain.append(f"atempo={number(edit.number)}")
            case Act.CUT_SOUND:
                start = max(0.0, edit.number - FADE)
                chain.append(f"atrim=end={number(edit.number)},afade=t=out:st={number(start)}:d={number(FADE)}")
            case _:
                continue
    if seconds is not None:
        chain.append(f"apad,atrim=end_sample={round(seconds * HERTZ)}")
    return ",".join([*chain, "asetpts=PTS-STARTPTS"])


def overlay(corner: Corner, frame: Frame, seconds: float) -> tuple[str, str]:
    """How a small picture is made, and how it is laid into a corner while it lasts."""
    width = int(frame.width * _PIP) // 2 * 2
    margin = int(frame.width * _MARGIN)
    x = str(margin) if "left" in corner else f"W-w-{margin}"
    y = str(margin) if "top" in corner else f"H-h-{margin}"
    # Its last picture stays for the moment that its words may go on.
    stays = f"tpad=stop_mode=clone:stop_duration={number(LATE_LIMIT)}"
    shown = f"setpts=PTS-STARTPTS,fps={frame.rate},scale={width}:-2,setsar=1,{stays},trim=end={number(seconds)}"
    return shown, f"overlay=x={x}:y={y}:eof_action=pass:repeatlast=0"


def measuring() -> str:
    """The first pass of loudness: it is only listened to."""
    return f"{_TARGET}:print_format=json"


def levelled(loudness: Loudness | None) -> str | None:
    """The second pass, or nothing where there is nothing to be heard."""
    if loudness is None:
        return None
    measured = ":".join(
        f"measured_{name}={number(value)}"
        for name, value in (
            ("I", loudness.integrated),
            ("TP", loudness.peak),
            ("LRA", loudness.spread),
            ("thresh", loudness.threshold),
        )
    )
    return f"{_TARGET}:{measured}:offset={number(loudness.offset)}:linear=true"
