"""Media the sandbox hands out: whole, valid and different for every task, so that a mix-up shows in the
bytes.
"""

import math
import struct
import zlib
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

SIDE = 96
RAMP = bytes((5 * x + 40 * (x % 3)) % 256 for x in range(3 * SIDE))  # one row of pixels, before tinting
PLACEHOLDER = b"z" * 26  # the clip's comment; a task id has the same length, so no offset in the file moves


@lru_cache(maxsize=512)
def png(task_id: str, number: int) -> bytes:
    """An image of 96 by 96 pixels whose colours come from the task id, which a text chunk names too."""
    seed = sha256(f"{task_id}/{number}".encode()).digest()
    tints = bytes((value ^ seed[value % 32]) for value in range(256))
    rows = b"".join(b"\0" + (RAMP[y:] + RAMP[:y]).translate(tints) for y in range(SIDE))
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", header),
            _chunk(b"tEXt", b"Comment\0" + f"{task_id}/{number}".encode("latin-1")),
            _chunk(b"IDAT", zlib.compress(rows, 1)),
            _chunk(b"IEND", b""),
        )
    )


def mp4(task_id: str) -> bytes:
    """A playable clip of two seconds with sound; the task id stands in its comment."""
    return _clip().replace(PLACEHOLDER, task_id.encode("ascii").ljust(26, b"_")[:26])


def mp3(task_id: str, number: int = 0) -> bytes:
    """A second of a tone at 440 Hz, in 44.1 kHz mono; task and number stand in its title (ID3v2.3)."""
    title = b"\0" + f"{task_id}/{number}".encode("latin-1")
    frame = b"TIT2" + struct.pack(">IH", len(title), 0) + title
    size = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\x03\0\0" + size + frame + _tone()


@lru_cache(maxsize=64)
def wav(task_id: str) -> bytes:
    """A tenth of a second of 16-bit mono at 8 kHz, at a pitch that comes from the task id."""
    pitch = 200 + sha256(task_id.encode()).digest()[0]
    samples = b"".join(struct.pack("<h", int(8000 * math.sin(2 * math.pi * pitch * at / 8000))) for at in range(800))
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, 8000, 16000, 2, 16)
    body = b"WAVE" + form + b"data" + struct.pack("<I", len(samples)) + samples
    return b"RIFF" + struct.pack("<I", len(body)) + body


@lru_cache(maxsize=1)
def _tone() -> bytes:
    return (files("providers.sandbox") / "media" / "tone.mp3").read_bytes()


@lru_cache(maxsize=1)
def _clip() -> bytes:
    return (files("providers.sandbox") / "media" / "clip.mp4").read_bytes()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
