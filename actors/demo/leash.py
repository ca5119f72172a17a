"""Runs a command in this process's group and kills the whole group once whoever started it is gone.

Run as a script, with the standard library alone. The starter holds the other end of standard input, so the kernel
closes it however the starter dies.
"""

import os
import signal
import subprocess
import sys
import threading


def hold(command: list[str]) -> int:
    """The command's exit code; past that, the end of standard input is the end of everything in this group."""
    # A handler rather than "ignore", which the command would inherit.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603  # the demo's own
    threading.Thread(target=_watch, daemon=True).start()
    return child.wait()


def _watch() -> None:
    while os.read(0, 1):
        pass
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(hold(sys.argv[1:]))
