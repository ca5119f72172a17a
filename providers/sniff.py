"""What a file is, by its first bytes. Neither a URL's extension nor a Content-Type header is believed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

HEAD_BYTES = 4096  # enough for every test below


@dataclass(frozen=True, slots=True)
class FileType:
    """`family` is image, video, audio, file, text, or `page`: text that makes its reader fetch or run other
    things.
    """

    content_type: str
    extension: str
    family: str
    also: frozenset[str] = frozenset()  # other families that the same container may hold


_AUDIO = frozenset({"audio"})
_MP4 = FileType("video/mp4", "mp4", "video", _AUDIO)
_PAGE = FileType("text/html", "html", "page")
_PLAYLIST = FileType("application/vnd.apple.mpegurl", "m3u8", "page")
_TEXT = FileType("text/plain", "txt", "text")
_JSON = FileType("application/json", "json", "text")
UNKNOWN = FileType("application/octet-stream", "bin", "file")

_STARTS: tuple[tuple[bytes, FileType], ...] = (
    (b"\x89PNG\r\n\x1a\n", FileType("image/png", "png", "image")),
    (b"\xff\xd8\xff", FileType("image/jpeg", "jpg", "image")),
    (b"GIF87a", FileType("image/gif", "gif", "image")),
    (b"GIF89a", FileType("image/gif", "gif", "image")),
    (b"II*\0", FileType("image/tiff", "tif", "image")),
    (b"MM\0*", FileType("image/tiff", "tif", "image")),
    (b"fLaC", FileType("audio/flac", "flac", "audio")),
    (b"ID3", FileType("audio/mpeg", "mp3", "audio")),
    (b"PK\x03\x04", FileType("application/zip", "zip", "file")),
    (b"glTF", FileType("model/gltf-binary", "glb", "file")),
    (b"%PDF-", FileType("application/pdf", "pdf", "file")),
)
_BRANDS: dict[bytes, FileType] = {
    b"avif": FileType("image/avif", "avif", "image"),
    b"avis": FileType("image/avif", "avif", "image"),
    b"heic": FileType("image/heic", "heic", "image"),
    b"heix": FileType("image/heic", "heic", "image"),
    b"mif1": FileType("image/heic", "heic", "image"),
    b"qt  ": FileType("video/quicktime", "mov", "video", _AUDIO),
    b"M4A ": FileType("audio/mp4", "m4a", "audio"),
    b"M4B ": FileType("audio/mp4", "m4a", "audio"),
}
_RIFF: dict[bytes, FileType] = {
    b"WEBP": FileType("image/webp", "webp", "image"),
    b"WAVE": FileType("audio/wav", "wav", "audio"),
    b"AVI ": FileType("video/x-msvideo", "avi", "video"),
}
_Test: TypeAlias = Callable[[bytes], FileType | None]


def sniff(head: bytes) -> FileType:
    """The type of a file that begins with `head` (give 4 KiB, or all of a shorter one). `UNKNOWN` if
    nothing fits.
    """
    for begin, plain in _STARTS:
        if head.startswith(begin):
            return plain
    return next((kind for test in _TESTS if (kind := test(head)) is not None), UNKNOWN)


def _iso_media(head: bytes) -> FileType | None:
    return _BRANDS.get(head[8:12], _MP4) if head[4:8] == b"ftyp" else None


def _riff(head: bytes) -> FileType | None:
    return _RIFF.get(head[8:12]) if head.startswith(b"RIFF") else None


def _matroska(head: bytes) -> FileType | None:
    if not head.startswith(b"\x1a\x45\xdf\xa3"):
        return None
    if b"webm" in head[:64]:
        return FileType("video/webm", "webm", "video", _AUDIO)
    return FileType("video/x-matroska", "mkv", "video", _AUDIO)


def _ogg(head: bytes) -> FileType | None:
    if not head.startswith(b"OggS"):
        return None
    if b"\x80theora" in head[:128]:
        return FileType("video/ogg", "ogv", "video")
    return FileType("audio/ogg", "ogg", "audio")


def _mpeg_audio(head: bytes) -> FileType | None:
    # Frame sync, then no reserved version, layer, bit rate or sampling rate: four bytes that chance seldom makes.
    if len(head) < 4 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:  # noqa: PLR2004
        return None
    if head[1] & 0xF6 == 0xF0:  # noqa: PLR2004
        return FileType("audio/aac", "aac", "audio")
    version, layer, rate, sampling = head[1] >> 3 & 3, head[1] >> 1 & 3, head[2] >> 4, head[2] >> 2 & 3
    valid = version != 1 and layer != 0 and rate not in (0, 15) and sampling != 3  # noqa: PLR2004
    return FileType("audio/mpeg", "mp3", "audio") if valid else None


def _text(head: bytes) -> FileType | None:
    plain = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if plain.startswith((b"#EXTM3U", b"ffconcat", b"[playlist]")):
        return _PLAYLIST
    if plain[:1] == b"<":
        return _PAGE  # HTML, and every XML dialect: SVG runs scripts, DASH and SMIL name other files
    try:
        words = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:
            return None
        words = head[: error.start].decode("utf-8")
    if not words or "\0" in words:
        return None
    return _JSON if plain[:1] in (b"{", b"[") else _TEXT


_TESTS: tuple[_Test, ...] = (_iso_media, _riff, _matroska, _ogg, _mpeg_audio, _text)
