"""Migrations: once, however many migrators; politely, whoever is in the way; never backwards."""

import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

import migrations
from store import migrate
from store.errors import SchemaAhead, SchemaBehind
from store.migrate import MigrationBlocked
from tests.conftest import Server, engine_on, scratch_database
from tests.store.catalog import describe, differences

REVISION = """
from alembic import op
from migrations import create_index_concurrently, run_verbatim

revision = "9001"
down_revision = "{newest}"


def upgrade() -> None:
    {step}
"""
ADD_COLUMN = 'run_verbatim(op.get_context(), "alter table callkeeper.jobs add column note text")'
BUILD_INDEX = (
    'create_index_concurrently(op, "callkeeper.ticks_by_schedule",'
    ' "create unique index concurrently ticks_by_schedule on callkeeper.ticks (schedule)")'
)
NOTE = "select count(*) from pg_attribute where attrelid = 'callkeeper.jobs'::regclass and attname = 'note'"
VALID = "select indisvalid from pg_index where indexrelid = to_regclass('callkeeper.ticks_by_schedule')"
BUILD_WAITS = (
    "select count(*) from pg_stat_activity where query like 'create unique index concurrently%'"
    " and datname = current_database() and wait_event_type = 'Lock'"
    " and clock_timestamp() - query_start > interval '300 ms'"
)

AddRevision = Callable[[str], None]


@pytest.fixture
def add_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AddRevision]:
    """Give this code one more revision, whose upgrade() is the given line."""
    newest = migrate.newest_revision()

    def add(step: str) -> None:
        folder = tmp_path / "migrations"
        shutil.copytree(migrate.location(), folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "versions" / "9001_more.py").write_text(REVISION.format(newest=newest, step=step))
        monkeypatch.setattr(migrate, "location", lambda: folder)
        migrate.known_revisions.cache_clear()

    yield add
    migrate.known_revisions.cache_clear()


class InBackground:
    """An upgrade in a thread; `result` waits for it and raises what it raised."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            migrate.upgrade(self._url, patience=timedelta(seconds=60))
        except Exception as error:
            self._error = error

    def result(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive(), "the migrator hangs"
        if self._error:
            raise self._error


def wait_until(condition: Callable[[], object], what: str) -> None:
    give_up = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < give_up, f"never saw: {what}"
        time.sleep(0.01)


def revisions(engine: sa.Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(sa.text("select version_num from callkeeper.alembic_version")))


def asked(engine: sa.Engine, query: str) -> object:
    with engine.connect() as connection:
        return connection.scalar(sa.text(query))


def test_four_migrators_at_once_apply_each_revision_once(empty_database_url: str) -> None:
    code = f"from store import migrate; migrate.upgrade({empty_database_url!r})"
    command = [sys.executable, "-W", "error", "-c", code]
    migrators = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [migrator.communicate(timeout=60)[1] for migrator in migrators]
    # Applying a revision twice fails: its tables exist.
    assert [(m.returncode, text) for m, text in zip(migrators, said, strict=True)] == [(0, "")] * 4
    with engine_on(empty_database_url) as engine:
        assert revisions(engine) == [migrate.newest_revision()]


def test_second_migrator_waits_for_the_first_then_gives_up(empty_database_url: str) -> None:
    with engine_on(empty_database_url) as engine, engine.connect() as first:
        first.execute(sa.text("select pg_advisory_lock(x'63616C6C6B656570'::bigint)"))
        first.commit()
        with pytest.raises(MigrationBlocked, match="another migrator"):
            migrate.upgrade(empty_database_url, patience=timedelta(seconds=0.3))
        assert asked(engine, "select to_regnamespace('callkeeper')") is None


def test_long_reader_is_waited_out_by_retrying(
    engine: sa.Engine,
    database_url: str,
    add_revision: AddRevision,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While the reader reads on, the migrator lets go of its place in the queue, and other readers pass."""
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "100ms")
    add_revision(ADD_COLUMN)
    with engine.connect() as reader, caplog.at_level(logging.WARNING, "callkeeper.migrate"):
        reader.execute(sa.text("select count(*) from callkeeper.jobs"))
        migrator = InBackground(database_url)
        wait_until(lambda: len(caplog.records) >= 2, "two retries")
        assert asked(engine, "select count(*) from callkeeper.jobs") == 0
        assert asked(engine, NOTE) == 0
        reader.rollback()
        migrator.result()
    assert asked(engine, NOTE) == 1
    assert revisions(engine) == ["9001"]


