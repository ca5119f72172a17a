"""Decodes a file to its end and tells what was in it, as one JSON object: a script beside PyAV alone.

Arguments: path, demuxer. What cannot be decoded is counted; what a container says about lengths is not believed.
"""

import array
import json
import sys
from typing import Any

import av
import av.error

_SMALL = (32, 18)  # pixels: enough to see whether anything is there, and whether it moves
_BLACK = 32  # of 255: the brightest pixel of a black picture
_STILL = 0.25  # of 255: the mean difference below which a picture stands, as FFmpeg's freezedetect has it
_FROZEN_FROM = 0.5  # seconds a picture stands before it counts
_PIXELS = 8192 * 8192
_HERTZ = 8000  # to find a peak


class Picture:
    """What came out of a video stream."""

    def __init__(self, stream: Any) -> None:
        self._step = float(1 / stream.average_rate) if stream.average_rate else 0.04
        self.seen: dict[str, Any] = {"frames": 0, "gap": 0.0, "black": 0.0, "frozen": 0.0, "longest_frozen": 0.0}
        self._first = self._last = self._since = 0.0
        self._shown = b""

    def take(self, frame: Any) -> None:
        at = frame.time if frame.time is not None else self._last + self._step
        small = frame.reformat(*_SMALL, format="gray")
        plane = small.planes[0]
        pixels = bytes(plane)[: plane.line_size * _SMALL[1]]
        if not self.seen["frames"]:
            self._first = self._since = at
            self.seen |= {"width": frame.width, "height": frame.height}
            self._shown = pixels
        else:
            self.seen["gap"] = max(self.seen["gap"], at - self._last)
        if max(pixels) < _BLACK:
            self.seen["black"] += self._step
        if sum(abs(a - b) for a, b in zip(pixels, self._shown, strict=True)) / len(pixels) > _STILL:
            self._stood(at)
            self._since, self._shown = at, pixels
        self.seen["frames"] += 1
        self._last = max(self._last, at)

    def _stood(self, until: float) -> None:
        stood = until - self._since
        if stood >= _FROZEN_FROM:
            self.seen["frozen"] += stood
            self.seen["longest_frozen"] = max(self.seen["longest_frozen"], stood)

    def told(self) -> dict[str, Any] | None:
        if not self.seen["frames"]:
            return None
        end = self._last + self._step
        self._stood(end)
        return {**self.seen, "start": self._first, "seconds": end - self._first, "rate": 1 / self._step}


class Sound:
    """What came out of an audio stream."""

    def __init__(self) -> None:
        self._samples, self._rate, self._channels, self._peak = 0, 0, 0, 0
        self._start: float | None = None
        self._resampler = av.AudioResampler(format="s16", layout="mono", rate=_HERTZ)

    def take(self, frame: Any) -> None:
        if self._start is None:
            self._start = frame.time or 0.0
            self._rate, self._channels = frame.sample_rate, len(frame.layout.channels)
        self._samples += frame.samples
        for part in self._resampler.resample(frame):
            values = array.array("h", bytes(part.planes[0])[: part.samples * 2])
            if values:
                loudest, lowest = max(values), min(values)
                self._peak = max(self._peak, loudest, -lowest)

    def told(self) -> dict[str, Any] | None:
        if not self._samples:
            return None
        return {
            "seconds": self._samples / self._rate,
            "start": self._start or 0.0,
            "rate": self._rate,
            "channels": self._channels,
            "loudest": self._peak / 32768,
        }


def look(path: str, demuxer: str) -> dict[str, Any]:
    """The probe of one file. Raises av.error.FFmpegError when it cannot be opened at all."""
    errors = 0
    options = {"protocol_whitelist": "file", "max_pixels": str(_PIXELS)}
    with av.open(path, format=demuxer, options=options) as container:
        pictures = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic][:1]
        streams = [*pictures, *container.streams.audio[:1]]
        seen: dict[int, Any] = {s.index: Picture(s) if s.type == "video" else Sound() for s in streams}
        for stream in streams:
            stream.codec_context.thread_count = 1
        for packet in container.demux(streams) if streams else ():
            try:
                for frame in packet.decode():
                    seen[packet.stream.index].take(frame)
            except av.error.FFmpegError:
                errors += 1
    told = {type(one).__name__.lower(): one.told() for one in seen.values()}
    return {"picture": told.get("picture"), "sound": told.get("sound"), "errors": errors}


def main() -> int:
    """The exit code: 0 with a probe, 3 when it is no media at all."""
    try:
        found = look(sys.argv[1], sys.argv[2])
    except av.error.FFmpegError as error:
        sys.stderr.write(type(error).__name__)
        return 3
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
