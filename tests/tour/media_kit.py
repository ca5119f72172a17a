"""Real media with faults, made by FFmpeg when a test needs it: small, and each once a session."""

import subprocess
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.tour.media.ffmpeg import executable
from actors.tour.timeline.words import Need, Quality, Speech

RATE = 24
_MOVING = "testsrc2=s=160x90:r=24:d={seconds}"
_TALK = "aevalsrc='0.3*sin(2*PI*180*t)*(0.6+0.4*sin(2*PI*2*t))':s=48000:d={seconds}"
_X264 = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p")
_AAC = ("-c:a", "aac", "-b:a", "48k")


@dataclass(frozen=True)
class Case:
    """How a file is made, what is wanted of it, and what has to become of it. `cut` keeps this share of its bytes."""

    name: str
    arguments: tuple[str, ...]
    need: Need
    quality: Quality
    form: str = "mp4"
    cut: float = 1.0


def video(seconds: float, *options: str, source: str = _MOVING) -> tuple[str, ...]:
    return ("-f", "lavfi", "-i", source.format(seconds=seconds), *options, *_X264)


def both(seen: float, heard: float, *, lag: float = 0.0, source: str = _MOVING) -> tuple[str, ...]:
    sound = ("-f", "lavfi", "-itsoffset", f"{lag}", "-i", _TALK.format(seconds=heard))
    return ("-f", "lavfi", "-i", source.format(seconds=seen), *sound, "-map", "0:v", "-map", "1:a", *_X264, *_AAC)


def scene(target: float, *, loopable: bool = False, moves: bool = True) -> Need:
    return Need(target, RATE, Speech.NONE, loopable=loopable, moves=moves)


def spoken(target: float) -> Need:
    return Need(target, RATE, Speech.NARRATION, sound_needed=True)


def music(target: float) -> Need:
    return Need(target, RATE, Speech.AMBIENCE)


def face(target: float) -> Need:
    return Need(target, RATE, Speech.DIALOGUE)


_SLOW = "testsrc2=s=160x90:r=12:d={seconds}"
_BLACK = "color=black:s=160x90:r=24:d={seconds}"
_STILL = "color=0x4060a0:s=160x90:r=24:d={seconds}"
_FLASH = "testsrc2=s=160x90:r=24:d={seconds},drawbox=t=fill:color=black:enable='lt(t,1.3)'"
_STD, _REP, _DEG, _BAD = Quality.STANDARD, Quality.REPAIRED, Quality.DEGRADED, Quality.UNUSABLE

CASES = (
    Case("as planned", video(2), scene(2), _STD),
    Case("another rate", video(2, "-r", "30"), scene(2), _STD),
    Case("a third rate", video(2, source=_SLOW), scene(2), _STD),
    Case("another shape", video(2, "-vf", "scale=90:160"), scene(2), _STD),
    Case("oblong pixels", video(2, "-vf", "setsar=4/3"), scene(2), _STD),
    Case("turned", video(2, "-vf", "transpose=1"), scene(2), _STD),
    Case("one picture short", video(1.96), scene(2), _STD),
    Case("a little short", video(1.7), scene(2), _REP),
    Case("shorter", video(3.4), scene(4), _DEG),
    Case("shorter, and it may begin again", video(3.2), scene(4, loopable=True), _DEG),
    Case("a little long", video(2.4), scene(2), _REP),
    Case("longer", video(12.4), scene(10), _DEG),
    Case("half", video(1), scene(2), _BAD),
    Case("cut in the middle of its bytes", video(3), scene(3), _BAD, cut=0.5),
    Case("black", video(2, source=_BLACK), scene(2), _BAD),
    Case("mostly black", video(2, source=_FLASH), scene(2), _BAD),
    Case("frozen", video(2, source=_STILL), scene(2), _BAD),
    Case("meant to stand still", video(2, source=_STILL), scene(2, moves=False), _STD),
    Case("in WebM", ("-f", "lavfi", "-i", _MOVING.format(seconds=2), "-c:v", "libvpx", "-b:v", "200k"), scene(2), _STD,
         form="webm"),
    Case("with a sound nobody wants", both(2, 2), scene(2), _STD),
    Case("narrated", both(3, 3), spoken(3), _STD),
    Case("narration a tenth longer", both(3, 3.1), spoken(3), _STD),
    Case("narration longer", both(3, 3.12), spoken(3), _REP),
    Case("narration much longer", both(3, 3.28), spoken(3), _DEG),
    Case("narration far too long", both(3, 4.2), spoken(3), _BAD),
    Case("silence at the end", both(3, 2.4), spoken(3), _REP),
    Case("only the beginning of a narration", both(3, 1), spoken(3), _BAD),
    Case("no narration", video(3), spoken(3), _BAD),
    Case("music too long", both(2, 3), music(2), _REP),
    Case("no music", video(2), music(2), _DEG),
    Case("lips in time", both(2, 2), face(2), _STD),
    Case("lips late at the end", both(2, 2.14), face(2), _REP),
    Case("lips apart", both(2, 2.6), face(2), _BAD),
    Case("no media at all", ("-f", "lavfi", "-i", _TALK.format(seconds=1), "-c:a", "pcm_s16le"), scene(2), _BAD,
         form="wav"),
)  # fmt: skip
QUICK = ("another shape", "shorter", "shorter, and it may begin again", "cut in the middle of its bytes", "narration longer",
         "silence at the end", "no music", "lips late at the end")  # fmt: skip
TYPES = {"mp4": "video/mp4", "webm": "video/webm", "wav": "audio/wav"}


@lru_cache(maxsize=64)
def made(case: Case) -> bytes:
    with TemporaryDirectory(prefix="tour-media-") as folder:
        path = Path(folder) / f"made.{case.form}"
        command = [executable(), "-v", "error", "-nostdin", "-y", *case.arguments, str(path)]
        subprocess.run(command, check=True, capture_output=True)
        whole = path.read_bytes()
    return whole[: int(len(whole) * case.cut)]