def test_patience_that_ends_leaves_the_database_as_it_was(
    engine: sa.Engine, database_url: str, add_revision: AddRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "50ms")
    before = revisions(engine)
    add_revision(ADD_COLUMN)
    with engine.connect() as reader:
        reader.execute(sa.text("select count(*) from callkeeper.jobs"))
        with pytest.raises(MigrationBlocked, match="pg_stat_activity"):
            migrate.upgrade(database_url, patience=timedelta(seconds=0.2))
        reader.rollback()
    assert asked(engine, NOTE) == 0
    assert revisions(engine) == before


def test_other_errors_are_not_retried(
    engine: sa.Engine, database_url: str, add_revision: AddRevision, caplog: pytest.LogCaptureFixture
) -> None:
    before = revisions(engine)
    add_revision('run_verbatim(op.get_context(), "alter table callkeeper.nothing add column note text")')
    with pytest.raises(sa.exc.ProgrammingError, match="nothing"):
        migrate.upgrade(database_url)
    assert revisions(engine) == before
    assert not caplog.records


def leave_invalid_index(engine: sa.Engine) -> None:
    twice = "insert into callkeeper.ticks (schedule, due_at) values ('sweep', now()), ('sweep', now() + interval '1 h')"
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(sa.text(twice))
        with pytest.raises(sa.exc.IntegrityError):
            connection.execute(
                sa.text("create unique index concurrently ticks_by_schedule on callkeeper.ticks (schedule)")
            )
        connection.execute(sa.text("delete from callkeeper.ticks"))


def test_invalid_leftover_index_is_dropped_and_rebuilt(
    engine: sa.Engine, database_url: str, add_revision: AddRevision
) -> None:
    leave_invalid_index(engine)
    assert asked(engine, VALID) is False
    add_revision(BUILD_INDEX)
    migrate.upgrade(database_url)
    assert asked(engine, VALID) is True
    assert revisions(engine) == ["9001"]


def test_index_whose_revision_was_not_recorded_is_kept(
    engine: sa.Engine, database_url: str, add_revision: AddRevision
) -> None:
    """The build commits before the revision does; between the two, a migrator may die."""
    with engine.begin() as connection:
        connection.execute(sa.text("create unique index ticks_by_schedule on callkeeper.ticks (schedule)"))
    built = asked(engine, "select 'callkeeper.ticks_by_schedule'::regclass::oid")
    add_revision(BUILD_INDEX)
    migrate.upgrade(database_url)
    assert asked(engine, "select 'callkeeper.ticks_by_schedule'::regclass::oid") == built
    assert revisions(engine) == ["9001"]


