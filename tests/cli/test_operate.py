"""alerts, spend, metrics: listed, settled by hand, refused with a sentence."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("on_database")

SPENT = """
insert into callkeeper.unexplained_spend (job_id, call_generation, provider_kind, provider_task_id, call_started_at,
  error_code, price)
select id, 1, 'replicate-prediction', 't-1', now(), 'reconcile_no_recovery', 4 from callkeeper.jobs
"""


def do(engine: sa.Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text(statement))


def submitted(cli: Cli) -> str:
    request = '{"model": "acme/draw", "input": {}}'
    return str(json.loads(cli("submit", "replicate-prediction", "-i", request, "--json").stdout)["job_id"])


def test_alerts_are_listed_and_resolved(cli: Cli, engine: sa.Engine) -> None:
    assert (cli("alerts").exit_code, cli("alerts").stdout) == (0, "alerts: none\n")
    do(engine, "insert into callkeeper.alerts (subject, details) values ('kie-veo:outage', '{}')")
    listed = cli("alerts")
    assert listed.exit_code == 1
    assert "kie-veo:outage" in listed.stdout
    assert cli("alerts", "--resolve", "kie-veo:outage").stdout == "alert kie-veo:outage resolved\n"
    assert cli("alerts").exit_code == 0
    assert [one["subject"] for one in json.loads(cli("alerts", "--all", "--json").stdout)] == ["kie-veo:outage"]
    again = cli("alerts", "--resolve", "kie-veo:outage")
    assert again.exit_code == 3
    assert "no such alert is open" in again.stderr


def test_spend_is_listed_and_explained(cli: Cli, engine: sa.Engine) -> None:
    assert cli("spend").stdout == "unexplained: 0 calls, 0 credits\n"
    job_id = submitted(cli)
    do(engine, SPENT)
    assert "unexplained: 1 calls, 4 credits" in cli("spend").stdout
    assert [one["job_id"] for one in json.loads(cli("spend", "--json").stdout)] == [job_id]
    wordless = cli("spend", "--resolve", job_id)
    assert (wordless.exit_code, "--note is missing" in wordless.stderr) == (2, True)
    assert cli("spend", "--resolve", job_id, "--note", "on their invoice, credited").exit_code == 0
    assert cli("spend", "--resolve", job_id, "--note", "again").exit_code == 3
    assert cli("spend").stdout == "unexplained: 0 calls, 0 credits\n"


def test_metrics_in_text_and_json(cli: Cli) -> None:
    submitted(cli)
    text = cli("metrics").stdout
    assert 'callkeeper_open_jobs{kind="replicate-prediction",status="queued"} 1\n' in text
    names = {sample["name"] for sample in json.loads(cli("metrics", "--json").stdout)}
    assert {"open_jobs", "reserved_credits", "alerts_open"} <= names


def test_a_job_shows_its_reconciliation_history(cli: Cli, engine: sa.Engine) -> None:
    job_id = submitted(cli)
    do(engine, "update callkeeper.jobs set reconcile_attempts = 2, reconcile_last_error = 'download_gone: no'")
    do(
        engine,
        "insert into callkeeper.job_looks (job_id, found, did, code, attempts) select id, 'succeeded', 'put_back',"
        " 'download_gone', 2 from callkeeper.jobs",
    )
    shown = cli("job", job_id).stdout
    assert "looks: 2 failed, 0 deferred, the last error: download_gone: no" in shown
    assert "put_back" in shown
    told = json.loads(cli("job", job_id, "--json").stdout)
    assert [look["did"] for look in told["looks"]] == ["put_back"]
    assert told["reconciliation"]["failed_looks"] == 2
