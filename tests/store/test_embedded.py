"""The embedded server: shared by its users, gone with the last of them, whole again after any kill."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from store import binaries, embedded
from store.engine import libpq_url

USER = """
import sys
from pathlib import Path
from store import embedded
server = embedded.start(Path(sys.argv[1]))
print(server.url, flush=True)
sys.stdin.readline()
server.stop()
"""

QUERY = """
import sys
import psycopg
with psycopg.connect(sys.argv[1], application_name="busy") as connection:
    connection.execute("select count(*) from generate_series(1, 30000000)")
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that only its owner may enter."""
    with tempfile.TemporaryDirectory(prefix="callkeeper-tests-") as folder:
        yield Path(folder) / "not yet" / "there"


@pytest.fixture
def use(home: Path) -> Iterator[Callable[[], "User"]]:
    users: list[User] = []

    def start() -> User:
        users.append(User(home))
        return users[-1]

    yield start
    for user in users:
        user.kill()
    wait_until(lambda: not postmasters(home), "the server gone")


class User:
    """Another process that uses the server."""

    def __init__(self, home: Path) -> None:
        command = [sys.executable, "-W", "error", "-c", USER, str(home)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def url(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self.process.wait(30) == 0
        self._close()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        self._close()

    def _close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            if stream and not stream.closed:
                stream.close()


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up, f"never saw: {what}"
        time.sleep(0.01)


def postmasters(home: Path) -> list[int]:
    """The servers that run on a folder under `home`, dead ones that nobody has buried left out."""
    found = []
    for process in psutil.process_iter(["name", "cmdline", "status"]):
        arguments = process.info["cmdline"] or []
        dead = process.info["status"] == psutil.STATUS_ZOMBIE
        if process.info["name"] == "postgres" and not dead and str(home.resolve() / "18") in arguments:
            found.append(process.pid)
    return found


def alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def answers(url: str) -> bool:
    try:
        with psycopg.connect(libpq_url(url), connect_timeout=2) as connection:
            return connection.execute("select 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_server_is_whole_private_and_durable(home: Path) -> None:
    with embedded.start(home, settings={"application_name": "it's ours"}) as server:
        with psycopg.connect(libpq_url(server.url)) as connection:
            asked = ("max_connections", "fsync", "synchronous_commit", "listen_addresses", "application_name")
            told = [connection.execute("select current_setting(%s)", [name]).fetchone() for name in asked]
        assert told == [("300",), ("on",), ("on",), ("",), ("it's ours",)]
        server.create_database("mine")
        assert answers(server.url_of("mine"))
    assert not answers(server.url)
    assert postmasters(home) == []


def test_data_survives_a_stop_and_a_crash(home: Path) -> None:
    with embedded.start(home) as server, psycopg.connect(libpq_url(server.url)) as connection:
        connection.execute("create table kept (n int)")
        connection.commit()
        connection.execute("insert into kept values (1)")
        server.restart_immediate()
        with pytest.raises(psycopg.OperationalError):
            connection.commit()
    with embedded.start(home) as again, psycopg.connect(libpq_url(again.url)) as connection:
        assert connection.execute("select count(*) from kept").fetchone() == (0,)


def test_processes_share_one_server_and_the_last_to_leave_stops_it(home: Path, use: Callable[[], User]) -> None:
    users = [use() for _ in range(3)]
    assert len({user.url() for user in users}) == 1
    server = postmasters(home)
    assert len(server) == 1
    users[0].leave()
    users[1].kill()
    assert postmasters(home) == server
    with embedded.start(home) as ours:
        users[2].leave()
        assert answers(ours.url)
        assert postmasters(home) == server
    assert postmasters(home) == []


def test_server_ends_with_a_user_that_was_killed(home: Path, use: Callable[[], User]) -> None:
    user = use()
    url = user.url()
    assert answers(url)
    user.kill()
    wait_until(lambda: not postmasters(home), "the guardian stop the server")
    assert not answers(url)


def test_server_ends_with_a_process_that_forgot_it(home: Path) -> None:
    code = f"from pathlib import Path; from store import embedded; embedded.start(Path({str(home)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    wait_until(lambda: not postmasters(home), "the guardian stop the server")


def test_killed_server_starts_again(home: Path, use: Callable[[], User]) -> None:
    use().url()
    os.kill(postmasters(home)[0], signal.SIGKILL)
    assert (home / "18" / "postmaster.pid").exists()
    assert answers(use().url())


def test_killed_server_waits_for_its_children_that_still_write(home: Path, use: Callable[[], User]) -> None:
    """A backend in the middle of a query does not notice that its postmaster is gone."""
    url = use().url()
    busy = subprocess.Popen([sys.executable, "-c", QUERY, libpq_url(url)])
    working = "select pid from pg_stat_activity where state = 'active' and application_name = 'busy'"
    with psycopg.connect(libpq_url(url), autocommit=True) as connection:
        wait_until(lambda: connection.execute(working).fetchone(), "the query")
        backend = psutil.Process(connection.execute(working).fetchone()[0])
    os.kill(postmasters(home)[0], signal.SIGKILL)
    assert alive(backend)
    assert answers(use().url())
    assert not alive(backend)
    busy.wait(60)


def test_pid_file_that_names_a_stranger_is_not_believed(home: Path) -> None:
    embedded.start(home).stop()
    (home / "18" / "postmaster.pid").write_text(f"{os.getpid()}\n{home}/18\n")
    with embedded.start(home) as server:
        assert answers(server.url)


def test_half_made_cluster_is_made_anew(home: Path) -> None:
    unfinished = home / "18.unfinished"
    unfinished.mkdir(parents=True)
    (unfinished / "PG_VERSION").write_text("18\n")
    with embedded.start(home) as server:
        assert answers(server.url)


def test_path_too_long_for_a_socket_is_fine(home: Path) -> None:
    deep = home / ("d" * 100) / "x y'z%"
    with embedded.start(deep) as server:
        assert answers(server.url)
        sockets = Path(server.url.split("host=")[1].split("&")[0])
        assert sockets.is_dir()
    assert not sockets.exists()


def test_socket_folder_that_somebody_planted_is_refused(home: Path, tmp_path: Path) -> None:
    deep = home / ("d" * 100)
    with embedded.start(deep) as server:
        sockets = Path(server.url.split("host=")[1].split("&")[0])
    sockets.symlink_to(tmp_path)
    owner = tmp_path.stat().st_uid
    try:
        with pytest.raises(binaries.ServerUnavailable, match="somebody else"):
            embedded.start(deep)
    finally:
        sockets.unlink()
    assert tmp_path.stat().st_uid == owner


def test_setting_that_does_not_exist_says_why(home: Path) -> None:
    with pytest.raises(binaries.ServerUnavailable, match="no_such_setting"):
        embedded.start(home, settings={"no_such_setting": "1"})
    with embedded.start(home) as server:
        assert answers(server.url)


def test_missing_package_names_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    binaries.directory.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(binaries, "_DEBIAN", Path("/nowhere"))
    try:
        with pytest.raises(binaries.ServerUnavailable, match=r"callkeeper\[embedded\].*DATABASE_URL"):
            binaries.directory(18)
        with pytest.raises(binaries.ServerUnavailable, match="postgresql-15"):
            binaries.directory(15)
    finally:
        binaries.directory.cache_clear()
