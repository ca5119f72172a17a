"""Whether a file ends where its own structure says it ends, and how large its pictures claim to be, without decoding.

Decoders are made to get along with broken files; a cut one often "opens fine". So each container is first walked by its
own lengths (ISO/IEC 14496-12 boxes, RFC 8794 EBML, RFC 3533 Ogg pages, RIFF chunks, MPEG audio and ADTS frames). Every
walk ends: each step moves forward, or the file is refused.
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeAlias

from providers.verify.words import Fault, Limits, Refused

# Returns how much of the file a decoder shall see: less than all of it where something may follow.
Walk: TypeAlias = Callable[[BinaryIO, int, Limits], int]
MAX_STEPS = 4_000_000  # far beyond any file that would be decoded in time
_STREAMED = (0, 0xFFFFFFFF)  # what a writer leaves in a length that it never came back to fill
_SEGMENT, _CLUSTER = 0x18538067, 0x1F43B675
_BIT_RATES = {  # kbit/s by MPEG-1 or later, and layer
    (1, 1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (1, 2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (1, 3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (2, 1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (2, 2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (2, 3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_SAMPLING = (44_100, 48_000, 32_000)
_MIRRORED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))
_LOOK = 64 * 1024


def truncated(why: str) -> Refused:
    return Refused(Fault.TRUNCATED, why)


def iso_boxes(file: BinaryIO, size: int, _limits: Limits) -> int:
    """MP4, MOV, M4A, AVIF and HEIC: boxes that end within the file, an index (`moov` or `meta`) among them."""
    position, seen = 0, set()
    for _ in _steps():
        if position >= size:
            break
        header = _at(file, position, 16)
        if len(header) < 8:  # noqa: PLR2004
            if header.strip(b"\0"):
                raise truncated("its last box has no header")
            break
        length, kind = struct.unpack(">I4s", header[:8])
        if length == 1 and len(header) == 16:  # noqa: PLR2004
            length = struct.unpack(">Q", header[8:])[0]
        elif length == 0:
            length = size - position
        if length < 8:  # noqa: PLR2004
            raise Refused(Fault.CORRUPT, "a box is shorter than its header")
        if position + length > size:
            raise truncated(f"a box ends {position + length - size} bytes behind the file")
        seen.add(kind)
        position += length
    if not seen & {b"moov", b"meta"}:
        raise truncated("it has no index")
    return size


def ebml(file: BinaryIO, size: int, _limits: Limits) -> int:
    """Matroska and WebM: elements of known length end within the file; of the others, their children do."""
    position = 0
    for _ in _steps():
        if position >= size:
            break
        header = _at(file, position, 12)
        name_length = _vint_length(header, 4)
        size_length = _vint_length(header[name_length:], 8)
        body = position + name_length + size_length
        if len(header) < name_length + size_length:
            raise truncated("its last element has no header")
        name = int.from_bytes(header[:name_length], "big")
        raw = int.from_bytes(header[name_length : name_length + size_length], "big")
        length = raw & (1 << 7 * size_length) - 1
        if length == (1 << 7 * size_length) - 1:
            if name not in (_SEGMENT, _CLUSTER):
                raise Refused(Fault.CORRUPT, "an element of unknown length that must have one")
            position = body
            continue
        position = body + length
        if position > size:
            raise truncated(f"an element ends {position - size} bytes behind the file")
    return size


def ogg(file: BinaryIO, size: int, _limits: Limits) -> int:
    """Ogg: whole pages, and a last page that says so in each stream."""
    position, ended = 0, {}
    for _ in _steps():
        if position >= size:
            break
        header = _at(file, position, 27 + 255)
        if header[:4] != b"OggS":
            raise (truncated if len(header) < 4 else _corrupt)("a page does not begin where one should")  # noqa: PLR2004
        if len(header) < 27 or len(header) < 27 + header[26]:  # noqa: PLR2004
            raise truncated("its last page has no header")
        serial = header[14:18]
        ended[serial] = bool(header[5] & 4)
        page = _at(file, position, 27 + header[26] + sum(header[27 : 27 + header[26]]))
        position += 27 + header[26] + sum(header[27 : 27 + header[26]])
        if position > size:
            raise truncated(f"a page ends {position - size} bytes behind the file")
        if _ogg_checksum(page) != int.from_bytes(page[22:26], "little"):
            raise _corrupt("a page's checksum is wrong")
    if not all(ended.values()):
        raise truncated("a stream has no last page")
    return size


def _ogg_checksum(page: bytes) -> int:
    """CRC-32 with the highest bit first, from zero: zlib's, which takes the lowest first, over mirrored bytes."""
    blank = page[:22] + bytes(4) + page[26:]
    mirrored = zlib.crc32(blank.translate(_MIRRORED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{mirrored:032b}"[::-1], 2)


def riff(file: BinaryIO, size: int, _limits: Limits) -> int:
    """WebP, WAV and AVI: chunks that end within the file. A WAV written as a stream has no lengths to check."""
    position, rest = 0, size
    for _ in _steps():
        header = _at(file, position, 12)
        if len(header) < 12 or header[:4] != b"RIFF":  # noqa: PLR2004
            break  # what follows a whole file is no part of it
        length = struct.unpack("<I", header[4:8])[0]
        if length in _STREAMED and header[8:] == b"WAVE":
            break
        if length > rest - 8:
            raise truncated(f"{length - rest + 8} of {length} bytes are missing")
        if header[8:] == b"WAVE":
            _riff_chunks(file, position + 12, position + 8 + length)
        position += 8 + length + length % 2
        rest = size - position
    return size


def _riff_chunks(file: BinaryIO, position: int, end: int) -> None:
    for _ in _steps():
        header = _at(file, position, 8)
        if position + 8 > end or len(header) < 8:  # noqa: PLR2004
            return
        length = struct.unpack("<I", header[4:])[0]
        if length in _STREAMED and header[:4] == b"data":
            return
        if position + 8 + length > end:
            raise truncated("a chunk ends behind the file")
        position += 8 + length + length % 2


def adts(file: BinaryIO, size: int, _limits: Limits) -> int:
    """AAC in ADTS: whole frames to the end."""
    return _frames(file, size, 7, _adts_length)


def mpeg_audio(file: BinaryIO, size: int, _limits: Limits) -> int:
    """MP3: whole frames to the end, and as many bytes as a Xing or Info header at the start counts."""
    start = _after_id3(file)
    head = _at(file, start, 64)
    for name in (b"Xing", b"Info"):
        place = head.find(name)
        if place > 0 and len(head) >= place + 16:
            flags, *counts = struct.unpack(">III", head[place + 4 : place + 16])
            # The count of frames comes first, if it is there.
            told = counts[1] if flags & 3 == 3 else counts[0] if flags & 2 else 0  # noqa: PLR2004
            if start + told > size:
                raise truncated(f"{start + told - size} bytes are missing")
    return _frames(file, size, 4, _mpeg_length, start)


def _frames(file: BinaryIO, size: int, header_length: int, length_of: Callable[[bytes], int], position: int = 0) -> int:
    """Where the frames end: behind them may be tags, or padding."""
    for _ in _steps():
        header = _at(file, position, max(header_length, 10))
        if not header:
            break
        length = length_of(header) if len(header) >= header_length else header_length
        if length == 0 and header[:3] == b"ID3" and len(header) == 10:  # noqa: PLR2004
            length = _id3_length(header)
        if length == 0:
            if _goes_on(file, position, size, length_of):
                raise _corrupt("something between its frames is none")
            break
        position += length
        if position > size:
            raise truncated("its last frame is not whole")
    return position


def _goes_on(file: BinaryIO, position: int, size: int, length_of: Callable[[bytes], int]) -> bool:
    """Whether frames follow somewhere: three in a row, which tags do not look like."""
    while position < size:
        part = _at(file, position, _LOOK + 10)
        start = part.find(b"\xff")
        while 0 <= start < _LOOK:
            place, whole = position + start, 0
            while whole < 3 and (length := length_of(_at(file, place, 10).ljust(10, b"\0"))):  # noqa: PLR2004
                place, whole = place + length, whole + 1
            if whole == 3 and place <= size:  # noqa: PLR2004
                return True
            start = part.find(b"\xff", start + 1)
        position += _LOOK
    return False


def _adts_length(header: bytes) -> int:
    if header[0] != 0xFF or header[1] & 0xF6 != 0xF0:  # noqa: PLR2004
        return 0
    return (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5


def _mpeg_length(header: bytes) -> int:
    if header[0] != 0xFF or header[1] & 0xE0 != 0xE0:  # noqa: PLR2004
        return 0
    version, layer = header[1] >> 3 & 3, 4 - (header[1] >> 1 & 3)
    rate, sampling, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 4 or rate in (0, 15) or sampling == 3:  # noqa: PLR2004
        return 0
    generation = 1 if version == 3 else 2  # noqa: PLR2004
    hertz = _SAMPLING[sampling] >> {3: 0, 2: 1, 0: 2}[version]
    bits = _BIT_RATES[generation, layer][rate] * 1000
    if layer == 1:
        return (12 * bits // hertz + padding) * 4
    return (72 if generation == 2 and layer == 3 else 144) * bits // hertz + padding  # noqa: PLR2004


def _after_id3(file: BinaryIO) -> int:
    header = _at(file, 0, 10)
    return _id3_length(header) if header[:3] == b"ID3" and len(header) == 10 else 0  # noqa: PLR2004


def _id3_length(header: bytes) -> int:
    length = sum((byte & 0x7F) << 7 * (3 - place) for place, byte in enumerate(header[6:10]))
    return 10 + length + (10 if header[5] & 0x10 else 0)


def _vint_length(data: bytes, longest: int) -> int:
    if not data:
        return 1
    length = 9 - data[0].bit_length()
    if length > longest:
        raise _corrupt("an element's length is none")
    return length


def _corrupt(why: str) -> Refused:
    return Refused(Fault.CORRUPT, why)


def _at(file: BinaryIO, position: int, count: int) -> bytes:
    file.seek(position)
    return file.read(count)


def _steps() -> Iterator[int]:
    yield from range(MAX_STEPS)
    raise Refused(Fault.TOO_LARGE, f"more than {MAX_STEPS} parts")
