"""Stops an embedded server once nobody uses it, even where its last user was SIGKILLed and could not say goodbye.

Run as a script, with the standard library alone: users hold a shared lock on one file, so the exclusive lock is granted
exactly when the kernel has closed the last of them.
"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TypedDict


class Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def identity(system_user: tuple[int, int] | None) -> Identity:
    """How subprocess starts a program as that user and group, with no other rights. None: as ourselves."""
    if system_user is None:
        return {}
    return {"user": system_user[0], "group": system_user[1], "extra_groups": []}


def stop_when_unused(users: Path, system_user: tuple[int, int] | None, command: list[str]) -> None:
    """Block until `users` is locked by nobody, then run `command` as that user and group."""
    descriptor = os.open(users, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Fails where somebody has stopped the server already, which is what was wanted.
    subprocess.run(command, **identity(system_user), cwd="/", check=False)  # noqa: S603
    os.close(descriptor)


if __name__ == "__main__":
    name, _, group = sys.argv[2].partition(":")
    stop_when_unused(Path(sys.argv[1]), (int(name), int(group)) if name else None, sys.argv[3:])
