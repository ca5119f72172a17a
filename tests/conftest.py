"""A server for the session, a migrated database of its own for each test that asks for one.

Which server: an embedded PostgreSQL 18; another major version with CALLKEEPER_TEST_PG=15; yours with TEST_DATABASE_URL,
whose user must be allowed to create databases.
"""

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import hypothesis
import pytest
import sqlalchemy as sa

from store import embedded, migrate
from store.engine import sqlalchemy_url

# Real databases take the time they take; a failure prints what reproduces it. `make test` tries the same examples each
# time, so that it fails for a change and not by chance; the long suites and the mutants try new ones.
hypothesis.settings.register_profile(
    "ci", derandomize="CALLKEEPER_RANDOM" not in os.environ, deadline=None, print_blob=True
)
hypothesis.settings.load_profile("ci")


class Server(Protocol):
    @property
    def url(self) -> str: ...

    def url_of(self, database: str) -> str: ...

    def restart_immediate(self) -> None: ...


class YourServer:
    """The one that TEST_DATABASE_URL names. It is not ours to restart."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(sqlalchemy_url(url))

    @property
    def url(self) -> str:
        return self._url.render_as_string(hide_password=False)

    def url_of(self, database: str) -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)

    def restart_immediate(self) -> None:
        pytest.skip("TEST_DATABASE_URL names a server that is not ours to restart")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    url = os.environ.get("TEST_DATABASE_URL")
    if url:
        yield YourServer(url)
        return
    version = int(os.environ.get("CALLKEEPER_TEST_PG", embedded.DEFAULT_VERSION))
    # Not pytest's own folder: every pytest that starts closes that one again to the user the server runs as.
    with (
        tempfile.TemporaryDirectory(prefix="callkeeper-tests-") as folder,
        embedded.start(Path(folder), version=version) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def template(server: Server) -> Iterator[str]:
    """The name of a migrated, empty database to copy. Nobody may connect to it."""
    name = f"callkeeper_template_{uuid.uuid4().hex[:12]}"
    embedded.create_database(server.url, name)
    migrate.upgrade(server.url_of(name))
    yield name
    embedded.drop_database(server.url, name)


@contextmanager
def scratch_database(server: Server, template: str | None = None) -> Iterator[str]:
    """The URL of a database that lives as long as the block: a copy of `template`, or empty."""
    name = f"callkeeper_test_{uuid.uuid4().hex[:12]}"
    embedded.create_database(server.url, name, template=template)
    try:
        yield server.url_of(name)
    finally:
        embedded.drop_database(server.url, name)


@pytest.fixture
def empty_database_url(server: Server) -> Iterator[str]:
    """A database of this test alone, not migrated."""
    with scratch_database(server) as url:
        yield url


@pytest.fixture
def database_url(server: Server, template: str) -> Iterator[str]:
    """A migrated database of this test alone."""
    with scratch_database(server, template) as url:
        yield url


@contextmanager
def engine_on(url: str) -> Iterator[sa.Engine]:
    """An engine whose connections are gone after the block."""
    made = sa.create_engine(sqlalchemy_url(url))
    try:
        yield made
    finally:
        made.dispose()


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    with engine_on(database_url) as made:
        yield made


# Whole files that run with the long suites (`make test-long`), so that `make test` stays short on two cores.
LONG = (
    "budgets/test_shutdown.py", "budgets/test_spending.py", "budgets/test_workers.py", "chaos/test_callbacks.py",
    "chaos/test_elevenlabs.py", "chaos/test_gates.py", "chaos/test_imports.py", "chaos/test_outbox.py", "chaos/test_term.py",
    "cli/test_scheduler.py", "cli/test_worker.py", "runs/test_second_tries.py", "store/test_embedded.py",
    "tour/test_crashes.py", "web/test_kills.py",
)  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.as_posix().endswith(LONG):
            item.add_marker(pytest.mark.slow)
