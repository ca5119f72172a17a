"""Proves that a result's media is whole: it is decoded to its last frame, in a child process, before it is kept.

The bytes are a stranger's and FFmpeg is large, so decoding never happens here: children do it, with limits on memory,
processor time and descriptors, no writing, no network, an environment of almost nothing, and the one demuxer that fits
the file's first bytes. To start a child takes longer than to decode most files, so each serves many, one at a time. It
is replaced after some, and after any answer but "whole": what a broken file did to it is not carried to the next.
"""

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from providers.errors import DownloadError
from providers.verify.words import Fault, Limits, Verdict

CHECKED = frozenset({"image", "video", "audio"})  # of the media kinds; of a `file` nothing is known to decode
AT_ONCE = 2  # children of one process; decoding takes a core
FILES_EACH = 500
IDLE_SECONDS = 60.0
DEFAULTS = Limits()
_ROOT = str(Path(__file__).resolve().parents[1])
# Isolated (-I): no user site, no PYTHON* variables, nothing from the working directory; only our own code is added.
_COMMAND = (
    sys.executable,
    "-I",
    "-c",
    f"import sys; sys.path.insert(0, {_ROOT!r}); from providers.verify.child import main; main()",
)
# A Python that is not the system's may need it to find its own library.
_INHERITED = ("LD_LIBRARY_PATH",)


class MediaCheck:
    """A few children that decode, started when first needed. Belongs to one event loop."""

    def __init__(self, *, at_once: int = AT_ONCE, files_each: int = FILES_EACH, idle: float = IDLE_SECONDS) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._files_each, self._idle_seconds = files_each, idle
        self._idle: list[_Child] = []
        self._leaving: set[asyncio.Task[int]] = set()

    async def verify(self, path: Path, expected_kind: str, *, limits: Limits = DEFAULTS) -> Verdict:
        """Decode all of the file at an absolute path. `expected_kind` is image, video or audio.

        Raises DownloadError: retryable `result_truncated`, `result_corrupt`, and `verify_crashed` when the child died,
        ran out of memory or gave no answer in time; final `result_too_large` (more pixels, pictures, sound or
        processor time than a file may cost) and `result_wrong_type`.
        """
        async with self._room:
            child = await self._child()
            whole = False
            try:
                answer = await child.ask(path, expected_kind, limits)
                whole = "verdict" in answer
            finally:
                if whole and child.served < self._files_each:
                    self._keep(child)
                else:
                    self._dismiss(child)
        if whole:
            return Verdict(**answer["verdict"])
        raise _error(answer)

    async def close(self) -> None:
        """End all children. What is being verified is not waited for."""
        while self._idle:
            self._dismiss(self._idle.pop())
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=2)

    async def _child(self) -> "_Child":
        while self._idle:
            child = self._idle.pop()
            if child.process.returncode is None:
                return child
        try:
            return await _Child.start()
        except OSError as error:
            raise _crashed(f"no process for it ({type(error).__name__})") from None

    def _keep(self, child: "_Child") -> None:
        child.idle_since = time.monotonic()
        self._idle.append(child)
        asyncio.get_running_loop().call_later(self._idle_seconds, self._retire)

    def _retire(self) -> None:
        # The most recent is used first, so the oldest stand at the front.
        while self._idle and time.monotonic() - self._idle[0].idle_since >= self._idle_seconds:
            self._dismiss(self._idle.pop(0))

    def _dismiss(self, child: "_Child") -> None:
        with suppress(ProcessLookupError):
            child.process.kill()
        # Kept until it is reaped, or the loop might forget the task.
        leaving = asyncio.ensure_future(child.process.wait())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)


class _Child:
    """One decoding process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.served = 0
        self.idle_since = 0.0

    @classmethod
    async def start(cls) -> "_Child":
        environment = {"LC_ALL": "C.UTF-8"} | {name: os.environ[name] for name in _INHERITED if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *_COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=environment,
            cwd="/",
            # Ctrl-C is for the worker, which lets what runs come to its end.
            start_new_session=True,
        )
        return cls(process)

    async def ask(self, path: Path, kind: str, limits: Limits) -> dict[str, Any]:
        """The child's answer about one file. Raises DownloadError when there is none."""
        assert self.process.stdin is not None  # noqa: S101  # both were asked for
        assert self.process.stdout is not None  # noqa: S101
        self.served += 1
        request = {"path": str(path), "kind": kind, "limits": asdict(limits)}
        try:
            async with asyncio.timeout(limits.wall_seconds):
                self.process.stdin.write(json.dumps(request).encode() + b"\n")
                await self.process.stdin.drain()
                line = await self.process.stdout.readline()
                if not line.endswith(b"\n"):
                    raise _ended(await self.process.wait(), limits)
        except TimeoutError:
            raise _crashed(f"no verdict within {limits.wall_seconds:g} s") from None
        except (OSError, ValueError) as error:
            raise _crashed(f"its decoder went away ({type(error).__name__})") from None
        return _read(line)


def _read(line: bytes) -> dict[str, Any]:
    """An answer of the child's, checked like a stranger's: it has had a stranger's bytes in its memory."""
    try:
        answer = json.loads(line)
        if "verdict" in answer:
            Verdict(**answer["verdict"])
            return {"verdict": answer["verdict"]}
        return {"fault": Fault(answer["fault"]), "why": str(answer["why"])[:200]}
    except (ValueError, TypeError, KeyError):
        raise _crashed("its decoder gave no answer that can be read") from None


def _ended(status: int, limits: Limits) -> DownloadError:
    if status == -signal.SIGXCPU:
        return DownloadError(
            "result_too_large", f"it takes more than {limits.cpu_seconds} s to decode", retryable=False
        )
    how = f"was ended by signal {-status}" if status < 0 else f"exited with {status}"
    return _crashed(f"its decoder {how}")


def _error(answer: dict[str, Any]) -> DownloadError:
    why = answer["why"]
    match answer["fault"]:
        case Fault.TRUNCATED:
            return DownloadError("result_truncated", why, retryable=True)
        case Fault.CORRUPT:
            return DownloadError("result_corrupt", why, retryable=True)
        case Fault.TOO_LARGE:
            return DownloadError("result_too_large", why, retryable=False)
        case Fault.WRONG_TYPE:
            return DownloadError("result_wrong_type", why, retryable=False)
    return _crashed(why)


def _crashed(words: str) -> DownloadError:
    return DownloadError("verify_crashed", words, retryable=True)
