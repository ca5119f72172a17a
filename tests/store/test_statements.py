"""Every statement of the store is planned by a real server; those that run all day find their rows by partial index."""

import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import psycopg
from sqlalchemy.sql import visitors
from sqlalchemy.sql.elements import BinaryExpression, BindParameter
from sqlalchemy.sql.functions import FunctionElement

import store
from store.engine import Database
from store.tables import jobs
from tests.conftest import Server, scratch_database
from tests.store.conftest import opened

DIALECT = psycopg.dialect()
NAMED = re.compile(r"%\((\w+)\)s")
SQL = re.compile(r"^\s*(select|insert|update|delete|with)\b", re.IGNORECASE)
MODULES = [importlib.import_module(f"store.{module.name}") for module in pkgutil.iter_modules(store.__path__)]


def is_statement(value: Any) -> bool:
    if isinstance(value, str):
        return SQL.match(value) is not None
    return isinstance(value, sa.Executable) and not isinstance(value, FunctionElement)


def collect() -> dict[str, Any]:
    """Every constant that is a statement, also in a dict of them; each once, under the module that wrote it first."""
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for module in MODULES:
        for name, value in vars(module).items():
            if name.startswith("__"):
                continue
            parts = value.items() if isinstance(value, dict) else [("", value)]
            for key, part in parts:
                if is_statement(part) and id(part) not in seen:
                    seen.add(id(part))
                    found[f"{module.__name__.removeprefix('store.')}.{name}{f'[{key}]' if key else ''}"] = part
    return found


STATEMENTS = collect()


def as_sql(statement: Any) -> str:
    return statement if isinstance(statement, str) else str(statement.compile(dialect=DIALECT))


def as_prepared(statement: Any) -> tuple[str, list[str]]:
    """The statement with $1, $2, ... and its binds' names in that order."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return NAMED.sub(number, as_sql(statement)).replace("%%", "%"), names


def test_the_collection_is_not_empty() -> None:
    assert len(STATEMENTS) > 60
    for known in (
        "jobs.CLAIM_QUEUED",
        "queue.CLAIM",
        "queue.SEND_TICK",
        "outbox.CLAIM[notices]",
        "aftermath.AFTERMATH",
        "submit.SUBMIT",
    ):
        assert known in STATEMENTS


@pytest.fixture(scope="module")
def large(server: Server, template: str) -> Iterator[Database]:
    """200,000 jobs that ended and 1,000 that live, with what they leave behind."""
    with scratch_database(server, template) as url, opened(url) as db:
        with db.engine.begin() as connection:
            connection.exec_driver_sql("set local statement_timeout = 0")
            for statement in LARGE:
                connection.exec_driver_sql(statement)
        with db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("set statement_timeout = 0")
            connection.exec_driver_sql("vacuum analyze")
        yield db


_COLUMNS = """
insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, status, max_attempts, queue_limit,
  run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, epoch, finished_at, result, error_code, lease_owner,
  lease_token, lease_until, provider_kind, provider_task_id, provider_call_started_at, call_key, call_handle,
  call_generation, next_poll_at, idempotency_key)
