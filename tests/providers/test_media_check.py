"""The children that decode: their verdicts as errors, their limits, and what becomes of them when anything goes wrong."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from providers.errors import DownloadError
from providers.media_check import MediaCheck, _read
from providers.verify.words import Limits, Verdict
from tests.providers.media import RECIPES, expected, made, png_of

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def checking(**options):
    check = MediaCheck(**options)
    try:
        yield check
    finally:
        await check.close()


def put(folder, data):
    path = folder / "file"
    path.write_bytes(data)
    return path


def child_of(check):
    """The one idle child's process id."""
    (child,) = check._idle
    return child.process.pid


async def gone(pid, seconds=5.0):
    until = time.monotonic() + seconds
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "the child is still there"
        await asyncio.sleep(0.01)


async def refused(check, path, kind, **more):
    with pytest.raises(DownloadError) as caught:
        await check.verify(path, kind, **more)
    return caught.value


def test_every_kind_of_file_is_verified_by_one_child(tmp_path):
    async def main():
        async with checking(at_once=1) as check:
            pids = set()
            for name in RECIPES:
                verdict = await check.verify(put(tmp_path, made(name)), expected(name))
                assert isinstance(verdict, Verdict)
                pids.add(child_of(check))
            assert len(pids) == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("data", "kind", "limits", "code", "retryable"),
    [
        (made("mp4")[:-10], "video", Limits(), "result_truncated", True),
        (made("faststart mp4")[: len(made("faststart mp4")) // 2], "video", Limits(), "result_truncated", True),
        (made("png")[:50] + b"\0\0" + made("png")[52:], "image", Limits(), "result_corrupt", True),
        (png_of(16_384, 16_384), "image", Limits(), "result_too_large", False),
        (made("mp4"), "video", Limits(frames=3), "result_too_large", False),
        (made("mp3"), "video", Limits(), "result_wrong_type", False),
        (b"<html>", "image", Limits(), "result_wrong_type", False),
        (png_of(6000, 6000, colour=True), "image", Limits(memory=180 * 1024**2), "verify_crashed", True),
    ],
    ids=["cut", "half", "corrupt", "bomb", "many pictures", "another kind", "a page", "memory"],
)
def test_a_refusal_says_whether_time_can_help(tmp_path, data, kind, limits, code, retryable):
    async def main():
        async with checking() as check:
            error = await refused(check, put(tmp_path, data), kind, limits=limits)
            assert (error.code, error.retryable, error.gone) == (code, retryable, False)
            # Whatever the file did to that child, no other file meets it.
            assert check._idle == []
            assert await check.verify(put(tmp_path, made("png")), "image")

    asyncio.run(main())


def test_a_file_that_is_not_there_is_no_verdict(tmp_path):
    async def main():
        async with checking() as check:
            return await refused(check, tmp_path / "nothing", "image")

    error = asyncio.run(main())
    assert (error.code, error.retryable) == ("verify_crashed", True)
    assert str(tmp_path) not in error.message


def test_what_a_child_may_do_is_little(tmp_path, monkeypatch):
    monkeypatch.setenv("CANARY_KEY", "r8_canary")

    async def main():
        async with checking() as check:
            await check.verify(put(tmp_path, made("png")), "image")
            pid = child_of(check)
            process = psutil.Process(pid)
            assert set(process.environ()) - {"LD_LIBRARY_PATH"} == {"LC_ALL"}
            assert process.cwd() == "/"
            assert process.rlimit(resource.RLIMIT_FSIZE) == (0, 0)
            assert process.rlimit(resource.RLIMIT_CORE) == (0, 0)
            assert process.rlimit(resource.RLIMIT_NOFILE) == (16, 16)
            assert process.rlimit(resource.RLIMIT_AS)[0] == Limits().memory
            assert 0 < process.rlimit(resource.RLIMIT_CPU)[0] <= Limits().cpu_seconds + 10
            assert process.num_fds() <= 6
            assert os.getsid(pid) == pid

    asyncio.run(main())


@pytest.mark.parametrize(
    ("number", "code", "retryable"),
    [(signal.SIGKILL, "verify_crashed", True), (signal.SIGSEGV, "verify_crashed", True), (signal.SIGXCPU, "result_too_large", False)],
)  # fmt: skip
def test_a_child_that_is_killed_at_work(tmp_path, number, code, retryable):
    async def main():
        async with checking() as check:
            path = put(tmp_path, made("png"))
            await check.verify(path, "image")
            pid = child_of(check)
            os.kill(pid, signal.SIGSTOP)
            work = asyncio.ensure_future(check.verify(path, "image"))
            await asyncio.sleep(0.1)
            os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
            with pytest.raises(DownloadError) as caught:
                await work
            assert (caught.value.code, caught.value.retryable) == (code, retryable)
            assert await check.verify(path, "image")
            assert child_of(check) != pid

    asyncio.run(main())


def test_a_child_that_died_idle_is_not_asked(tmp_path):
    async def main():
        async with checking() as check:
            path = put(tmp_path, made("png"))
            await check.verify(path, "image")
            pid = child_of(check)
            os.kill(pid, signal.SIGKILL)
            await gone(pid)
            await asyncio.sleep(0.05)
            assert await check.verify(path, "image")

    asyncio.run(main())


def test_a_verdict_is_waited_for_only_so_long(tmp_path):
    async def main():
        async with checking() as check:
            path = put(tmp_path, made("png"))
            await check.verify(path, "image")
            pid = child_of(check)
            os.kill(pid, signal.SIGSTOP)
            error = await refused(check, path, "image", limits=Limits(wall_seconds=0.2))
            assert (error.code, error.retryable) == ("verify_crashed", True)
            await gone(pid)

    asyncio.run(main())


def test_processor_time_is_granted_to_each_file_anew(tmp_path):
    async def main():
        async with checking(at_once=1) as check:
            path = put(tmp_path, png_of(4096, 4096))
            limits = Limits(cpu_seconds=30)
            granted = []
            for _ in range(2):
                await check.verify(path, "image", limits=limits)
                process = psutil.Process(child_of(check))
                granted.append(process.rlimit(resource.RLIMIT_CPU)[0] - sum(process.cpu_times()[:2]))
            assert all(28 < seconds <= 32 for seconds in granted)

    asyncio.run(main())


def test_a_cancelled_check_leaves_no_child(tmp_path):
    async def main():
        async with checking() as check:
            path = put(tmp_path, made("png"))
            await check.verify(path, "image")
            pid = child_of(check)
            os.kill(pid, signal.SIGSTOP)
            work = asyncio.ensure_future(check.verify(path, "image"))
            await asyncio.sleep(0.05)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            await gone(pid)
            assert await check.verify(path, "image")

    asyncio.run(main())


def test_a_child_is_replaced_after_some_files(tmp_path):
    async def main():
        async with checking(at_once=1, files_each=2) as check:
            path = put(tmp_path, made("png"))
            await check.verify(path, "image")
            first = child_of(check)
            await check.verify(path, "image")
            assert check._idle == []
            await check.verify(path, "image")
            assert child_of(check) != first

    asyncio.run(main())


def test_idle_children_go(tmp_path):
    async def main():
        async with checking(idle=0.1) as check:
            await check.verify(put(tmp_path, made("png")), "image")
            pid = child_of(check)
            await gone(pid)
            assert check._idle == []

    asyncio.run(main())


def test_only_so_many_at_once(tmp_path):
    async def main():
        async with checking(at_once=2) as check:
            path = put(tmp_path, made("png"))
            before = len(psutil.Process().children())
            await asyncio.gather(*(check.verify(path, "image") for _ in range(12)))
            assert len(check._idle) <= 2
            assert len(psutil.Process().children()) - before <= 2

    asyncio.run(main())


def test_the_event_loop_goes_on_meanwhile(tmp_path):
    async def main():
        async with checking() as check:
            path = put(tmp_path, png_of(8192, 8192))
            ticks = 0
            work = asyncio.ensure_future(check.verify(path, "image"))
            while not work.done():
                await asyncio.sleep(0.005)
                ticks += 1
            await work
            return ticks

    assert asyncio.run(main()) > 1  # a loop that was held up gets one tick, at the end


def test_children_do_not_outlive_a_killed_parent(tmp_path):
    program = (
        "import asyncio, sys, time\n"
        "from pathlib import Path\n"
        "from providers.media_check import MediaCheck\n"
        "async def main():\n"
        "    check = MediaCheck()\n"
        "    await check.verify(Path(sys.argv[1]), 'image')\n"
        "    print(check._idle[0].process.pid, flush=True)\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    path = put(tmp_path, made("png"))
    command = [sys.executable, "-c", program, str(path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    asyncio.run(gone(pid))


@given(
    st.binary(max_size=80)
    | st.sampled_from(
        [
            b"{}",
            b"[]",
            b"null",
            b"7",
            b'{"verdict":{}}',
            b'{"verdict":7}',
            b'{"fault":"new","why":""}',
            b'{"fault":"corrupt"}',
        ]
    )
)
def test_an_answer_that_cannot_be_read_is_none(line):
    with pytest.raises(DownloadError) as caught:
        _read(line + b"\n")
    assert caught.value.code == "verify_crashed"


def test_only_children_load_the_decoders():
    program = "import sys, actors, actors.runtime, actors.results; sys.exit('av' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=True)
