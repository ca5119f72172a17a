"""run, runs, rollout, roles: what is there, what was asked for, and a code when it did not go well."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from actors.runs import Step, submit_run
from store import jobs, settle
from store.models import Settlement
from store.runs import jobs_of
from store.states import State

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("on_database")

REQUEST = {"version": "a" * 64, "input": {"prompt": "x"}}


@pytest.fixture
def run_id(engine: sa.Engine) -> UUID:
    steps = [
        Step("scene:1", "replicate-prediction", REQUEST),
        Step("film", "replicate-prediction", REQUEST, depends_on=["scene:1"]),
    ]
    with engine.begin() as connection:
        return submit_run(connection, "film", steps, user_id="ann").run_id


def fail(engine: sa.Engine, run_id: UUID) -> None:
    with engine.begin() as connection:
        job_id = jobs_of(connection, run_id)["scene:1"]
        claimed = jobs.claim_queued(connection, job_id, owner="w", term=timedelta(minutes=1))
    assert claimed is not None
    with engine.begin() as connection:
        settle.end_held(connection, claimed.lease, Settlement(State.FAILED, error_code="task_failed"))


def test_a_run_is_shown_with_its_steps(cli: Cli, run_id: UUID) -> None:
    shown = cli("run", run_id)
    assert shown.exit_code == 0
    for part in ("running", "standard", "scene:1", "held back", "submitted"):
        assert part in shown.stdout
    told = json.loads(cli("run", run_id, "--json").stdout)
    assert [step["step"] for step in told["steps"]] == ["scene:1", "film"]
    assert [event["kind"] for event in told["events"]] == ["submitted"]
    assert str(run_id) in cli("runs").stdout
    assert json.loads(cli("runs", "--json").stdout)[0]["run_type"] == "film"


def test_a_run_that_failed_says_as_what_it_goes_on(cli: Cli, engine: sa.Engine) -> None:
    plan = [Step("scene:1", "replicate-prediction", REQUEST)]
    with engine.begin() as connection:
        first = submit_run(connection, "film", plan, user_id="ann", idempotency_key="again").run_id
    fail(engine, first)
    assert json.loads(cli("run", first, "--json").stdout)["continued_as"] is None
    with engine.begin() as connection:
        second = submit_run(connection, "film", plan, user_id="ann", idempotency_key="again").run_id
    assert json.loads(cli("run", first, "--json").stdout)["continued_as"] == str(second)
    assert f"continued as {second}, which is running" in cli("run", first).stdout


def test_a_run_that_failed_exits_1_and_answers_its_client(cli: Cli, engine: sa.Engine, run_id: UUID) -> None:
    fail(engine, run_id)
    shown = cli("run", run_id)
    assert shown.exit_code == 1
    assert "task_failed scene:1" in shown.stdout
    answer = json.loads(cli("run", run_id, "--client").stdout)
    assert (answer["status"], answer["error"]["code"]) == ("failed", "TASK_FAILED")
    assert cli("audit").stdout == "audit: 0 violations\n"


def test_a_run_is_stopped(cli: Cli, run_id: UUID) -> None:
    stopped = cli("run", run_id, "--stop")
    assert stopped.exit_code == 1
    assert "cancelled" in stopped.stdout


def test_a_run_that_is_not_there_exits_3(cli: Cli) -> None:
    for arguments in (("run", uuid4()), ("run", uuid4(), "--stop")):
        missing = cli(*arguments)
        assert missing.exit_code == 3
        assert "there is no run" in missing.stderr


def test_a_flag_is_set_and_shown(cli: Cli) -> None:
    assert cli("rollout").exit_code == 0
    set_now = cli("rollout", "salvage", "canary", "--percent", 25, "--json")
    told = {row["flag"]: (row["mode"], row["percent"]) for row in json.loads(set_now.stdout)}
    assert told == {
        "salvage": ("canary", 25), "plan_repair": ("on", 100), "classified_retries": ("on", 100), "provider_resume": ("on", 100),
    }  # fmt: skip
    for arguments, words in (
        (("rollout", "luck", "on"), "there are provider_resume"),
        (("rollout", "salvage", "maybe"), "there are off"),
        (("rollout", "salvage"), "MODE is missing"),
    ):
        refused = cli(*arguments)
        assert refused.exit_code == 2
        assert words in refused.stderr


def test_roles_are_created_and_their_script_is_shown(cli: Cli) -> None:
    assert "create role" in cli("roles", "--sql").stdout
    assert "callkeeper_user" in cli("roles").stdout
    assert cli("roles").exit_code == 0


def test_the_audit_tells_of_runs(cli: Cli, engine: sa.Engine, run_id: UUID) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("update callkeeper.runs set event_seq = 7"))
    audited = cli("audit")
    assert audited.exit_code == 1
    assert str(run_id) in audited.stdout
