"""submit, job, jobs, follow, stop, grant: what they do, what they print, how they end."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from store import jobs as store_jobs
from store import settle
from store.models import Settlement
from store.states import State

Cli = Callable[..., Any]
REQUEST = json.dumps({"model": "acme/draw", "input": {"prompt": "a red fox"}})

pytestmark = pytest.mark.usefixtures("on_database")


def submit(cli: Cli, *more: str, kind: str = "replicate-prediction", request: str = REQUEST) -> str:
    result = cli("submit", kind, "--input", request, "--json", *more)
    assert result.exit_code == 0, result.stderr
    return str(json.loads(result.stdout)["job_id"])


def end(engine: sa.Engine, job_id: str, status: State) -> None:
    """As a worker would: claim and settle."""
    with engine.begin() as connection:
        term = sa.text("select interval '30 seconds'")
        claimed = store_jobs.claim_queued(
            connection, uuid.UUID(job_id), owner="test", term=connection.execute(term).scalar_one()
        )
        assert claimed is not None
        if status is State.COMPLETED:
            settle.complete(connection, claimed.lease, Settlement(status=status, result={"text": "done"}))
        else:
            words = "it broke at https://files.example/x?signature=abc\x1b[31m"
            outcome = Settlement(status=status, error_code="task_failed", error_message=words)
            settle.end_held(connection, claimed.lease, outcome)


def test_submit_writes_the_job_and_prints_its_id(cli: Cli, engine: sa.Engine) -> None:
    result = cli("submit", "replicate-prediction", "--input", REQUEST, "--user", "anna")
    assert result.exit_code == 0
    word, job_id, status = result.stdout.split()
    assert (word, status) == ("job", "queued")
    with engine.connect() as connection:
        row = connection.execute(
            sa.text("select user_id, job_type from callkeeper.jobs where id = :id"), {"id": job_id}
        )
        assert tuple(row.one()) == ("anna", "replicate-prediction")


def test_input_comes_from_a_file_or_from_standard_input(cli: Cli, tmp_path: Any) -> None:
    (tmp_path / "request.json").write_text(REQUEST)
    assert cli("submit", "replicate-prediction", "-i", f"@{tmp_path / 'request.json'}").exit_code == 0
    assert cli("submit", "replicate-prediction", "-i", "-", stdin=REQUEST).exit_code == 0
    assert len(json.loads(cli("jobs", "--json").stdout)) == 2


def test_a_key_gives_the_same_job_and_refuses_another_request(cli: Cli) -> None:
    first = submit(cli, "--key", "k")
    assert submit(cli, "--key", "k") == first
    again = cli("submit", "replicate-prediction", "--input", REQUEST, "--key", "k")
    assert "nothing new was submitted" in again.stdout
    other = cli("submit", "replicate-prediction", "--input", REQUEST.replace("red", "blue"), "--key", "k")
    assert other.exit_code == 4
    assert "'k'" in other.stderr
    assert first in other.stderr


@pytest.mark.parametrize(
    ("job_type", "given", "said"),
    [
        ("replicate-prediction", "{", "is not JSON"),
        ("replicate-prediction", "request.json", "for a file, write @file"),
        ("replicate-prediction", "[1]", "of type list: send an object"),
        ("replicate-prediction", "@no-such-file", "'no-such-file' cannot be read"),
        ("replicate-prediction", '{"model": "acme/draw"}', "input: Field required"),
        ("replicate-prediction", '{"model": "acme/draw", "input": {"api_key": "x"}}', "CALLKEEPER_SECRET_<NAME>"),
        ("replicate-prediction", '{"model": "acme/draw", "input": {"x": NaN}}', "input.x: is nan"),
        ("no-such-type", "{}", "'no-such-type' is not registered: known are"),
    ],
)
def test_bad_input_names_field_value_and_remedy(cli: Cli, job_type: str, given: str, said: str) -> None:
    result = cli("submit", job_type, "--input", given)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads(cli("jobs", "--json").stdout) == []


def test_submit_needs_an_account_with_credits(cli: Cli) -> None:
    order = json.dumps({"number": 1, "prompt": "a red fox"})
    submitting = ("submit", "poster", "--module", "actors.demo.jobs", "--input", order, "--user", "anna")
    missing = cli(*submitting)
    assert (missing.exit_code, "'anna' does not exist" in missing.stderr) == (3, True)
    cli("grant", "anna", "--topup", 11)
    poor = cli(*submitting)
    assert poor.exit_code == 4
    assert "has 11 credits available, this job reserves 12" in poor.stderr
    cli("grant", "anna", "--topup", 1)
    assert cli(*submitting).exit_code == 0


def test_grant_adds_and_shows_the_balance(cli: Cli) -> None:
    shown = cli("grant", "anna", "--topup", 5, "--subscription", 7)
    assert shown.stdout == "account anna: granted 12 = 12 available + 0 reserved + 0 committed\n"
    again = json.loads(cli("grant", "anna", "--topup", 1, "--json").stdout)
    assert again == {"account_id": "anna", "granted": 13, "available": 13, "reserved": 0, "committed": 0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("anna",), "nothing to grant"),
        (("anna", "--topup", "-1"), "--topup"),
        (("anna", "--topup", "many"), "--topup"),
        ((" ", "--topup", "1"), "ACCOUNT"),
    ],
)
def test_grant_refuses_what_is_no_grant(cli: Cli, arguments: tuple[str, ...], said: str) -> None:
    result = cli("grant", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("command", ["job", "follow", "stop"])
def test_an_unknown_or_malformed_id(cli: Cli, command: str) -> None:
    unknown = str(uuid.uuid4())
    missing = cli(command, unknown)
    assert (missing.exit_code, unknown in missing.stderr) == (3, True)
    malformed = cli(command, "12-34")
    assert (malformed.exit_code, "'12-34' is not a job id" in malformed.stderr) == (2, True)


def test_job_shows_an_open_and_a_completed_job(cli: Cli, engine: sa.Engine) -> None:
    job_id = submit(cli)
    shown = cli("job", job_id)
    assert shown.exit_code == 0
    assert "status   queued" in shown.stdout
    end(engine, job_id, State.COMPLETED)
    shown = cli("job", job_id)
    assert shown.exit_code == 0
    assert '"text": "done"' in shown.stdout


def test_a_failed_job_exits_1_and_hides_what_may_be_signed(cli: Cli, engine: sa.Engine) -> None:
    job_id = submit(cli)
    end(engine, job_id, State.FAILED)
    shown = cli("job", job_id)
    assert shown.exit_code == 1
    assert "task_failed: it broke at https://files.example/x" in shown.stdout
    assert "signature" not in shown.stdout
    assert "\x1b" not in shown.stdout
    as_json = cli("job", job_id, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["error_code"] == "task_failed"


def test_jobs_can_be_narrowed(cli: Cli, engine: sa.Engine) -> None:
    assert cli("jobs").stdout == "no jobs\n"
    annas, bens = submit(cli, "--user", "anna"), submit(cli, "--user", "ben")
    end(engine, bens, State.FAILED)
    assert [row["id"] for row in json.loads(cli("jobs", "--json").stdout)] == [bens, annas]
    assert [row["id"] for row in json.loads(cli("jobs", "--user", "anna", "--json").stdout)] == [annas]
    assert [row["id"] for row in json.loads(cli("jobs", "--status", "failed", "--json").stdout)] == [bens]
    assert [row["id"] for row in json.loads(cli("jobs", "--limit", 1, "--json").stdout)] == [bens]
    assert cli("jobs", "--status", "broken").exit_code == 2


def test_jobs_are_shown_a_page_at_a_time(cli: Cli, engine: sa.Engine) -> None:
    made = [submit(cli, "--user", "anna" if number % 2 else "ben") for number in range(7)]
    with engine.begin() as connection:
        # Made at the same moment, their ids tell them apart; no page repeats or misses one.
        connection.execute(sa.text("update callkeeper.jobs set created_at = now() where id <> :id"), {"id": made[0]})
    seen: list[str] = []
    for more in ((), *((("--before",)),) * 3):
        page = json.loads(cli("jobs", "--limit", 2, "--json", *((*more, seen[-1]) if more else ())).stdout)
        seen += [row["id"] for row in page]
    assert sorted(seen) == sorted(made)
    older = json.loads(cli("jobs", "--before", seen[0], "--user", "anna", "--json").stdout)
    assert [row["id"] for row in older] == [one for one in seen[1:] if one in made[1::2]]
    assert cli("jobs", "--before", "the last one").exit_code == 2
    assert cli("jobs", "--before", "123e4567-e89b-12d3-a456-426614174000").exit_code == 3


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("jobs", "--limit", "0"), "0"),
        (("jobs", "--limit=abc"), "abc"),
        (("jobs", "--status", "broken"), "broken"),
        (("follow", "x", "--after", "-1"), "-1"),
        (("grant", "anna", "--topup", "five"), "five"),
        (("worker", "-t", "1000"), "1000"),
        (("worker", "-p0"), "0"),
    ],
)
def test_a_refused_option_names_its_value(cli: Cli, arguments: tuple[str, ...], value: str) -> None:
    refused = cli(*arguments)
    assert refused.exit_code == 2
    assert f"'{value}'" in refused.stderr


def test_a_refused_request_names_each_field_once(cli: Cli) -> None:
    refused = cli("submit", "replicate-prediction", "--input", '{"model": 5}')
    assert refused.exit_code == 2
    assert refused.stderr.count("model:") == 1
    assert "got 5" in refused.stderr


def test_follow_prints_every_event_once_and_ends_as_the_job_did(cli: Cli, engine: sa.Engine) -> None:
    job_id = submit(cli)
    end(engine, job_id, State.COMPLETED)
    followed = cli("follow", job_id, "--json")
    assert followed.exit_code == 0
    events = [json.loads(line) for line in followed.stdout.splitlines()]
    assert [(event["seq"], event["kind"]) for event in events] == [(1, "queued"), (2, "started"), (3, "completed")]
    resumed = cli("follow", job_id, "--after", 2)
    assert [line.split()[:1] for line in resumed.stdout.splitlines()] == [["3"], ["job"]]
    assert resumed.stdout.endswith(f"job {job_id} completed\n")


def test_follow_of_a_failed_job_exits_1_and_says_why(cli: Cli, engine: sa.Engine) -> None:
    job_id = submit(cli)
    end(engine, job_id, State.FAILED)
    followed = cli("follow", job_id)
    assert followed.exit_code == 1
    assert "failed (task_failed: it broke at https://files.example/x" in followed.stdout


def test_stop_cancels_once_and_leaves_what_has_ended(cli: Cli, engine: sa.Engine) -> None:
    job_id = submit(cli)
    assert cli("stop", job_id).stdout == f"job {job_id} cancelled\n"
    assert json.loads(cli("stop", job_id, "--json").stdout) == {"job_id": job_id, "status": "cancelled"}
    assert cli("job", job_id).exit_code == 1
    other = submit(cli)
    end(engine, other, State.COMPLETED)
    refused = cli("stop", other)
    assert (refused.exit_code, "is completed" in refused.stderr) == (4, True)


def test_stop_respects_whose_job_it_is(cli: Cli) -> None:
    job_id = submit(cli, "--user", "anna")
    assert cli("stop", job_id, "--user", "ben").exit_code == 3
    assert cli("job", job_id).exit_code == 0
    assert cli("stop", job_id, "--user", "anna").exit_code == 0
