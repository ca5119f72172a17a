"""Decodes a whole file with PyAV (FFmpeg's libraries): the one proof that it can be played to its end."""

import errno
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NoReturn

import av
import av.error
from av.audio.frame import AudioFrame
from av.video.frame import VideoFrame

from providers.sniff import HEAD_BYTES, FileType, sniff
from providers.verify import pictures, wholes
from providers.verify.words import Fault, Limits, Refused, Verdict

_ISO = ("mov", wholes.iso_boxes)
# By sniffed type: the one demuxer that is asked, and the walk that comes first. FFmpeg's own guess is not wanted.
FORMATS: dict[str, tuple[str, wholes.Walk | None]] = {
    "image/png": ("png_pipe", pictures.png),
    "image/jpeg": ("jpeg_pipe", pictures.jpeg),
    "image/gif": ("gif", pictures.gif),
    "image/webp": ("webp_pipe", pictures.webp),
    "image/tiff": ("tiff_pipe", pictures.tiff),
    **dict.fromkeys(("image/avif", "image/heic", "video/mp4", "video/quicktime", "audio/mp4"), _ISO),
    **dict.fromkeys(("video/webm", "video/x-matroska"), ("matroska", wholes.ebml)),
    **dict.fromkeys(("video/ogg", "audio/ogg"), ("ogg", wholes.ogg)),
    "video/x-msvideo": ("avi", wholes.riff),
    "audio/wav": ("wav", wholes.riff),
    "audio/mpeg": ("mp3", wholes.mpeg_audio),
    "audio/aac": ("aac", wholes.adts),
    "audio/flac": ("flac", None),  # it counts its samples, and each frame has a checksum
}
_CALLBACK_EVERY = 64  # packets
# MP3 made by joining pieces is played everywhere, and has a frame at each seam that refers to bits of another piece.
_SEAMS = {"mp3": 0.01, "mp3float": 0.01}


@dataclass(slots=True)
class _Track:
    """What came out of one stream."""

    stream: Any
    packets: int = 0
    bad: int = 0
    frames: int = 0
    samples: int = 0
    end: float = 0.0


def examine(file: BinaryIO, size: int, kind: str, limits: Limits, tick: Callable[[], None]) -> Verdict:
    """Walk and decode the whole file. `kind` is image, video or audio; `tick` is called now and then, and may raise.

    Raises Refused. MemoryError passes through.
    """
    file.seek(0)
    found = sniff(file.read(HEAD_BYTES))
    if found.content_type not in FORMATS or (kind != found.family and kind not in found.also):
        raise Refused(Fault.WRONG_TYPE, f"{kind} was expected, {found.content_type} came")
    demuxer, walk = FORMATS[found.content_type]
    end = walk(file, size, limits) if walk is not None else size
    file.seek(0)
    if found.content_type == "image/webp" and (stills := pictures.webp_pictures(file.read())):
        return _animation(stills, demuxer, found, limits, tick)
    file.seek(0)
    if end < size and found.family == "image":
        file = io.BytesIO(file.read(end))
    return _examine(file, demuxer, found, kind, limits, tick)


def _animation(stills: list[bytes], demuxer: str, found: FileType, limits: Limits, tick: Callable[[], None]) -> Verdict:
    """FFmpeg's WebP decoder knows no animation, so each of its pictures is decoded by itself."""
    if len(stills) > limits.frames:
        raise Refused(Fault.TOO_LARGE, f"more than {limits.frames} pictures")
    verdicts = [_examine(io.BytesIO(still), demuxer, found, "image", limits, tick) for still in stills]
    return replace(verdicts[0], frames=len(verdicts))


def _examine(
    file: BinaryIO, demuxer: str, found: FileType, kind: str, limits: Limits, tick: Callable[[], None]
) -> Verdict:
    # A file object, and no way to open another: no protocol of FFmpeg's is ever asked.
    options = {"protocol_whitelist": "", "max_pixels": str(limits.pixels), "threads": "1"}
    if demuxer == "mov":
        # Every sample counts, also those that an edit list would hide.
        options |= {"ignore_editlist": "1", "enable_drefs": "0", "use_absolute_path": "0"}
    try:
        with av.open(file, "r", format=demuxer, options=options, io_open=_nothing_else) as container:
            tracks = _tracks(container, limits)
            _decode(container, tracks, limits, tick)
            return _judged(container, tracks, found, kind)
    except av.error.FFmpegError as error:
        raise _meaning(error, "it cannot be opened") from None


def _nothing_else(*_: object) -> NoReturn:
    raise Refused(Fault.CORRUPT, "it refers to another file")


def _tracks(container: Any, limits: Limits) -> dict[int, _Track]:
    if len(container.streams) > limits.streams:
        raise Refused(Fault.TOO_LARGE, f"more than {limits.streams} streams")
    tracks = {}
    for stream in container.streams:
        if stream.type not in ("video", "audio"):
            continue
        context = stream.codec_context
        if context is None:
            raise Refused(Fault.CORRUPT, f"its {stream.type} is in a form without a decoder here")
        if stream.type == "video" and context.width * context.height > limits.pixels:
            raise Refused(Fault.TOO_LARGE, f"{context.width} by {context.height} pixels")
        context.thread_count, context.thread_type = 1, "NONE"
        # In TIFF the word turns a tag of no importance into an error; that it is whole is known from its directories.
        strict = "crccheck" if context.name == "tiff" else "crccheck+explode"
        context.options = {"err_detect": strict, "max_pixels": str(limits.pixels)}
        tracks[stream.index] = _Track(stream)
    return tracks


