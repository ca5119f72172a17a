"""Errors that any command can meet: settings, the database, the schema. One sentence, the right code, no secret."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from actors.cli.failures import MEANING, Exit, explain

Cli = Callable[..., Any]
COMMANDS = ["migrate", "worker", "scheduler", "jobs", "audit", "health"]


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_database_url(cli: Cli, command: str) -> None:
    result = cli(command)
    assert result.exit_code == 2
    assert "DATABASE_URL is not set" in result.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://user:hunter2@host/app", "names mysql, not Postgres"),
        ("hunter2", "cannot be read as a URL"),
        ("postgresql://user:hunter2@host:port/app", "cannot be read as a URL"),
    ],
)
def test_a_url_that_is_none_is_not_repeated(cli: Cli, environment: pytest.MonkeyPatch, url: str, said: str) -> None:
    environment.setenv("DATABASE_URL", url)
    result = cli("audit")
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr
    assert "hunter2" not in result.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_does_not_answer(cli: Cli, environment: pytest.MonkeyPatch, command: str) -> None:
    environment.setenv("DATABASE_URL", "postgresql://user:hunter2@127.0.0.1:1/app")
    result = cli(command)
    assert (result.exit_code, "cannot be reached" in result.stderr) == (5, True), result.stderr
    assert "hunter2" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_database_that_does_not_exist(cli: Cli, environment: pytest.MonkeyPatch, database_url: str) -> None:
    url = sa.make_url(database_url).set(database="no_such_database")
    environment.setenv("DATABASE_URL", url.render_as_string(hide_password=False))
    result = cli("audit")
    assert (result.exit_code, "no_such_database" in result.stderr) == (5, True), result.stderr


@pytest.mark.parametrize("command", [one for one in COMMANDS if one != "migrate"])
def test_a_schema_that_is_behind(
    cli: Cli, environment: pytest.MonkeyPatch, empty_database_url: str, command: str
) -> None:
    environment.setenv("DATABASE_URL", empty_database_url)
    result = cli(command)
    assert (result.exit_code, "run `callkeeper migrate`" in result.stderr) == (5, True), result.stderr


def test_migrate_makes_it_whole_and_may_be_repeated(
    cli: Cli, environment: pytest.MonkeyPatch, empty_database_url: str
) -> None:
    environment.setenv("DATABASE_URL", empty_database_url)
    for _ in range(2):
        result = cli("migrate")
        assert result.exit_code == 0, result.stderr
        assert "is at revision" in result.stdout
    assert cli("audit").exit_code == 0


def test_migrate_refuses_a_newer_database(cli: Cli, on_database: str, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("update callkeeper.alembic_version set version_num = '9999'"))
    result = cli("migrate")
    assert (result.exit_code, "9999" in result.stderr) == (5, True), result.stderr
    assert cli("audit").exit_code == 0


def test_migrate_can_print_its_sql_without_a_database(cli: Cli) -> None:
    result = cli("migrate", "--sql")
    assert result.exit_code == 0
    assert "create table callkeeper.jobs" in result.stdout.lower()


def test_a_setting_that_cannot_be_used_is_named(cli: Cli, environment: pytest.MonkeyPatch, on_database: str) -> None:
    environment.setenv("CALLKEEPER_LEASE", "soon")
    result = cli("audit")
    assert (result.exit_code, "CALLKEEPER_LEASE" in result.stderr) == (2, True), result.stderr
    environment.setenv("CALLKEEPER_LEASE", "30")
    environment.setenv("CALLKEEPER_LOG_LEVEL", "LOUD")
    assert "CALLKEEPER_LOG_LEVEL" in cli("audit").stderr


def test_an_error_nobody_expected_is_not_hidden() -> None:
    assert explain(ZeroDivisionError()) is None


def test_help_of_every_command_explains_the_exit_codes(cli: Cli) -> None:
    shown = " ".join(cli("--help").stdout.split())
    commands = ["migrate", "worker", "scheduler", "sandbox", "demo", "submit", "job", "jobs", "follow", "stop", "grant"]
    for command in [*commands, "audit", "health"]:
        assert f" {command} " in shown
        told = " ".join(cli(command, "--help").stdout.split())
        for code in Exit:
            assert f"{code.value} {MEANING[code]}" in told


def test_an_unknown_command_is_a_usage_error(cli: Cli) -> None:
    assert cli("sumbit").exit_code == 2
    assert cli("--version").stdout.startswith("callkeeper ")