"""
LARGE = [
    _COLUMNS
    + """
    select 't', 'calls', 'start_call', 'async', 'f', 0, case when mod(n, 4) = 0 then 'failed' else 'completed' end, 3, '1 h', '1 h',
      t, t, t, null, 2, t, case when mod(n, 4) > 0 then '{}'::jsonb end, case when mod(n, 4) = 0 then 'x' end, null, null, null,
      'replicate-prediction', 'task-' || n, t, gen_random_uuid(), '{}', 1, null, 'key-' || n
    from generate_series(1, 200000) n, lateral (select now() - n * interval '1 second' as t) at
    """,
    _COLUMNS
    + """
    select 't', 'calls', 'start_call', 'async', 'f', 0, s, 3, '1 h', '1 h', now(), now() + interval '1 h', now() + interval '2 h',
      now() + (n - 500) * interval '1 second', 1, null, null, null,
      case s when 'running' then 'w' end, case s when 'running' then gen_random_uuid() end, case s when 'running' then now() end,
      case s when 'waiting' then 'replicate-prediction' end, case s when 'waiting' then 'open-' || n end,
      case s when 'waiting' then now() end, case s when 'waiting' then gen_random_uuid() end,
      case s when 'waiting' then '{}'::jsonb end, 1, case s when 'waiting' then now() + (n - 500) * interval '1 second' end, null
    from generate_series(1, 1000) n, lateral (select (array['queued', 'running', 'waiting'])[1 + mod(n, 3)] as s) at
    """,
    "insert into callkeeper.job_requests select id, '{}' from callkeeper.jobs limit 20000",
    (
        "insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch) select id, 1, 'queued', 1, 0 from callkeeper.jobs"
        " limit 20000"
    ),
    """
    insert into callkeeper.call_receipts (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)
    select id, provider_kind, provider_task_id, 1, call_key, 'create', 1 from callkeeper.jobs where provider_task_id is not null
    limit 20000
    """,
    """
    insert into callkeeper.notices (key, job_id, body, delivered_at)
    select 'job-ended:' || id, id, '{}', case when random() > 0.01 then now() end from callkeeper.jobs where finished_at is not null
    limit 20000
    """,
    """
    insert into callkeeper.consequences (key, job_id, effect, body, delivered_at)
    select 'x:' || id, id, 'e', '{}', case when random() > 0.01 then now() end from callkeeper.jobs where finished_at is not null
    limit 20000
    """,
    """
    insert into dramatiq.queue (message_id, queue_name, state, message)
    select gen_random_uuid(), 'calls', case when n <= 1000 then 'queued' else 'rejected' end::dramatiq.state, '{"args": ["x"]}'
    from generate_series(1, 50000) n
    """,
]


def plan_of(connection: sa.Connection, statement: Any, mode: str, values: dict[str, str]) -> Any:
    """The plan under `mode`. A bind without a value of its own is NULL, of the type that the server infers."""
    text, names = as_prepared(statement)
    connection.exec_driver_sql(f"set plan_cache_mode = {mode}")
    connection.exec_driver_sql("prepare planned as " + text.replace("%", "%%"))
    arguments = ", ".join(values.get(name, "null") for name in names)
    called = f"({arguments})" if names else ""
    plan = connection.exec_driver_sql(f"explain (format json) execute planned{called}".replace("%", "%%")).scalar_one()
    connection.exec_driver_sql("deallocate planned")
    return plan if isinstance(plan, list) else json.loads(plan)


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    if isinstance(plan, dict):
        if "Node Type" in plan:
            yield plan
        for value in plan.values():
            yield from nodes(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from nodes(value)


MODES = ("force_custom_plan", "force_generic_plan")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_can_be_planned(large: Database, name: str, mode: str) -> None:
    with large.engine.connect() as connection:
        assert list(nodes(plan_of(connection, STATEMENTS[name], mode, {})))
        connection.rollback()


# What a person asks now and then may read everything, and filter by a state of that person's choice.
WHOLE = {"reads.COUNTS", "rollout.GATES", "reads.VIOLATIONS", "health.NEWEST_JOBS", "health.OLDER_JOBS"}
CHOSEN = {"health.NEWEST_JOBS", "health.OLDER_JOBS", "pages.OF_USER"}


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WHOLE))
def test_nothing_reads_all_jobs(large: Database, name: str) -> None:
    with large.engine.connect() as connection:
        plan = plan_of(connection, STATEMENTS[name], "force_generic_plan", {})
        connection.rollback()
    tables = {"jobs", "job_requests", "job_events", "call_receipts", "notices", "consequences"}
    scanned = [node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"]
    assert not tables & set(scanned), plan


ID = f"'{uuid4()}'"
TERM = f"'{timedelta(seconds=30)}'"
# The index, or several that are each as good; the binds.
BY_INDEX: dict[str, tuple[str, dict[str, str]]] = {
    "jobs.CLAIM_QUEUED": ("jobs_pkey", {"job_id": ID, "owner": "'w'", "term": TERM}),
    "polls.CLAIM_DUE_POLLS": ("jobs_poll_due", {"kinds": "'{replicate-prediction}'", "at_most": "100", "term": TERM}),
    "polls.NEXT_DUE": ("jobs_poll_due", {}),
    "polls.POLL_NOW": ("jobs_one_per_task jobs_poll_due", {"kind": "'replicate-prediction'", "task_id": "'task-7'"}),
    "passes.LAPSED_LEASES": ("jobs_running", {"at_most": "200"}),
    "passes.LOOK_AT_QUIET": ("jobs_check_due", {"at_most": "200"}),
    "pages.OF_USER": ("jobs_newest_of_user", {"user_id": "'ann'", "at_most": "20"}),
    "submit.WINNER": ("jobs_one_per_key", {"owner": "''", "key": "'key-7'"}),
    "outbox.CLAIM[notices]": ("notices_due", {"at_most": "50", "term": TERM}),
    "outbox.CLAIM[consequences]": ("consequences_due", {"at_most": "50", "term": TERM}),
    "receipts.KNOWN_TASKS": ("call_receipts_by_task", {"kind": "'replicate-prediction'", "task_ids": "'{a,b}'"}),
    "queue.CLAIM": ("queue_queue_name_available_at_position_idx", {"queue": "'calls'", "limit": "100", "worker": ID}),
    "health.NEWEST_JOBS": ("jobs_newest", {"at_most": "20"}),
    "health.OLDER_JOBS": ("jobs_newest", {"at_most": "20", "before": ID}),
    "settle.END_HELD": (
        "jobs_pkey jobs_running",
        {"held_id": ID, "held_epoch": "1", "held_token": ID, "status": "'failed'"},
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BY_INDEX)
def test_what_runs_all_day_uses_its_index(large: Database, name: str, mode: str) -> None:
    index, values = BY_INDEX[name]
    with large.engine.connect() as connection:
        plan = plan_of(connection, STATEMENTS[name], mode, values)
        connection.rollback()
    used = {node["Index Name"] for node in nodes(plan) if "Index Name" in node}
    assert used & set(index.split()), plan
    tables = {"jobs", "queue", "notices", "consequences", "call_receipts"}
    allowed = {"queue"} if name == "passes.LOOK_AT_QUIET" else set()
    scanned = {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}
    assert not (tables - allowed) & scanned, plan


def test_before_any_statistics_a_settlement_reads_its_own_reservation_only(db: Database) -> None:
    """A burst is settled before the first ANALYZE: a plan over all that is reserved would cost each job all others."""
    with db.engine.connect() as connection:
        plan = plan_of(connection, STATEMENTS["aftermath.AFTERMATH"], "force_generic_plan", {})
        connection.rollback()
    assert "usage_logs_pkey" in {node.get("Index Name") for node in nodes(plan)}
    assert "usage_logs_reserved" not in {node.get("Index Name") for node in nodes(plan)}, plan


# What writes many rows that were chosen before.
BY_KEY = (
    "jobs.RENEW", "polls.CLAIM_DUE_POLLS", "polls.RECORD_POLLS", "passes.LOOK_AT_QUIET", "passes.LOOK_AGAIN",
    "looks.CLAIM_PROBES", "looks.NOTE_LOOKS", "gates.REOPEN", "watches.CLAIM_WATCHES", "roll_up.RELEASE",
    "inbox.APPLY", "shutdown.HAND_OVER", "outbox.CLAIM[notices]", "outbox.CLAIM[consequences]", "outbox.CLAIM[alert_notices]",
    "outbox.DELIVERED[notices]", "outbox.DELIVERED[consequences]", "outbox.DELIVERED[alert_notices]",
)  # fmt: skip
OF_WHAT_IS_OPEN = {"jobs_check_due", "jobs_poll_due", "jobs_running"} | {
    f"{table}_due" for table in ("notices", "consequences", "alert_notices", "upstream_watches")
}


def written_by(plan: Any) -> Iterator[set[str]]:
    """The indexes that each writing part of a plan finds its rows by, without those that chose them."""
    for node in nodes(plan):
        if node["Node Type"] == "ModifyTable":
            yield set(_joined(node))


def _joined(node: dict[str, Any]) -> Iterator[str]:
    for part in node.get("Plans", []):
        if not part.get("Subplan Name", "").startswith(("CTE", "SubPlan")):
            yield from [part["Index Name"]] if "Index Name" in part else []
            yield from _joined(part)


@pytest.fixture(scope="module")
def burst(server: Server, template: str) -> Iterator[Database]:
    """Statistics from before a burst: everything had ended."""
    with scratch_database(server, template) as url, opened(url) as database:
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in (LARGE[0].replace("200000", "5000"), "analyze callkeeper.jobs", *LARGE[1:]):
                connection.exec_driver_sql(statement)
        yield database


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", BY_KEY)
def test_in_a_burst_rows_that_were_chosen_are_written_by_their_key(burst: Database, name: str, mode: str) -> None:
    """By an index of what is open, each chosen row would be compared with all that are."""
    _, values = BY_INDEX.get(name, ("", {}))
    with burst.engine.connect() as connection:
        plan = plan_of(connection, STATEMENTS[name], mode, values)
        connection.rollback()
    writes = list(written_by(plan))
    assert writes
    assert not any(indexes & OF_WHAT_IS_OPEN for indexes in writes), plan


def test_a_sequential_scan_would_be_seen(large: Database) -> None:
    """The same claim with a bound state: the generic plan cannot prove the partial index, and reads everything."""
    bound = sa.text("select id from callkeeper.jobs where status = :state and next_poll_at <= now()")
    with large.engine.connect() as connection:
        plan = plan_of(connection, bound, "force_generic_plan", {})
        connection.rollback()
    assert "Seq Scan" in {node["Node Type"] for node in nodes(plan)}


def bound_states(statement: Any) -> list[str]:
    """Comparisons of a status with a bind."""
    if isinstance(statement, str | sa.TextClause):
        text = statement if isinstance(statement, str) else statement.text
        return re.findall(r"\b(?:status|state)\s*(?:=|<>|!=|in|not in)\s*\(?\s*(?::\w+|%\(\w+\)s)", text)
    found = []
    for element in visitors.iterate(statement):
        if isinstance(element, BinaryExpression) and getattr(element.left, "name", None) in {"status", "state"}:
            found += [str(element) for part in visitors.iterate(element.right) if isinstance(part, BindParameter)]
    return found


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WHOLE - CHOSEN))
def test_no_state_is_bound_in_a_condition(name: str) -> None:
    assert bound_states(STATEMENTS[name]) == []


@pytest.mark.parametrize(
    "planted",
    [
        sa.update(jobs).where(jobs.c.status == "queued").values(progress=0.5),
        sa.select(jobs.c.id).where(jobs.c.status.in_(["queued", "running"])),
        sa.text("select 1 from callkeeper.jobs where status = :state"),
        "select 1 from dramatiq.queue where state in (%(state)s)",
    ],
)
def test_a_bound_state_would_be_seen(planted: Any) -> None:
    assert bound_states(planted)
