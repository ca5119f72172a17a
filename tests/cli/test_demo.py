"""`callkeeper demo` as a user runs it: it ends well, its numbers agree, and nothing of it is left, however it ends."""

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def leftovers(folder: Path) -> list[str]:
    """Processes that run in the demo's folder or name it: Postgres, sandbox, workers, scheduler, leashes."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join([*process.cmdline(), process.cwd()])
        except psutil.Error:
            continue
        if str(folder) in words:
            found.append(f"{process.pid} {words}")
    return found


def number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    assert found is not None, f"{pattern} is not in:\n{text}"
    return int(found.group(1))


def test_the_demo_brings_every_call_home(start: Callable[..., Any], until: Callable[..., None], folder: Path) -> None:
    began = time.monotonic()
    demo = start("demo")
    assert demo.wait(120) == 0, demo.output
    assert time.monotonic() - began < 120
    said = demo.output
    calls = number(r"calls +(\d+) ", said)
    creates = number(r"upstream creates +(\d+),", said)
    completed = number(r"completed +(\d+)\n", said)
    failed = number(r"failed and refunded +(\d+)", said)
    assert calls == 40
    assert completed + failed == calls
    assert completed <= creates <= calls
    assert "billed twice: 0" in said
    assert number(r"mid-create \((\d+) creates", said) >= 1
    assert number(r"mid-poll \((\d+) polls", said) >= 1
    assert len(re.findall("SIGKILL worker", said)) >= 2
    after = r"credits after +(\d+) granted = (\d+) available \+ (\d+) reserved \+ (\d+) committed"
    granted, available, reserved, committed = map(int, re.search(after, said).groups())  # type: ignore[union-attr]
    assert granted == available + reserved + committed
    assert reserved == 0
    assert committed >= completed
    assert "audit: 0 violations" in said
    assert "not as it should be" not in said
    if "reconcile_no_recovery" in said:
        assert "reconcile_no_recovery: a synchronous call's answer was lost with its worker" in said
    assert number(r"found again +(\d+) calls", said) >= 1
    until(lambda: not leftovers(folder), lambda: str(leftovers(folder)), seconds=10)
    assert [path.name for path in folder.iterdir()] == [demo.log.name]


def begun(demo: Any) -> bool:
    assert demo.process.poll() is None, demo.output
    return "running" in demo.output


def test_ctrl_c_leaves_nothing_behind(start: Callable[..., Any], until: Callable[..., None], folder: Path) -> None:
    demo = start("demo")
    until(lambda: begun(demo), lambda: demo.output)
    demo.process.send_signal(signal.SIGINT)
    assert demo.wait() == 130, demo.output
    assert "nothing is left running" in demo.output
    until(lambda: not leftovers(folder), lambda: str(leftovers(folder)), seconds=10)
    assert [path.name for path in folder.iterdir()] == [demo.log.name]


def test_even_sigkill_leaves_nothing_running(
    start: Callable[..., Any], until: Callable[..., None], folder: Path
) -> None:
    demo = start("demo")
    until(lambda: begun(demo), lambda: demo.output)
    assert len(leftovers(folder)) > 4
    demo.process.kill()
    demo.wait()
    until(lambda: not leftovers(folder), lambda: str(leftovers(folder)), seconds=30)
