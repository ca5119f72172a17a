"""Types by content."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.sandbox import files
from providers.sniff import UNKNOWN, sniff

PNG, MP4 = files.png("t" * 26, 0), files.mp4("t" * 26)


@pytest.mark.parametrize(
    ("head", "content_type", "extension"),
    [
        (PNG, "image/png", "png"),
        (MP4, "video/mp4", "mp4"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "image/jpeg", "jpg"),
        (b"GIF89a....", "image/gif", "gif"),
        (b"RIFF\x10\0\0\0WEBPVP8 ", "image/webp", "webp"),
        (b"\0\0\0\x20ftypavif\0\0\0\0", "image/avif", "avif"),
        (b"\0\0\0\x20ftypisom\0\0\0\0", "video/mp4", "mp4"),
        (b"\0\0\0\x14ftypqt  \0\0\0\0", "video/quicktime", "mov"),
        (b"\0\0\0\x20ftypM4A \0\0\0\0", "audio/mp4", "m4a"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm", "video/webm", "webm"),
        (b"\x1a\x45\xdf\xa3\x9f\x42\x82\x88matroska", "video/x-matroska", "mkv"),
        (b"RIFF\x10\0\0\0WAVEfmt ", "audio/wav", "wav"),
        (b"RIFF\x10\0\0\0AVI LIST", "video/x-msvideo", "avi"),
        (b"ID3\x04\0\0", "audio/mpeg", "mp3"),
        (b"\xff\xfb\x90\x64\0\0", "audio/mpeg", "mp3"),
        (b"\xff\xf1\x50\x80", "audio/aac", "aac"),
        (b"fLaC\0\0\0\x22", "audio/flac", "flac"),
        (b"OggS\0\x02" + b"\0" * 20 + b"\x01\x1eOpusHead", "audio/ogg", "ogg"),
        (b"OggS\0\x02" + b"\0" * 20 + b"\x01\x2a\x80theora", "video/ogg", "ogv"),
        (b"<!doctype html><html>", "text/html", "html"),
        (b"\xef\xbb\xbf \n<HTML>", "text/html", "html"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "text/html", "html"),
        (b"<?xml version='1.0'?><MPD/>", "text/html", "html"),
        (b"#EXTM3U\n#EXT-X-VERSION:3", "application/vnd.apple.mpegurl", "m3u8"),
        (b"\n #EXTM3U\n", "application/vnd.apple.mpegurl", "m3u8"),
        (b"ffconcat version 1.0\nfile /etc/passwd", "application/vnd.apple.mpegurl", "m3u8"),
        (b'{"detail": "not found"}', "application/json", "json"),
        (b"[1, 2]", "application/json", "json"),
        (b"plain words", "text/plain", "txt"),
        ("é".encode() * 2048 + b"\xc3", "text/plain", "txt"),
        (b"PK\x03\x04\x14", "application/zip", "zip"),
        (b"\x00\x01\x02\x03", "application/octet-stream", "bin"),
        (b"\xff\xff\xff\xff", "application/octet-stream", "bin"),
        (b"", "application/octet-stream", "bin"),
    ],
)
def test_a_type_is_known_by_its_bytes(head, content_type, extension):
    found = sniff(head)
    assert (found.content_type, found.extension) == (content_type, extension)


@given(st.binary(max_size=200))
def test_any_bytes_have_a_type(head):
    assert sniff(b"\0\0" + head) is UNKNOWN or b"ftyp" in head
    assert sniff(head).content_type
