"""What parent and child say to each other about a file."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Limits:
    """What a file may cost to decode. Beyond any of them it is refused, or its decoder ended."""

    pixels: int = 8192 * 8192  # of one picture
    frames: int = 250_000  # pictures of one file: over an hour at 60 a second
    seconds: float = 6 * 3600.0  # of sound
    streams: int = 16
    image_bytes: int = 256 * 1024**2
    memory: int = 2 * 1024**3  # bytes of address space of the child
    cpu_seconds: int = 480
    wall_seconds: float = 540.0  # less than what an import may take


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a whole file was found to hold. `duration` in seconds, None for a picture; `frames` are pictures decoded."""

    duration: float | None
    width: int | None
    height: int | None
    frames: int
    streams: int


class Fault(StrEnum):
    TRUNCATED = "truncated"  # it ends before it should
    CORRUPT = "corrupt"  # what is there cannot be decoded
    TOO_LARGE = "too_large"  # decoding it would cost more than it may
    WRONG_TYPE = "wrong_type"  # it holds nothing of what was expected
    UNREADABLE = "unreadable"  # this machine's doing: the file could not be read, or memory ran out


class Refused(Exception):
    """The file is not taken. `why` is for people, in our words: nothing of the file's own text is in it."""

    def __init__(self, fault: Fault, why: str) -> None:
        super().__init__(f"{fault}: {why}")
        self.fault, self.why = fault, why
