"""A database, a sandbox and a process in this process, shared by a module and cleared for each test."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

pytest.register_assert_rewrite("tests.kinds.play", "tests.kinds.scenarios")

from providers.sandbox import Sandbox  # noqa: E402
from tests.conftest import Server, engine_on, scratch_database  # noqa: E402
from tests.kinds.world import World  # noqa: E402


@pytest.fixture(scope="module")
def _world(server: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with scratch_database(server, template) as url, Sandbox() as sandbox:
        # Nothing here loses power; what is asked is what was committed, not what was flushed.
        with engine_on(url) as engine, engine.begin() as connection:
            connection.execute(sa.text(f'alter database "{engine.url.database}" set synchronous_commit = off'))
        world = World(url, sandbox, tmp_path_factory.mktemp("kinds"))
        try:
            with world.in_place():
                yield world
        finally:
            world.close()


@pytest.fixture
def world(_world: World) -> World:
    _world.clear()
    return _world
