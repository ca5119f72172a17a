"""A PostgreSQL of one's own, for the demo and the tests: from a wheel, on a Unix socket only, without configuration.

Several processes may start the same folder; the last one to go stops the server. Use is a shared lock on a file, so the
kernel ends it however a process dies, and a guardian (see guardian.py) then stops the server.
"""

import contextlib
import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from store import binaries, guardian
from store.engine import libpq_url

DEFAULT_VERSION = 18
_SETTINGS = {"max_connections": "300", "listen_addresses": "", "port": "5432", "log_min_messages": "warning"}
_READY_SECONDS = 60.0
# A Unix socket's path may have 107 bytes on Linux, 103 elsewhere.
_LONGEST_SOCKET_FOLDER = 103 - len("/.s.PGSQL.5432")
_PROCESSES = Path("/proc")


class EmbeddedServer:
    """A running server. Make one with `start`; leave it with `stop` or a `with` block."""

    def __init__(self, home: Path, version: int) -> None:
        self.version = version
        self._programs = binaries.directory(version)
        self._user = binaries.system_user()
        self._home = home.expanduser().resolve()
        self._cluster = self._home / str(version)
        self._log = self._home / f"{version}.log"
        self._users = self._home / f"{version}.users.lock"
        self._use: int | None = None

    @property
    def url(self) -> str:
        """Where to connect, in SQLAlchemy's form, to the database `postgres`."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={quote(str(self._socket_folder()))}&port=5432"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Create a database, as a copy of `template` where given (nobody may be connected to it); returns its URL."""
        create_database(self.url, name, template=template)
        return self.url_of(name)

    def restart_immediate(self) -> None:
        """Crash and recover: every connection breaks, what was not committed is gone. Returns once it answers again."""
        with self._alone():
            self._pg_ctl("restart", "-m", "immediate", "-w", "-l", str(self._log))
            self._wait_until_ready()

    def stop(self) -> None:
        """Let go; the server stops if nobody else uses it. Safe to call twice."""
        if self._use is None:
            return
        with self._alone():
            if _last(self._use):
                self._pg_ctl("stop", "-m", "fast", "-w", check=False)
                shutil.rmtree(self._short_socket_folder(), ignore_errors=True)
            os.close(self._use)
            self._use = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _begin(self, settings: Mapping[str, str]) -> None:
        self._home.mkdir(parents=True, exist_ok=True)
        with self._alone():
            # Waits where a guardian is just stopping the server.
            self._use = _open_lock(self._users)
            fcntl.flock(self._use, fcntl.LOCK_SH)
            try:
                self._guard()
                if not self._alive():
                    self._bury()
                    self._prepare()
                    self._configure(settings)
                    self._launch()
                self._wait_until_ready()
            except BaseException:
                # The guardian stops whatever has been started.
                os.close(self._use)
                self._use = None
                raise

    def _prepare(self) -> None:
        if self._user is not None:
            binaries.open_way(self._programs / "postgres")
            binaries.open_way(self._cluster)
            binaries.make_readable(self._programs)
        self._own(self._log, folder=False)
        if (self._cluster / "PG_VERSION").exists():
            return
        # Built aside and moved, so that a killed initdb leaves no half cluster behind.
        unfinished = self._home / f"{self.version}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        self._own(unfinished, folder=True)
        self._run("initdb", "-D", str(unfinished), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C")
        with (unfinished / "postgresql.conf").open("a") as configuration:
            configuration.write("include_if_exists = 'callkeeper.conf'\n")
        unfinished.rename(self._cluster)

    def _configure(self, settings: Mapping[str, str]) -> None:
        folder = self._socket_folder()
        self._own(folder, folder=True)
        chosen = {**_SETTINGS, "unix_socket_directories": str(folder), **settings}
        escaped = {name: value.replace("'", "''") for name, value in chosen.items()}
        self._own(self._cluster / "callkeeper.conf", folder=False)
        text = "".join(f"{name} = '{value}'\n" for name, value in escaped.items())
        (self._cluster / "callkeeper.conf").write_text(text)

    def _launch(self) -> None:
        if self._pg_ctl("start", "-w", "-l", str(self._log), check=False).returncode:
            said = "\n".join(self._log.read_text(errors="replace").splitlines()[-20:])
            raise binaries.ServerUnavailable(f"PostgreSQL did not start, its log {self._log} says:\n{said}")

    def _guard(self) -> None:
        stop = [str(self._programs / "pg_ctl"), "-D", str(self._cluster), "stop", "-m", "fast", "-w"]
        user = "" if self._user is None else f"{self._user.pw_uid}:{self._user.pw_gid}"
        script = [sys.executable, "-I", "-S", guardian.__file__, str(self._users), user, *stop]
        # Through a shell that leaves at once: the guardian outlives us, so it must not be our child to wait for.
        command = f"{shlex.join(script)} </dev/null >/dev/null 2>&1 &"
        subprocess.run(["/bin/sh", "-c", command], start_new_session=True, cwd="/", check=True)  # noqa: S603

    def _alive(self) -> bool:
        """Whether the pid left in the folder is a server's of this folder, and no stranger's with a reused number."""
        try:
            pid = int((self._cluster / "postmaster.pid").read_text().split("\n", 1)[0])
            if _PROCESSES.exists():
                return (_PROCESSES / str(pid) / "cwd").readlink() == self._cluster
            os.kill(pid, 0)
        except (OSError, ValueError):
            return False
        return True

    def _bury(self) -> None:
        """Clear what a killed postmaster left: its number may be a stranger's or a zombie's, and stops a new one.

        The files also keep a new one from starting beside children of the old that still write, so those end first.
        """
        if not _PROCESSES.exists():
            return
        give_up = time.monotonic() + _READY_SECONDS
        while children := self._at_work():
            if time.monotonic() > give_up:
                raise binaries.ServerUnavailable(f"processes {children} of a killed server still work: end them")
            time.sleep(0.02)
        (self._cluster / "postmaster.pid").unlink(missing_ok=True)
        (self._socket_folder() / ".s.PGSQL.5432.lock").unlink(missing_ok=True)

    def _at_work(self) -> list[int]:
        """Processes of this cluster: each has its folder as working directory."""
        found = []
        for process in _PROCESSES.iterdir():
            # It may end while we look, and other people's are none of ours.
            with contextlib.suppress(OSError):
                if process.name.isdigit() and (process / "cwd").readlink() == self._cluster:
                    found.append(int(process.name))
        return found

    def _wait_until_ready(self) -> None:
        give_up = time.monotonic() + _READY_SECONDS
        while True:
            try:
                psycopg.connect(libpq_url(self.url), connect_timeout=5).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > give_up:
                    raise binaries.ServerUnavailable(
                        f"PostgreSQL does not answer after {_READY_SECONDS:.0f} s, see {self._log}"
                    ) from error
                time.sleep(0.02)
            else:
                return

    def _socket_folder(self) -> Path:
        fits = len(os.fsencode(self._cluster)) <= _LONGEST_SOCKET_FOLDER
        return self._cluster if fits else self._short_socket_folder()

    def _short_socket_folder(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self._cluster)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"callkeeper-{os.geteuid()}-{digest}"

    def _own(self, path: Path, *, folder: bool) -> None:
        if folder:
            path.mkdir(mode=0o700, exist_ok=True)
        else:
            path.touch(mode=0o600)
        ours = {os.geteuid(), self._user.pw_uid if self._user else os.geteuid()}
        # In a shared temporary folder anybody may have been there first, with a link to somewhere else.
        if path.is_symlink() or path.stat().st_uid not in ours:
            raise binaries.ServerUnavailable(f"{path} belongs to somebody else: remove it")
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid, follow_symlinks=False)

    def _pg_ctl(self, verb: str, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._run("pg_ctl", "-D", str(self._cluster), "-t", "60", *options, verb, check=check)

    def _run(self, program: str, *options: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        done = subprocess.run(  # noqa: S603
            [str(self._programs / program), *options],
            **guardian.identity(self._user and (self._user.pw_uid, self._user.pw_gid)),
            env={**environment, "LC_ALL": "C"},
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise binaries.ServerUnavailable(f"{program} failed:\n{done.stdout}{done.stderr}")
        return done

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time starts, stops or restarts this server."""
        descriptor = _open_lock(self._home / f"{self.version}.start.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def start(
    data_dir: Path, *, version: int = DEFAULT_VERSION, settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Start the server of that folder, or join the one that runs there.

    The folder is made if need be and keeps one cluster a major version. `settings` are postgresql.conf's, and count
    when this call is the one that starts the server; fsync stays on. For root, the server runs as a system user, and
    folders above `data_dir` and the programs that others cannot enter are opened for entering. Raises
    `binaries.ServerUnavailable`, with the remedy, where no server can be started.
    """
    server = EmbeddedServer(data_dir, version)
    server._begin(settings or {})  # noqa: SLF001 -- a server that is not running has no public life
    return server


def create_database(admin_url: str, name: str, *, template: str | None = None) -> None:
    """Create a database on any server. Copies through the WAL: faster than files for a small one, and no checkpoint."""
    statement = sql.SQL("create database {} template {} strategy wal_log").format(
        sql.Identifier(name), sql.Identifier(template or "template0")
    )
    with psycopg.connect(libpq_url(admin_url), autocommit=True) as connection:
        connection.execute(statement)


def drop_database(admin_url: str, name: str) -> None:
    """Drop a database, ending whatever is still connected to it."""
    with psycopg.connect(libpq_url(admin_url), autocommit=True) as connection:
        connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _last(use: int) -> bool:
    """Whether nobody else uses the server. Where its guardian is just stopping it, wait for that."""
    try:
        fcntl.flock(use, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(use, fcntl.LOCK_SH)
        return False
    return True