def test_concurrent_build_waits_for_a_writer_past_the_lock_timeout(
    engine: sa.Engine, database_url: str, add_revision: AddRevision, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock timeout in the middle would leave an invalid index; the build blocks nobody, so it has time."""
    monkeypatch.setattr(migrations, "LOCK_TIMEOUT", "50ms")
    add_revision(BUILD_INDEX)
    with engine.connect() as writer:
        writer.execute(sa.text("insert into callkeeper.ticks (schedule, due_at) values ('sweep', now())"))
        migrator = InBackground(database_url)
        wait_until(lambda: asked(engine, BUILD_WAITS), "a build that waits longer than the lock timeout")
        writer.commit()
        migrator.result()
    assert asked(engine, VALID) is True


def test_migrators_do_not_deadlock_over_a_concurrent_build(
    engine: sa.Engine, database_url: str, add_revision: AddRevision, tmp_path: Path
) -> None:
    """A second one blocked in pg_advisory_lock would hold the snapshot that the first one's build waits for."""
    add_revision(BUILD_INDEX)
    ini = tmp_path / "alembic.ini"
    ini.write_text(f"[alembic]\nscript_location = {migrate.location()}\npath_separator = os\n")
    command = [sys.executable, "-m", "alembic", "-c", str(ini), "-x", f"url={database_url}", "upgrade", "head"]
    with engine.connect() as writer:
        writer.execute(sa.text("insert into callkeeper.ticks (schedule, due_at) values ('sweep', now())"))
        migrators = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
        present = (
            "select count(*) from pg_stat_activity where application_name = 'callkeeper migrate'"
            " and datname = current_database()"
        )
        wait_until(lambda: asked(engine, present) == 2, "both migrators connected")
        wait_until(lambda: asked(engine, BUILD_WAITS), "a build that waits for the writer")
        writer.commit()
    said = [migrator.communicate(timeout=60)[1] for migrator in migrators]
    assert [migrator.returncode for migrator in migrators] == [0, 0], said
    assert asked(engine, VALID) is True


@pytest.mark.parametrize("revision", [None, "0001"])
def test_older_database_is_refused_by_workers(empty_database_url: str, revision: str | None) -> None:
    if revision:
        migrate.upgrade(empty_database_url, revision)
    with engine_on(empty_database_url) as engine, engine.connect() as connection:
        with pytest.raises(SchemaBehind, match="callkeeper migrate") as refused:
            migrate.check_compatible(connection)
        assert (revision or "none") in str(refused.value)
        assert migrate.newest_revision() in str(refused.value)
        # The caller's transaction is still good.
        assert connection.scalar(sa.text("select 1")) == 1


def test_migrated_database_is_accepted_and_migrating_again_changes_nothing(
    engine: sa.Engine, database_url: str
) -> None:
    before = describe(engine, "callkeeper")
    migrate.upgrade(database_url)
    assert differences(before, describe(engine, "callkeeper")) == []
    with engine.connect() as connection:
        migrate.check_compatible(connection)


def test_newer_database_is_accepted_by_workers_and_left_alone_by_migrators(
    engine: sa.Engine, database_url: str
) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("update callkeeper.alembic_version set version_num = '9999'"))
        connection.execute(sa.text("drop table callkeeper.stale_writes"))
    before = describe(engine, "callkeeper")
    with engine.connect() as connection:
        migrate.check_compatible(connection)
    with pytest.raises(SchemaAhead, match="9999"):
        migrate.upgrade(database_url)
    assert revisions(engine) == ["9999"]
    assert differences(before, describe(engine, "callkeeper")) == []


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_common_form_of_url_is_taken_from_any_folder(
    empty_database_url: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    migrate.upgrade(scheme + "://" + empty_database_url.split("://", 1)[1])
    with engine_on(empty_database_url) as engine:
        assert revisions(engine) == [migrate.newest_revision()]


def as_psql_sends_it(rendered: str) -> Iterator[str]:
    """A transaction in one piece, and between two of them a statement alone: CONCURRENTLY has no company."""
    for part in re.split(r"(?m)^(?=BEGIN;$)", rendered):
        transaction, commit, alone = part.partition("COMMIT;\n")
        yield transaction + commit
        if alone.strip():
            yield alone


def test_rendered_sql_makes_the_same_database(server: Server, engine: sa.Engine) -> None:
    with scratch_database(server) as url, engine_on(url) as by_hand:
        with by_hand.execution_options(isolation_level="AUTOCOMMIT", no_parameters=True).connect() as connection:
            for piece in as_psql_sends_it(migrate.render_sql()):
                connection.exec_driver_sql(piece)
        for schema in ("callkeeper", "dramatiq"):
            assert differences(describe(engine, schema), describe(by_hand, schema)) == []
        assert revisions(by_hand) == revisions(engine)


def test_rendered_sql_passes_the_linter() -> None:
    assert lint().returncode == 0, lint().stdout


@pytest.mark.parametrize(
    ("step", "rule"),
    [
        ('run_verbatim(op.get_context(), "create index more on callkeeper.jobs (user_id)")', "concurrent-index"),
        ('run_verbatim(op.get_context(), "alter table callkeeper.jobs drop column progress")', "ban-drop-column"),
    ],
)
def test_dangerous_sql_does_not_pass_the_linter(add_revision: AddRevision, step: str, rule: str) -> None:
    add_revision(step)
    linted = lint(str(migrate.location()))
    assert linted.returncode == 1
    assert rule in linted.stdout


def test_concurrent_step_passes_the_linter(add_revision: AddRevision) -> None:
    add_revision(BUILD_INDEX)
    linted = lint(str(migrate.location()))
    assert linted.returncode == 0, linted.stdout


def lint(*folder: str) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "scripts" / "lint_migrations.py"), *folder]
    environment = {**os.environ, "NO_COLOR": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
