"""Real media, made at test time by PyAV itself: what a decoder must take whole and refuse cut."""

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av

WIDTH, HEIGHT, PICTURES, RATE = 96, 64, 30, 25


@dataclass(frozen=True)
class Recipe:
    """How to make one file. `kind` is what it is expected to be."""

    kind: str
    name: str
    video: str | None = None
    audio: str | None = None
    pixels: str = "yuv420p"
    pictures: int = PICTURES
    samples: str = "fltp"
    block: int = 1024  # samples in a frame
    hertz: int = 44_100
    muxer: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    codec_options: dict[str, str] = field(default_factory=dict)


RECIPES = {
    "faststart mp4": Recipe("video", "a.mp4", "libx264", "aac", options={"movflags": "faststart"}),
    "mp4": Recipe("video", "b.mp4", "libx264", "aac"),
    "fragmented mp4": Recipe(
        "video",
        "c.mp4",
        "libx264",
        "aac",
        options={"movflags": "frag_keyframe+empty_moov"},
        codec_options={"g": "10"},
    ),
    "mov": Recipe("video", "a.mov", "libx264"),
    "webm": Recipe("video", "a.webm", "libvpx", "libopus", hertz=48_000),
    "live webm": Recipe("video", "b.webm", "libvpx", options={"live": "1"}),
    "webm vp9": Recipe("video", "c.webm", "libvpx-vp9"),
    "mkv": Recipe("video", "a.mkv", "libx264", "aac"),
    "avi": Recipe("video", "a.avi", "mpeg4", "libmp3lame", block=1152),
    "mp3": Recipe("audio", "a.mp3", audio="libmp3lame", block=1152),
    "bare mp3": Recipe(
        "audio", "b.mp3", audio="libmp3lame", block=1152, options={"write_xing": "0", "id3v2_version": "0"}
    ),
    "wav": Recipe("audio", "a.wav", audio="pcm_s16le", samples="s16"),
    "flac": Recipe("audio", "a.flac", audio="flac", samples="s16"),
    "ogg": Recipe("audio", "a.ogg", audio="libopus", hertz=48_000),
    "m4a": Recipe("audio", "a.m4a", audio="aac", muxer="ipod"),
    "aac": Recipe("audio", "a.aac", audio="aac", muxer="adts"),
    "mp4 of sound": Recipe("audio", "d.mp4", audio="aac"),
    "png": Recipe("image", "a.png", "png", pixels="rgb24", pictures=1, muxer="image2"),
    "jpeg": Recipe("image", "a.jpg", "mjpeg", pixels="yuvj420p", pictures=1, muxer="image2"),
    "webp": Recipe("image", "a.webp", "libwebp", pictures=1, muxer="webp"),
    "animated webp": Recipe("image", "b.webp", "libwebp_anim", pictures=5, muxer="webp"),
    "gif": Recipe("image", "a.gif", "gif", pixels="rgb8", pictures=5),
    "tiff": Recipe("image", "a.tif", "tiff", pixels="rgb24", pictures=1, muxer="image2"),
    "avif": Recipe("image", "a.avif", "libsvtav1", pictures=1, muxer="avif"),
}


@lru_cache(maxsize=64)
def made(name: str) -> bytes:
    """The bytes of one recipe's file."""
    with TemporaryDirectory(prefix="media-") as folder:
        path = Path(folder) / RECIPES[name].name
        _write(RECIPES[name], path)
        return path.read_bytes()


def expected(name: str) -> str:
    return RECIPES[name].kind


def png_of(width: int, height: int, *, colour: bool = False) -> bytes:
    """A valid, wholly black PNG, of one bit a pixel or 24: a few kilobytes, whatever it unpacks to."""
    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (3 * width if colour else (width + 7) // 8))
    packed = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, *((8, 2) if colour else (1, 0)), 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _write(recipe: Recipe, path: Path) -> None:
    with av.open(str(path), "w", format=recipe.muxer, options=recipe.options) as container:
        streams: list[tuple[Any, Iterator[Any]]] = []
        if recipe.video:
            video = container.add_stream(recipe.video, rate=RATE, options=recipe.codec_options)
            video.width, video.height, video.pix_fmt = WIDTH, HEIGHT, recipe.pixels
            streams.append((video, _pictures(recipe)))
        if recipe.audio:
            audio = container.add_stream(recipe.audio, rate=recipe.hertz)
            audio.layout = "mono"
            streams.append((audio, _sound(recipe)))
        for stream, frames in streams:
            for frame in (*frames, None):
                for packet in stream.encode(frame):
                    container.mux(packet)


def _pictures(recipe: Recipe) -> Iterator[Any]:
    for number in range(recipe.pictures):
        frame = av.VideoFrame(WIDTH, HEIGHT, recipe.pixels)
        for place, plane in enumerate(frame.planes):
            row = bytes((3 * x + 7 * number + 50 * place + (x * number) % 31) & 255 for x in range(plane.line_size))
            plane.update(b"".join(row[y % 13 :] + row[: y % 13] for y in range(plane.height)))
        frame.pts, frame.time_base = number, Fraction(1, RATE)
        yield frame


def _sound(recipe: Recipe) -> Iterator[Any]:
    at = 0
    while at < recipe.hertz * PICTURES // RATE:
        frame = av.AudioFrame(format=recipe.samples, layout="mono", samples=recipe.block)
        wave = [0.3 * math.sin(0.05 * t) + 0.1 * math.sin(0.31 * t) for t in range(at, at + recipe.block)]
        if recipe.samples == "s16":
            data = struct.pack(f"<{recipe.block}h", *(int(30_000 * value) for value in wave))
        else:
            data = struct.pack(f"<{recipe.block}f", *wave)
        frame.planes[0].update(data.ljust(frame.planes[0].buffer_size, b"\0"))
        frame.sample_rate, frame.pts, frame.time_base = recipe.hertz, at, Fraction(1, recipe.hertz)
        at += recipe.block
        yield frame
