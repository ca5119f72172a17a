"""A sandbox for the session, a fleet for a test. A failed test shows its workers' logs."""

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from providers.sandbox import Sandbox
from tests.chaos.harness import Fleet, database

MakeFleet = Callable[..., Fleet]


@pytest.fixture(scope="session")
def _one_sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_one_sandbox: Sandbox) -> Sandbox:
    _one_sandbox.reset()
    return _one_sandbox


@pytest.fixture
def make_fleet(server: Any, template: str, sandbox: Sandbox, tmp_path: Path, request: Any) -> Iterator[MakeFleet]:
    """Fleets with a database each: `make_fleet(**environment)`."""
    made: list[Fleet] = []
    with ExitStack() as stack:

        def make(**env: str) -> Fleet:
            url = stack.enter_context(database(server.url, server.url_of, template))
            fleet = stack.enter_context(Fleet(url, sandbox, tmp_path / f"fleet-{len(made)}", env))
            made.append(fleet)
            return fleet

        yield make
        if getattr(request.node, "failed_here", False):
            print("\n".join(fleet.tail() for fleet in made))


@pytest.fixture(scope="module")
def _crew(
    server: Any, template: str, _one_sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("crew")
    with (
        database(server.url, server.url_of, template) as url,
        Fleet(url, _one_sandbox, folder) as fleet,
    ):
        fleet.spawn(threads=10)
        yield fleet


@pytest.fixture
def crew(_crew: Fleet, sandbox: Sandbox, request: Any) -> Iterator[Fleet]:
    """A fleet with a worker at work already, shared by a module's tests that leave it as they found it."""
    _crew.clear()
    yield _crew
    if getattr(request.node, "failed_here", False):
        print(_crew.tail())


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    return make_fleet()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call" and report.failed:
        item.failed_here = True  # type: ignore[attr-defined]
    return report
