"""Marking what is kept, when its job says so: pictures by Pillow, videos by FFmpeg, each in a confined child process.

Whether is decided with the job at submit. What is kept is then the marked file alone. Sound carries none. A marked
video is MP4, a marked picture keeps its format.
"""

import asyncio
import hashlib
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from actors import mark_picture
from actors.tour.media import children
from actors.tour.media.children import ChildFailed, Limits, MemoryRanOut, TookTooLong
from providers.errors import DownloadError

MARKED = frozenset({"image", "video"})
_LIMITS = Limits(cpu_seconds=900, wall_seconds=900.0)
_TEXT = "Preview"
# The mark is a quarter as wide as the film, near its lower right corner.
_OVERLAY = "[1:v][0:v]scale=w=rw*0.25:h=-1[mark];[0:v][mark]overlay=W-w-W*0.02:H-h-H*0.02,format=yuv420p[v]"


@dataclass(frozen=True, slots=True)
class Marked:
    """What the file is now."""

    sha256: str
    size: int
    extension: str
    content_type: str


class Unwanted(Exception):
    """Whoever waited for the mark is gone."""


async def mark(path: Path, kind: str, *, extension: str, content_type: str) -> Marked:
    """Mark the file in place. `kind` is image or video. Raises DownloadError.

    Retryable `verify_crashed` when memory ran out, as when decoding; `watermark_failed` otherwise.
    """
    gone = threading.Event()
    try:
        return await asyncio.to_thread(apply, path, kind, extension=extension, content_type=content_type, gone=gone)
    except asyncio.CancelledError:
        gone.set()
        raise


def apply(path: Path, kind: str, *, extension: str, content_type: str, gone: threading.Event | None = None) -> Marked:
    """The same, blocking. Not for the event loop."""
    with tempfile.TemporaryDirectory(prefix="callkeeper-mark-") as name:
        folder = Path(name)
        if kind == "video":
            extension, content_type = "mp4", "video/mp4"
        target = folder / f"marked.{extension}"
        try:
            command = _video(path, target, folder, gone) if kind == "video" else _picture(path, target)
            children.run(command, folder=folder, limits=_LIMITS, check=lambda: _check(gone))
        except MemoryRanOut:
            raise DownloadError("verify_crashed", "marking it took more memory than there is", retryable=True) from None
        except (ChildFailed, TookTooLong) as error:
            why = f"it could not be marked: {error}"
            raise DownloadError("watermark_failed", why, retryable=True) from None
        except ImportError:
            why = "videos cannot be marked here: install callkeeper[tour]"
            raise DownloadError("watermark_failed", why, retryable=False) from None
        data = target.read_bytes()
        path.write_bytes(data)
    return Marked(hashlib.sha256(data).hexdigest(), len(data), extension, content_type)


def _check(gone: threading.Event | None) -> None:
    if gone is not None and gone.is_set():
        raise Unwanted


def _picture(path: Path, target: Path) -> list[str]:
    return [sys.executable, "-I", mark_picture.__file__, _TEXT, str(path), str(target)]


def _video(path: Path, target: Path, folder: Path, gone: threading.Event | None) -> list[str]:
    from actors.tour.media.ffmpeg import executable

    stamp = folder / "mark.png"
    command = [sys.executable, "-I", mark_picture.__file__, _TEXT, "-", str(stamp)]
    children.run(command, folder=folder, limits=_LIMITS, check=lambda: _check(gone))
    return [
        executable(), "-nostdin", "-hide_banner", "-loglevel", "error", "-y", "-protocol_whitelist", "file,pipe",
        "-i", str(path), "-i", str(stamp), "-filter_complex", _OVERLAY, "-map", "[v]", "-map", "0:a?",
        "-c:v", "libx264", "-preset", "veryfast", "-crf", "20", "-c:a", "aac", "-movflags", "+faststart",
        "-map_metadata", "-1", str(target),
    ]  # fmt: skip