def _decode(container: Any, tracks: dict[int, _Track], limits: Limits, tick: Callable[[], None]) -> None:
    wanted = [track.stream for track in tracks.values()]
    for number, packet in enumerate(container.demux(wanted) if wanted else ()):
        if number % _CALLBACK_EVERY == 0:
            tick()
        track = tracks[packet.stream.index]
        if packet.size:
            track.packets += 1
            if packet.is_corrupt:
                raise Refused(Fault.TRUNCATED, "a packet is cut short")
        try:
            frames = packet.decode()
        except av.error.FFmpegError as error:
            track.bad += 1
            if _is_oversized(track, error):
                raise Refused(Fault.TOO_LARGE, f"its pictures have more than {limits.pixels} pixels") from None
            if track.stream.codec_context.name not in _SEAMS:
                raise _meaning(error, f"packet {track.packets} of its {track.stream.type} cannot be decoded") from None
            continue
        for frame in frames:
            _count(track, frame, limits)


def _count(track: _Track, frame: Any, limits: Limits) -> None:
    if isinstance(frame, VideoFrame):
        track.frames += 1
        if frame.is_corrupt:
            raise Refused(Fault.CORRUPT, f"picture {track.frames} is damaged")
        if track.frames > limits.frames:
            raise Refused(Fault.TOO_LARGE, f"more than {limits.frames} pictures")
        rate = track.stream.average_rate
        track.end = max(track.end, (frame.time or 0.0) + (float(1 / rate) if rate else 0.0))
    elif isinstance(frame, AudioFrame):
        track.samples += frame.samples
        track.end = track.samples / (frame.sample_rate or 1)
        if track.end > limits.seconds:
            raise Refused(Fault.TOO_LARGE, f"more than {limits.seconds:g} s of sound")


def _judged(container: Any, tracks: dict[int, _Track], found: FileType, kind: str) -> Verdict:
    for track in tracks.values():
        # MP4 says how many samples each of its streams has; what other containers say is an estimate.
        if FORMATS[found.content_type] == _ISO and found.family != "image" and track.packets < track.stream.frames:
            raise Refused(Fault.TRUNCATED, f"{track.packets} of {track.stream.frames} packets are there")
        if track.bad > 1 + track.packets * _SEAMS.get(track.stream.codec_context.name, 0):
            raise Refused(Fault.CORRUPT, f"{track.bad} of {track.packets} packets cannot be decoded")
    seen = [track for track in tracks.values() if track.stream.type == "video" and not _is_cover(track.stream)]
    heard = [track for track in tracks.values() if track.stream.type == "audio"]
    needed = heard if kind == "audio" else seen
    if not needed:
        raise Refused(Fault.WRONG_TYPE, f"there is no {kind} in it")
    if not any(track.frames or track.samples for track in needed):
        raise Refused(Fault.TRUNCATED, f"nothing of its {kind} can be decoded")
    end = max(track.end for track in (*seen, *heard))
    _check_duration(container, end, found)
    context = seen[0].stream.codec_context if seen else None
    return Verdict(
        duration=None if kind == "image" else round(end, 3),
        width=context.width if context else None,
        height=context.height if context else None,
        frames=sum(track.frames for track in seen),
        streams=len(container.streams),
    )


def _check_duration(container: Any, end: float, found: FileType) -> None:
    """Where a container states its length in time and has none in bytes, what was decoded must come close to it."""
    if found.content_type not in ("video/webm", "video/x-matroska", "audio/flac") or container.duration is None:
        return
    stated = container.duration / av.time_base
    slack = 0.05 if found.content_type == "audio/flac" else max(0.5, stated * 0.02)
    if end < stated - slack:
        raise Refused(Fault.TRUNCATED, f"{end:.2f} of {stated:.2f} s are there")


def _is_oversized(track: _Track, error: av.error.FFmpegError) -> bool:
    """Whether a decoder would not even take the size of a first picture. What is broken is "invalid data" instead."""
    context = track.stream.codec_context
    sizeless = track.stream.type == "video" and not context.width * context.height
    return sizeless and track.packets == 1 and error.errno in (errno.EINVAL, errno.ERANGE)


def _is_cover(stream: Any) -> bool:
    return bool(stream.disposition & av.stream.Disposition.attached_pic)


def _meaning(error: av.error.FFmpegError, what: str) -> Refused:
    if error.errno == errno.ENOMEM:
        raise MemoryError
    if isinstance(error, av.error.EOFError):
        return Refused(Fault.TRUNCATED, f"{what}: it ends too soon")
    return Refused(Fault.CORRUPT, f"{what} ({type(error).__name__})")
