"""The timeline policy on real media: probed, decided, repaired, and probed again."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from actors.tour.media import children
from actors.tour.media.children import ChildFailed, DiskFull, Limits, MemoryRanOut, TookTooLong
from actors.tour.media.ffmpeg import Ffmpeg, Source
from actors.tour.media.probe import DEMUXERS, NOTHING, probe
from actors.tour.media.workshop import NotUsable, Workshop
from actors.tour.plan import Frame
from actors.tour.timeline.policy import SYNC, accepts, decide
from actors.tour.timeline.scenes import Placed, Shot
from actors.tour.timeline.words import Decision, Quality, Speech
from tests.chaos.harness import until
from tests.tour.media_kit import CASES, QUICK, RATE, TYPES, Case, made

FRAME = Frame(width=160, height=90, rate=RATE)
LIMITS = Limits(wall_seconds=60, cpu_seconds=60)


def never() -> None:
    """Nobody wants anything to end."""


def workshop(folder: Path) -> Workshop:
    return Workshop(folder, FRAME, check=never, limits=LIMITS)


def fate(case: Case, folder: Path) -> Quality:
    """What becomes of the file: decided, done, and checked as the pipeline does it."""
    path = folder / f"came.{case.form}"
    path.write_bytes(made(case))
    bench = workshop(folder)
    source, came = bench.look(path, TYPES[case.form])
    decision = decide(came, case.need)
    if decision.quality is Quality.UNUSABLE:
        return decision.quality
    if case.need.speech is Speech.NONE:
        _, out = bench.join([(Placed(Shot("one", case.need.target), decision), source)])
    else:
        voice = source if came.sound else silence(folder)
        _, out = bench.finish(source, voice, decision, None)
        assert out.sound is not None
        assert out.picture is not None
        assert abs(out.sound.seconds - out.picture.seconds) <= SYNC
    assert out.errors == 0
    assert out.picture is not None
    assert (out.picture.width, out.picture.height, out.picture.rate) == (160, 90, RATE)
    assert abs(out.picture.seconds - decision.picture) <= 1 / RATE
    return decision.quality


def silence(folder: Path) -> Source:
    path = folder / "silence.wav"
    path.write_bytes(made(next(case for case in CASES if case.form == "wav")))
    return Source(path, "wav")


@pytest.mark.parametrize("case", [case for case in CASES if case.name in QUICK], ids=lambda case: case.name)
def test_media_ends_as_the_policy_says(case: Case, tmp_path: Path) -> None:
    assert fate(case, tmp_path) is case.quality


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_all_media_ends_as_the_policy_says(case: Case, tmp_path: Path) -> None:
    assert fate(case, tmp_path) is case.quality


def test_there_are_thirty_kinds_of_faults_and_more() -> None:
    assert len(CASES) >= 30
    assert {case.quality for case in CASES} == set(Quality)


def test_an_output_that_is_not_as_decided_is_refused(tmp_path: Path) -> None:
    """The look at what came out is no formality: an output of another length is not handed on."""
    path = tmp_path / "came.mp4"
    path.write_bytes(made(CASES[0]))
    came = probe(path, "mov", check=never)
    promised = Decision(Quality.REPAIRED, picture=3.0)
    assert "lasts 2.000 s" in str(accepts(came, promised, rate=RATE))
    assert accepts(came, Decision(Quality.STANDARD, picture=2.0, sound=2.0), rate=RATE) == "it has no sound"
    assert accepts(NOTHING, promised, rate=RATE) == "it does not decode whole"


def test_what_is_no_media_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "page.mp4"
    path.write_bytes(b"<html>Just a moment</html>")
    assert probe(path, "mov", check=never) == NOTHING
    with pytest.raises(NotUsable, match="text/html is not media"):
        workshop(tmp_path).look(path, "text/html")


def test_a_playlist_opens_nothing(tmp_path: Path) -> None:
    """No file that came from outside can make FFmpeg read another one."""
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(made(CASES[0]))
    listing = tmp_path / "list.mp4"
    listing.write_text(f"#EXTM3U\n#EXTINF:2,\n{secret.as_uri()}\n#EXT-X-ENDLIST\n")
    assert "hls" not in DEMUXERS.values()
    assert all(probe(listing, demuxer, check=never).picture is None for demuxer in set(DEMUXERS.values()))


def child(code: str, folder: Path, **limits: float) -> bytes:
    command = [sys.executable, "-I", "-c", code]
    return children.run(command, folder=folder, limits=Limits(**limits), check=never)


def test_a_child_that_is_killed_is_memory_that_ran_out(tmp_path: Path) -> None:
    with pytest.raises(MemoryRanOut):
        child("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    with pytest.raises(MemoryRanOut):
        child("x = bytearray(3 * 1024**3)", tmp_path, memory=1024**3)
    with pytest.raises(MemoryRanOut):
        child("import sys; sys.exit(137)", tmp_path)


@pytest.mark.parametrize("mebibytes", [100, 200, 400])
def test_ffmpeg_that_is_refused_memory_wants_a_larger_machine(tmp_path: Path, mebibytes: int) -> None:
    """However its libraries put it: some crash, some fail to start a thread, some say so."""
    path = tmp_path / "came.mp4"
    path.write_bytes(made(CASES[0]))
    small = Limits(memory=mebibytes * 1024**2)
    bench = Ffmpeg(tmp_path, check=never, limits=small)
    with pytest.raises(MemoryRanOut):
        bench.fit(
            Source(path, "mov"),
            Decision(Quality.STANDARD, picture=2.0),
            Frame(width=1920, height=1080, rate=24),
            tmp_path / "out.mp4",
        )


def test_a_child_is_bounded_and_ended(tmp_path: Path) -> None:
    with pytest.raises(TookTooLong):
        child("import time; time.sleep(60)", tmp_path, wall_seconds=0.2)
    with pytest.raises(TookTooLong):
        child("while True: pass", tmp_path, cpu_seconds=1)
    with pytest.raises(ChildFailed) as failed:
        child("with open('big', 'wb') as file: file.write(b'x' * 2000)", tmp_path, file_bytes=1000)
    assert failed.value.status in (1, -signal.SIGXFSZ)


def test_a_full_disk_is_not_the_medias_fault(tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        child("import errno, os, sys; sys.exit(os.strerror(errno.ENOSPC))", tmp_path)


def test_a_child_ends_when_it_is_no_longer_wanted(tmp_path: Path) -> None:
    asked = []

    def check() -> None:
        asked.append(1)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        children.run(
            [sys.executable, "-c", f"import time; open({str(tmp_path / 'pid')!r}, 'w'); time.sleep(60)"],
            folder=tmp_path,
            limits=Limits(),
            check=check,
        )
    assert asked == [1]


def test_a_child_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """SIGKILL of a worker ends the FFmpeg below it, however long that would go on."""
    if sys.platform != "linux":
        return
    code = (
        "import sys, threading; from pathlib import Path; from actors.tour.media import children\n"
        "command = [sys.executable, '-c', 'import os, sys, time; print(os.getpid(), flush=True); time.sleep(60)']\n"
        "children.run(command, folder=Path(sys.argv[1]), limits=children.Limits(), check=lambda: None)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2])
    out = tmp_path / "child.out"
    pid = int(until(lambda: out.exists() and out.read_text().strip(), what="the child"))
    parent.kill()
    parent.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), what="the child's end")
