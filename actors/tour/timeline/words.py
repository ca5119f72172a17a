"""What a probe says about a file, and what may be done about it. Times in seconds, always of decoded media."""

from dataclasses import dataclass, field
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Picture:
    """A video stream, decoded to its end. `black` and `frozen` are together, `longest_frozen` at one stretch."""

    seconds: float
    start: float
    frames: int
    width: int
    height: int
    rate: float
    gap: float = 0.0  # the longest time between two pictures
    black: float = 0.0
    frozen: float = 0.0
    longest_frozen: float = 0.0


@dataclass(frozen=True, slots=True)
class Sound:
    """An audio stream, decoded to its end. `loudest` is its peak, 0 to 1; 0 is silence all through."""

    seconds: float
    start: float
    rate: int
    channels: int
    loudest: float = 1.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A whole file. `errors` counts packets that could not be decoded."""

    picture: Picture | None
    sound: Sound | None
    errors: int = 0
    sha256: str = ""


class Speech(StrEnum):
    """What is heard. It decides which of two streams may give way."""

    NONE = "none"  # nothing, or what is not wanted
    AMBIENCE = "ambience"  # music or noise: may be cut and looped
    NARRATION = "narration"  # nobody is seen speaking: no word may be cut
    DIALOGUE = "dialogue"  # lips are seen: no stream may change alone


class Quality(StrEnum):
    """Of what comes out. The worst of its parts' is the whole's; `UNUSABLE` never completes."""

    STANDARD = "standard"
    REPAIRED = "repaired"
    DEGRADED = "degraded"
    UNUSABLE = "unusable"


ORDER = tuple(Quality)


def worst(*qualities: Quality) -> Quality:
    """The worst of them; standard without any."""
    return max(qualities, key=ORDER.index, default=Quality.STANDARD)


class Act(StrEnum):
    """Each has one number, whose meaning stands beside it."""

    FREEZE = "freeze"  # the last picture stays for so many seconds
    SLOW = "slow"  # the picture takes so many times as long
    LOOP = "loop"  # the picture begins again, until it lasts so many seconds
    CUT_PICTURE = "cut_picture"  # the picture ends at so many seconds, fading
    PAD_SOUND = "pad_sound"  # so many seconds of silence follow
    CUT_SOUND = "cut_sound"  # the sound ends at so many seconds, fading
    TEMPO = "tempo"  # speech is so many times as fast, at its pitch
    SILENCE = "silence"  # a silent bed of so many seconds


@dataclass(frozen=True, slots=True)
class Edit:
    act: Act
    number: float


@dataclass(frozen=True, slots=True)
class Need:
    """What is wanted of a file. `rate` in pictures a second; `target` in seconds.

    `loopable`: nothing in the picture shows that it begins again. `moves`: a picture that stands still is a fault.
    `sound_needed`: without sound it is no use. `fixed`: so much of the sound's beginning belongs to lips.
    """

    target: float
    rate: float
    speech: Speech
    loopable: bool = False
    moves: bool = True
    fixed: float = 0.0
    sound_needed: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """`picture` and `sound` are how long each stream is to be after `edits`; `warnings` are codes with numbers."""

    quality: Quality
    edits: tuple[Edit, ...] = ()
    warnings: tuple[tuple[str, dict[str, float]], ...] = field(default=())
    picture: float = 0.0
    sound: float | None = None
    reason: str = ""
