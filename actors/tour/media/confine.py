"""Takes limits upon itself for good and becomes another program: a script of the standard library alone.

Arguments: a JSON object of limits (`memory`, `file_bytes`, `cpu_seconds`, `parent`), then the command. What it becomes
dies with its parent, leaves no core, and finds processor time, address space and the size of a file bounded.
"""

import ctypes
import json
import os
import resource
import signal
import sys

_FILES = 256  # descriptors: an input for each of many scenes
_SET_DEATH_SIGNAL = 1  # prctl


def main() -> None:
    """Never returns."""
    limits = json.loads(sys.argv[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != limits["parent"]:
        sys.exit("the parent is gone")
    for what, most in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_NOFILE, _FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    # First a signal that names the reason, then the one that nobody survives.
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"] + 5))
    command = sys.argv[2:]
    os.execv(command[0], command)  # noqa: S606  # no shell: that is the point


if __name__ == "__main__":
    main()
