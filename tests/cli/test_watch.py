"""audit and health: silent when all is well, loud and with a code when not."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from actors import passes
from actors.broker import broker
from actors.cli.watch import expected_passes

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("on_database")

PASSED = sa.text(
    """
    insert into callkeeper.passes (name, last_started_at, last_success_at)
    values (:name, clock_timestamp(), clock_timestamp() - make_interval(secs => :age))
    on conflict (name) do update set last_success_at = excluded.last_success_at
    """
)


def passed(engine: sa.Engine, **ages: float) -> None:
    """Every pass succeeded a second ago, these so many seconds ago."""
    with engine.begin() as connection:
        for name, age in {**dict.fromkeys(expected_passes(), 1.0), **ages}.items():
            connection.execute(PASSED, {"name": name, "age": age})


def test_audit_of_a_healthy_database(cli: Cli) -> None:
    result = cli("audit")
    assert (result.exit_code, result.stdout) == (0, "audit: 0 violations\n")
    assert json.loads(cli("audit", "--json").stdout) == []


def test_audit_lists_violations_and_exits_1(cli: Cli, engine: sa.Engine) -> None:
    cli("grant", "anna", "--topup", 5)
    with engine.begin() as connection:
        # Consistent within its row, so no CHECK objects; but no job explains it.
        connection.execute(
            sa.text("update callkeeper.accounts set balance_topup = 3, reserved_topup = 2 where id = 'anna'")
        )
    result = cli("audit")
    assert result.exit_code == 1
    assert "account anna: reserved 2, but its open reservations are 0" in result.stdout
    assert result.stdout.endswith("audit: 1 violation\n")
    as_json = cli("audit", "--json")
    assert as_json.exit_code == 1
    assert [one["invariant"] for one in json.loads(as_json.stdout)] == [5]


def test_health_before_any_pass_names_what_is_missing(cli: Cli) -> None:
    result = cli("health")
    assert result.exit_code == 1
    assert "watchdog: run one" in result.stdout
    assert all(f"{name}  " in result.stdout for name in ("sweep", "watchdog", "watch_runs"))
    assert "callkeeper scheduler" in result.stdout


def test_each_pass_is_on_record_under_the_name_that_health_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    nothing = SimpleNamespace(send=lambda: None)
    for name, stand_in in (("runtime", lambda: None), ("poll_due", nothing), ("deliver", nothing)):
        monkeypatch.setattr(passes, name, stand_in)
    monkeypatch.setattr(passes, "recorded", lambda _rt, name, _work: told.append(name))
    names = [name for name in expected_passes() if broker.actors[name].fn.__module__ == passes.__name__]
    for name in names:
        broker.actors[name].fn()
    assert told == names
    assert len(names) > 3


def test_health_is_well_with_recent_passes(cli: Cli, engine: sa.Engine) -> None:
    passed(engine, sweep=290, watchdog=1)
    result = cli("health")
    assert result.exit_code == 0, result.stdout
    assert "workers alive: 0" in result.stdout
    assert "alerts: none" in result.stdout


def test_health_exits_1_for_one_late_pass(cli: Cli, engine: sa.Engine) -> None:
    passed(engine, sweep=310, watchdog=1)
    result = cli("health", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["late"] == ["sweep"]


def test_health_shows_what_waits_and_what_needs_a_person(cli: Cli, engine: sa.Engine) -> None:
    passed(engine, sweep=1, watchdog=1)
    request = '{"model": "acme/draw", "input": {}}'
    job_id = json.loads(cli("submit", "replicate-prediction", "-i", request, "--json").stdout)["job_id"]
    with engine.begin() as connection:
        connection.execute(
            sa.text("insert into callkeeper.alerts (subject, details) values ('a:b', '{\"message\": \"set a key\"}')")
        )
        connection.execute(sa.text("insert into callkeeper.alerts (subject, resolved_at) values ('old', now())"))
        connection.execute(
            sa.text(
                "insert into dramatiq.worker values (gen_random_uuid(), now()), (gen_random_uuid(), now() - interval '1 hour')"
            )
        )
    shown = cli("health").stdout
    assert f"oldest queued: {job_id} (replicate-prediction), ready for " in shown
    assert "queue calls: 1 ready" in shown
    assert "workers alive: 1" in shown
    assert "set a key" in shown
    state = json.loads(cli("health", "--json").stdout)
    assert [alert["subject"] for alert in state["alerts"]] == ["a:b"]
    assert state["jobs"] == {"queued": 1}
