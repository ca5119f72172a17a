"""The chaos tests' fleets and sandbox, the store tests' steps, and a worker that knows this folder's job types."""

from collections.abc import Iterator
from typing import Any

import pytest

from actors import Followers
from providers.sandbox import Sandbox
from tests.behaviours import kit
from tests.chaos.conftest import _one_sandbox, fleet, make_fleet, pytest_runtest_makereport, sandbox
from tests.chaos.harness import Fleet, database
from tests.store.conftest import db, module_db, steps

__all__ = [
    "_one_sandbox", "db", "fleet", "make_fleet", "module_db", "pytest_runtest_makereport", "sandbox", "steps",
]  # fmt: skip

MODULES = ("tests.chaos.kit", kit.__name__)


@pytest.fixture(scope="module")
def _office(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("office")
    env = {"CALLKEEPER_SECRET_DIARY": kit.SECRET}
    with database(server.url, server.url_of, template) as url, Fleet(url, _one_sandbox, folder, env) as made:
        made.spawn(threads=10, modules=MODULES)
        yield made


@pytest.fixture
def office(_office: Fleet, sandbox: Sandbox, request: Any) -> Iterator[Fleet]:
    """A fleet with one worker at work, shared by a module's tests that leave it as they found it."""
    _office.clear()
    yield _office
    if getattr(request.node, "failed_here", False):
        print(_office.tail())


@pytest.fixture
def followers(office: Fleet) -> Iterator[Followers]:
    made = Followers(office.url)
    yield made
    made.close()
