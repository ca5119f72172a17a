"""Runs are tested on the same database and with the same steps as the store, and with the chaos tests' workers."""

from collections.abc import Iterator
from typing import Any

import pytest

from providers.sandbox import Sandbox
from tests.chaos.conftest import _one_sandbox, fleet, make_fleet, pytest_runtest_makereport, sandbox
from tests.chaos.harness import Fleet, database
from tests.runs import film
from tests.store.conftest import db, fresh, module_db, steps

__all__ = [
    "_one_sandbox",
    "db",
    "fleet",
    "fresh",
    "make_fleet",
    "module_db",
    "pytest_runtest_makereport",
    "sandbox",
    "steps",
]


@pytest.fixture(scope="module")
def _studio(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    with (
        database(server.url, server.url_of, template) as url,
        Fleet(url, _one_sandbox, tmp_path_factory.mktemp("studio")) as made,
    ):
        made.spawn(threads=6, modules=(film.__name__,))
        yield made


@pytest.fixture
def studio(_studio: Fleet, sandbox: Sandbox, request: Any) -> Iterator[Fleet]:
    """A worker at work that knows the film app, shared by a module's tests."""
    _studio.clear()
    _studio.do("delete from callkeeper.runs")
    _studio.do("delete from callkeeper.rollout_flags")
    yield _studio
    if getattr(request.node, "failed_here", False):
        print(_studio.tail())
