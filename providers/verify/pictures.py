"""Whether a picture's file is whole, and how large a picture it claims to be, without decoding it.

A picture ends where its format says. What follows in the file (some cameras and editors put something there) is no part
of it and not shown to the decoder. All by the formats' own structure: PNG chunks with their checksums, JPEG segments,
GIF blocks, WebP chunks, TIFF directories. A claim beyond the limits is refused before any decoder sees it.
"""

import re
import struct
import zlib
from typing import BinaryIO

from providers.verify.wholes import riff, truncated
from providers.verify.words import Fault, Limits, Refused

# In compressed data 0xFF is followed by 0, or by one of eight marks of its own.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_BARE_MARKERS = frozenset({0x01, *range(0xD0, 0xD9)})
_SCAN, _END = 0xDA, 0xD9
_MARKER_DUE = re.compile(rb"\xff+[^\xff]", re.DOTALL)
_TIFF_TAGS = frozenset({256, 257, 273, 279, 324, 325})  # width, height, strips and tiles with their lengths
_MAX_DIRECTORIES = 1024


def png(file: BinaryIO, size: int, limits: Limits) -> int:
    """Chunks up to the one that ends it, each with the checksum it should have."""
    data = memoryview(_all_of(file, size, limits))  # chunks may be large, and their checksums want slices
    position = 8
    while True:
        if position + 12 > size:
            raise truncated("it has no last chunk")
        length, kind = int.from_bytes(data[position : position + 4], "big"), bytes(data[position + 4 : position + 8])
        end = position + 12 + length
        if end > size:
            raise truncated("a chunk ends behind the file")
        if zlib.crc32(data[position + 4 : end - 4]) != struct.unpack(">I", data[end - 4 : end])[0]:
            raise Refused(Fault.CORRUPT, "a chunk's checksum is wrong")
        if kind == b"IHDR" and length >= 8:  # noqa: PLR2004
            _check_size(limits, *struct.unpack(">II", data[position + 8 : position + 16]))
        if kind == b"IEND":
            return end
        position = end


def jpeg(file: BinaryIO, size: int, limits: Limits) -> int:
    """Segments and compressed data up to the marker that ends the picture."""
    data = _all_of(file, size, limits)
    position = 2
    while True:
        found = _MARKER_DUE.match(data, position)
        if found is None:
            raise truncated("it has no end") if position + 1 >= size else Refused(Fault.CORRUPT, "a marker is missing")
        marker, position = data[found.end() - 1], found.end()
        if marker == _END:
            return position
        if marker not in _BARE_MARKERS:
            position = _after_segment(data, marker, position, limits)


def _after_segment(data: bytes, marker: int, position: int, limits: Limits) -> int:
    length = int.from_bytes(data[position : position + 2], "big")
    if position + max(length, 2) > len(data):
        raise truncated("a segment ends behind the file")
    if length < 2:  # noqa: PLR2004
        raise Refused(Fault.CORRUPT, "a segment is shorter than its length")
    if marker in _FRAME_MARKERS and length >= 7:  # noqa: PLR2004
        _check_size(limits, *struct.unpack(">HH", data[position + 3 : position + 7]))
    position += length
    if marker != _SCAN:
        return position
    rest = _MARKER.search(data, position)
    if rest is None:
        raise truncated("its picture has no end")
    return rest.start()


def gif(file: BinaryIO, size: int, limits: Limits) -> int:
    """Blocks up to the trailer, not more pictures than a file may have."""
    data = _all_of(file, size, limits)
    if size < 13:  # noqa: PLR2004
        raise truncated("it has no header")
    _check_size(limits, *struct.unpack("<HH", data[6:10]))
    position, pictures = 13 + _colours(data[10]), 0
    while position < size:
        kind = data[position]
        if kind == 0x3B:  # noqa: PLR2004
            return position + 1
        if kind == 0x2C:  # noqa: PLR2004
            if position + 10 > size:
                break
            pictures += 1
            if pictures > limits.frames:
                raise Refused(Fault.TOO_LARGE, f"more than {limits.frames} pictures")
            _check_size(limits, *struct.unpack("<HH", data[position + 5 : position + 9]))
            position += 11 + _colours(data[position + 9])
        elif kind == 0x21:  # noqa: PLR2004
            position += 2
        else:
            raise Refused(Fault.CORRUPT, "a block of no known kind")
        position = _after_blocks(data, position, size)
    raise truncated("it has no end")


