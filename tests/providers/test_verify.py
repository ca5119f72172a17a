"""What the decoder itself takes and refuses, in this process; how it is kept in a child is the other file's matter."""

import io
import random
import re
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from providers import sniff
from providers.verify.decode import FORMATS, examine
from providers.verify.words import Fault, Limits, Refused, Verdict
from tests.providers.media import HEIGHT, PICTURES, RECIPES, WIDTH, expected, made, png_of

LIMITS = Limits()
CUT = {Fault.TRUNCATED, Fault.CORRUPT}
every = pytest.mark.parametrize("name", list(RECIPES))


def judged(data, kind, limits=LIMITS):
    """The verdict, or the fault."""
    try:
        return examine(io.BytesIO(data), len(data), kind, limits, lambda: None)
    except Refused as refused:
        return refused.fault


@every
def test_a_whole_file_is_taken_and_measured(name):
    verdict = judged(made(name), expected(name))
    assert isinstance(verdict, Verdict)
    recipe = RECIPES[name]
    if recipe.video:
        assert (verdict.width, verdict.height, verdict.frames) == (WIDTH, HEIGHT, recipe.pictures)
    if recipe.kind == "image":
        assert verdict.duration is None
    else:
        assert verdict.duration == pytest.approx(PICTURES / 25, abs=0.12)
    assert verdict.streams == bool(recipe.video) + bool(recipe.audio)


@every
def test_a_cut_file_is_never_taken(name):
    data, kind = made(name), expected(name)
    lengths = {len(data) * percent // 100 for percent in range(10, 100)} | {len(data) - k for k in (1, 2, 3, 7, 40)}
    # These two know no total: cut between two frames, they are shorter and whole.
    lengths -= borders(data, name)
    taken = [length for length in sorted(lengths) if judged(data[:length], kind) not in CUT]
    assert taken == []


def borders(data, name):
    """Where frames end, in what is nothing but frames. By their sync words, of which a small file has no false ones."""
    sync = {"aac": b"\xff\xf1", "bare mp3": b"\xff\xfb"}.get(name)
    return {found.start() for found in re.finditer(re.escape(sync), data)} if sync else set()


@every
def test_flipped_bits_end_in_a_verdict_or_a_refusal(name):
    """Most formats have no checksum, so a changed bit may be a changed colour; it must never be anything worse."""
    data, kind = made(name), expected(name)
    generator = random.Random(name)
    refused = 0
    for _ in range(25):
        changed = bytearray(data)
        for _ in range(generator.choice((1, 3, 20))):
            changed[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        found = judged(bytes(changed), kind)
        assert isinstance(found, Verdict | Fault)
        refused += isinstance(found, Fault)
    assert refused >= {"png": 25, "flac": 15, "ogg": 25}.get(name, 0)


CHECKED = (
    "faststart mp4",
    "fragmented mp4",
    "mov",
    "mkv",
    "webm vp9",
    "avi",
    "mp3",
    "bare mp3",
    "flac",
    "ogg",
    "m4a",
    "aac",
)


@pytest.mark.parametrize("name", [*CHECKED, "png", "jpeg", "gif"])
def test_a_hole_in_the_middle_is_not_whole(name):
    """Of the right length, a quarter of it zeros. Other formats have nothing that would show it: zeros decode."""
    data = made(name)
    middle = len(data) // 2
    changed = data[:middle] + bytes(len(data) // 4) + data[middle + len(data) // 4 :]
    assert isinstance(judged(changed, expected(name)), Fault)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("png", "video"), ("png", "audio"), ("mp4", "image"), ("mp3", "video"), ("wav", "image"), ("gif", "video")],
)
def test_another_kind_is_refused(name, kind):
    assert judged(made(name), kind) is Fault.WRONG_TYPE


@pytest.mark.parametrize(("name", "kind"), [("mov", "audio"), ("mp4 of sound", "video"), ("live webm", "audio")])
def test_a_container_without_what_was_expected_is_refused(name, kind):
    assert judged(made(name), kind) is Fault.WRONG_TYPE


@pytest.mark.parametrize(
    "data",
    [
        b"#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1/x.ts\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<svg xmlns='http://www.w3.org/2000/svg'><image href='file:///etc/passwd'/></svg>",
        b"just text",
        b"PK\x03\x04" + bytes(100),
        b"\x00" * 5000,
    ],
)
def test_what_is_no_media_is_never_shown_to_a_demuxer(data):
    for kind in ("image", "video", "audio"):
        assert judged(data, kind) is Fault.WRONG_TYPE


@pytest.mark.parametrize(
    "start", [made("png")[:8], made("jpeg")[:3], made("gif")[:6], b"\0\0\0\x18ftypisom", b"fLaC", b"OggS"]
)
def test_the_sniffed_demuxer_is_the_only_one(start):
    playlist = start + b"\n#EXTM3U\n#EXTINF:1,\nhttp://127.0.0.1:1/x.ts\n" * 50
    for kind in ("image", "video", "audio"):
        assert judged(playlist, kind) in {*CUT, Fault.WRONG_TYPE, Fault.TOO_LARGE}


def test_every_media_type_that_is_sniffed_can_be_decoded():
    sniffed = {value for table in (sniff._BRANDS, sniff._RIFF) for value in table.values()} | {sniff._MP4}
    sniffed |= {plain for _, plain in sniff._STARTS}
    media = {one.content_type for one in sniffed if one.family in ("image", "video", "audio")}
    assert media <= FORMATS.keys()


@pytest.mark.parametrize(
    "data",
    [
        png_of(16_384, 16_384),
        png_of(60_000, 2_000),
        b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0, 0, 0) + b"\x3b",
        b"\xff\xd8\xff\xc0" + struct.pack(">HBHHB", 8, 8, 65_500, 65_500, 0) + b"\xff\xd9",
        b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0" + b"\xff\xff\xff\xff\xff\xff",
        b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHIIHHIII", 256, 4, 1, 60_000, 257, 4, 1, 60_000, 0),
    ],
    ids=["png", "wide png", "gif", "jpeg", "webp", "tiff"],
)
def test_a_picture_that_claims_too_much_is_refused_unseen(data):
    assert len(data) < 200_000
    assert judged(data, "image") is Fault.TOO_LARGE


