"""What a file holds, found out by decoding all of it in a child process."""

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path

from actors.tour.media import children, look
from actors.tour.media.children import ChildFailed, Limits
from actors.tour.timeline.words import Picture, Probe, Sound

# By content type: the one demuxer that is asked. FFmpeg's own guess is not wanted, and no playlist is ever opened.
DEMUXERS = {
    "video/mp4": "mov",
    "video/quicktime": "mov",
    "video/webm": "matroska",
    "video/x-matroska": "matroska",
    "audio/mpeg": "mp3",
    "audio/wav": "wav",
    "audio/mp4": "mov",
    "audio/ogg": "ogg",
    "audio/flac": "flac",
    "audio/aac": "aac",
}
_NO_MEDIA = 3
_LIMITS = Limits(file_bytes=1024**2, cpu_seconds=600, wall_seconds=600)
NOTHING = Probe(picture=None, sound=None, errors=1)


def probe(path: Path, demuxer: str, *, check: Callable[[], None], limits: Limits = _LIMITS) -> Probe:
    """Decode the file to its end. What cannot be opened at all has neither picture nor sound, and one error.

    Raises children.MemoryRanOut, TookTooLong, and ChildFailed for a child that broke.
    """
    command = [sys.executable, "-I", look.__file__, str(path), demuxer]
    try:
        told = json.loads(children.run(command, folder=path.parent, limits=limits, check=check))
    except ChildFailed as failed:
        if failed.status == _NO_MEDIA:
            return NOTHING
        raise
    return Probe(
        picture=Picture(**told["picture"]) if told["picture"] else None,
        sound=Sound(**told["sound"]) if told["sound"] else None,
        errors=int(told["errors"]),
        sha256=_sha256(path),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