def webp(file: BinaryIO, size: int, limits: Limits) -> int:
    """A RIFF file; its canvas, where it is extended, within the limits."""
    end = riff(file, size, limits)
    head = _all_of(file, size, limits)[:30]
    if len(head) == 30 and head[12:16] == b"VP8X":  # noqa: PLR2004
        width, height = (int.from_bytes(head[place : place + 3], "little") + 1 for place in (24, 27))
        _check_size(limits, width, height)
    return end


def webp_pictures(data: bytes) -> list[bytes]:
    """Each picture of an animated WebP as a file of its own; none for a still one. `data` has passed `webp`."""
    stills, position = [], 12
    while position + 8 <= len(data):
        length = int.from_bytes(data[position + 4 : position + 8], "little")
        body = data[position + 8 : position + 8 + length]
        if data[position : position + 4] == b"ANMF":
            # The frame's own width and height, less one each, then its chunks; alpha needs the extended header.
            inside = b"WEBPVP8X" + struct.pack("<II", 10, 0x10) + body[6:12] + body[16:]
            stills.append(b"RIFF" + struct.pack("<I", len(inside)) + inside)
        position += 8 + length + length % 2
    return stills


def tiff(file: BinaryIO, size: int, limits: Limits) -> int:
    """Directories, and the strips or tiles they name, within the file."""
    data = _all_of(file, size, limits)
    order = "<" if data[:1] == b"I" else ">"
    position, pictures = _number(data, 4, 4, order), 0
    while position:
        pictures += 1
        if pictures > min(limits.frames, _MAX_DIRECTORIES):
            raise Refused(Fault.TOO_LARGE, "more pictures than a file may have")
        count = _number(data, position, 2, order)
        tags: dict[int, list[int]] = {}
        for entry in range(position + 2, position + 2 + 12 * count, 12):
            tag = _number(data, entry, 2, order)
            if tag in _TIFF_TAGS:
                tags[tag] = _tiff_values(data, entry, order)
        width, height = (tags.get(tag, [0])[0] for tag in (256, 257))
        _check_size(limits, width, height)
        for starts, lengths in ((273, 279), (324, 325)):
            pairs = zip(tags.get(starts, []), tags.get(lengths, []), strict=False)
            if any(start + length > size for start, length in pairs):
                raise truncated("a part of its picture ends behind the file")
        position = _number(data, position + 2 + 12 * count, 4, order)
    return size


def _tiff_values(data: bytes, entry: int, order: str) -> list[int]:
    """The numbers of one entry: in its last four bytes if they fit, or else where those point."""
    width = {3: 2, 4: 4}.get(_number(data, entry + 2, 2, order), 0)
    count = _number(data, entry + 4, 4, order)
    if not width or not count:
        return [0]
    if count > len(data):
        raise truncated("it names more parts than it has bytes")
    start = entry + 8 if width * count <= 4 else _number(data, entry + 8, 4, order)  # noqa: PLR2004
    if start + width * count > len(data):
        raise truncated("a list of its parts ends behind the file")
    return list(struct.unpack_from(f"{order}{count}{'H' if width == 2 else 'I'}", data, start))  # noqa: PLR2004


def _number(data: bytes, position: int, width: int, order: str) -> int:
    if position + width > len(data):
        raise truncated("a directory ends behind the file")
    return int.from_bytes(data[position : position + width], "little" if order == "<" else "big")


def _all_of(file: BinaryIO, size: int, limits: Limits) -> bytes:
    if size > limits.image_bytes:
        raise Refused(Fault.TOO_LARGE, f"a picture of more than {limits.image_bytes} bytes")
    file.seek(0)
    return file.read()


def _check_size(limits: Limits, width: int, height: int) -> None:
    if width * height > limits.pixels:
        raise Refused(Fault.TOO_LARGE, f"{width} by {height} pixels")


def _colours(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _after_blocks(data: bytes, position: int, size: int) -> int:
    while position < size and data[position]:
        position += 1 + data[position]
    return position + 1