@pytest.mark.parametrize(
    "name", ["mp4", "webm", "webm vp9", "mkv", "avi", "png", "webp", "animated webp", "avif", "gif"]
)
def test_pixels_are_limited_by_what_the_decoder_sees_too(name):
    assert judged(made(name), expected(name), Limits(pixels=WIDTH * HEIGHT - 1)) is Fault.TOO_LARGE


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("mp4", Limits(frames=PICTURES - 1)),
        ("gif", Limits(frames=4)),
        ("animated webp", Limits(frames=4)),
        ("wav", Limits(seconds=1.0)),
        ("mp3", Limits(seconds=1.0)),
        ("mp4", Limits(streams=1)),
        ("png", Limits(image_bytes=100)),
    ],
)
def test_limits_are_kept_while_decoding(name, limits):
    assert judged(made(name), expected(name), limits) is Fault.TOO_LARGE


def test_a_large_but_lawful_picture_is_taken():
    verdict = judged(png_of(4096, 4096), "image")
    assert (verdict.width, verdict.height) == (4096, 4096)


def test_joined_mp3s_are_whole_and_cut_ones_are_not():
    """As services make them that send speech in pieces: a header that counts the first piece only, and seams."""
    joined = made("mp3") + made("bare mp3") + made("mp3")
    verdict = judged(joined, "audio")
    assert verdict.duration > 3
    assert judged(joined[:-50], "audio") in CUT


def test_what_follows_a_whole_picture_does_no_harm():
    for name in ("png", "jpeg", "gif", "webp"):
        assert isinstance(judged(made(name) + b"trailing bytes", "image"), Verdict)


def test_a_wav_written_as_a_stream_is_taken():
    data = bytearray(made("wav"))
    data[4:8] = b"\xff\xff\xff\xff"
    place = data.index(b"data")
    data[place + 4 : place + 8] = b"\xff\xff\xff\xff"
    assert isinstance(judged(bytes(data), "audio"), Verdict)


def test_the_parent_is_thought_of_while_decoding():
    class Gone(Exception):
        pass

    def tick():
        raise Gone

    data = made("mp4")
    with pytest.raises(Gone):
        examine(io.BytesIO(data), len(data), "video", LIMITS, tick)


HEADS = st.sampled_from(
    [
        made(name)[:64]
        for name in ("png", "jpeg", "gif", "webp", "tiff", "mp4", "webm", "wav", "mp3", "aac", "ogg", "flac", "avi")
    ]
)


@settings(max_examples=150, deadline=None)
@given(HEADS, st.binary(max_size=600), st.sampled_from(["image", "video", "audio"]))
def test_arbitrary_bytes_are_refused(head, rest, kind):
    assert isinstance(judged(head + rest, kind), Fault | Verdict)
    assert isinstance(judged(rest, kind), Fault)
