"""`callkeeper_audit.violations` names each broken invariant, and only that one."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from store import calls, gates, reads, settle, signals
from store.engine import Database
from store.models import NewAsset, Settlement
from store.states import State
from tests.conftest import Server, scratch_database
from tests.store.conftest import opened
from tests.store.steps import FAR, KIND, Steps


@pytest.fixture(scope="module")
def healthy(server: Server, template: str) -> Iterator[Database]:
    """Jobs in every state, with everything that a job can have."""
    with scratch_database(server, template) as url, opened(url) as db:
        steps = Steps(db)
        account = steps.account(subscription=10, topup=50)
        for state in State:
            steps.at(state, account_id=account, price=0)
        steps.ambiguous(account_id=account, price=3)
        stopping = steps.running(account_id=account, price=3)
        db.transact(signals.request_stop, stopping.job_id)
        picture = NewAsset("media/1", "image/png", 10, "a" * 64)
        done = Settlement(State.COMPLETED, result={"media": [{}]}, assets=[picture], cost=2)
        db.transact(settle.complete, steps.took_result(account_id=account, price=3), done)
        returned = steps.took_result(account_id=account, price=3)
        db.once(calls.return_result, returned, look_in=FAR, why="x")
        db.transact(signals.request_stop, returned.job_id)
        yield db


def test_a_healthy_database_has_no_violations(healthy: Database) -> None:
    assert healthy.once(reads.violations) == []
    with healthy.engine.connect() as connection:
        for table in ("jobs", "usage_logs", "assets", "call_receipts", "job_signals", "notices", "consequences"):
            assert connection.execute(sa.text(f"select count(*) from callkeeper.{table}")).scalar_one() > 0, table


KEY = "'sk-' || repeat('a', 24)"
RECEIPT = (
    "insert into callkeeper.call_receipts (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)"
    " select job_id, provider_kind, 'other-' || n, call_generation + {generation}, call_key, 'find', epoch"
    " from (select * from callkeeper.call_receipts limit 1) r, generate_series(1, {times}) n"
)
PLANTED: dict[str, tuple[int, str]] = {
    "an open job long past its deadline": (
        1, "update callkeeper.jobs set deadline_at = now() - interval '6 minutes' where status = 'queued'",
    ),
    "a finished job without its event": (
        2, "update callkeeper.job_events set kind = 'other' where kind = 'completed'",
    ),
    "an open job with an end": (2, "update callkeeper.job_events set kind = 'failed' where kind = 'call_ambiguous'"),
    "an end that says something else": (
        2, "update callkeeper.job_events set kind = 'failed' where kind = 'completed'",
    ),
    "an end that is not the last": (
        2, ("update callkeeper.job_events set kind = 'was' where kind = 'cancelled';"
        " update callkeeper.job_events set kind = 'cancelled' where kind = 'started' and job_id in"
        " (select job_id from callkeeper.job_events where kind = 'was')"),
    ),
    "a budget that is exceeded": (
        13, ("insert into callkeeper.budgets (measure, scope, at_most, changed_at)"
        " values ('concurrency', 'global', 1, now() - interval '1 h')"),
    ),
    "a user who spent more than may be": (
        13, ("insert into callkeeper.budgets (measure, scope, name, at_most, per, changed_at)"
        " values ('spend', 'user', '*', 2, '1 h', now() - interval '1 h');"
        " insert into callkeeper.spending (job_id, user_id) select job_id, 'ann' from callkeeper.usage_logs"),
    ),
    "a cost that nobody booked": (
        4, ("insert into callkeeper.call_ledger (job_id, generation, epoch, provider_kind, account, provider_model, price,"
        " reserved, started_at, until) select id, 1, 1, 'anthropic-sync', 'default', 'm', '{\"input\": 1, \"output\": 1}', 1,"
        " now() - interval '1 h', now() - interval '6 min' from callkeeper.jobs limit 1"),
    ),
    "an hour that is counted wrong": (
        13, "insert into callkeeper.spending_hours values (date_bin('1 h', now(), timestamptz '2000-01-03 00:00:00+00'), 0, 1, 1)",
    ),
    "two tasks of one generation": (3, RECEIPT.format(generation=0, times=1)),
    "a task without a receipt": (
        4, "delete from callkeeper.call_receipts where job_id in (select id from callkeeper.jobs where status = 'waiting')",
    ),
    "a receipt of another job": (
        4, ("update callkeeper.jobs set provider_task_id = 'swapped' where id ="
        " (select id from callkeeper.jobs where status = 'waiting' and provider_task_id is not null limit 1)"),
    ),
    "a reservation that no job made": (
        5, "update callkeeper.accounts set granted_topup = granted_topup + 1, reserved_topup = reserved_topup + 1",
    ),
    "a charge that no job made": (
        5, ("update callkeeper.accounts set granted_subscription = granted_subscription + 1,"
        " committed_subscription = committed_subscription + 1"),
    ),
    "credits drawn from the wrong pool": (
        5, ("update callkeeper.accounts set reserved_topup = reserved_topup + 1, balance_topup = balance_topup - 1,"
        " reserved_subscription = reserved_subscription - 1, balance_subscription = balance_subscription + 1"),
    ),
    "credits from nothing": (
        5, ("alter table callkeeper.accounts drop constraint accounts_topup_conserved;"
        " update callkeeper.accounts set balance_topup = balance_topup + 1"),
    ),
    "a finished job that still holds": (
        6, ("update callkeeper.usage_logs set status = 'reserved', settled_at = null where reserved_subscription = 0"
        " and reserved_topup = 0 and status = 'refunded'"),
    ),
    "a completed job that was refunded": (
        6, ("update callkeeper.usage_logs set status = 'refunded' where reserved_subscription = 0 and reserved_topup = 0"
        " and status = 'committed'"),
    ),
    "an open job that holds nothing": (
        6, "delete from callkeeper.usage_logs where reserved_subscription = 0 and reserved_topup = 0 and status = 'reserved'",
    ),
    "a finished job without a notice": (
        7, "delete from callkeeper.notices where key = (select min(key) from callkeeper.notices)",
    ),
    "two notices of one end": (
        7, "insert into callkeeper.notices (key, job_id, body) select 'again', job_id, body from callkeeper.notices limit 1",
    ),
    "an open job with a notice": (
        7, ("insert into callkeeper.notices (key, job_id, body) select 'early', id, '{}' from callkeeper.jobs"
        " where status = 'queued'"),
    ),
    "a gap in the events": (8, "delete from callkeeper.job_events where kind = 'call_started'"),
    "a counter ahead of its events": (8, "update callkeeper.jobs set event_seq = event_seq + 1 where status = 'queued'"),
    "an event of a superseded holder": (
        9, "update callkeeper.job_events set epoch = 0 where kind = 'call_ambiguous'",
    ),
    "a lease nobody recovered": (
        10, "update callkeeper.jobs set lease_until = now() - interval '2 minutes' where status = 'running'",
    ),
    "a result without its file": (11, "delete from callkeeper.assets"),
    "a file of an open job": (
        11, ("insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes, sha256)"
        " select id, 0, 'media/early', 'image/png', 1, repeat('a', 64) from callkeeper.jobs where status = 'queued'"),
    ),
    "a key in an event": (12, f"update callkeeper.job_events set data = jsonb_build_object('a', {KEY}) where seq = 1"),
    "a signed URL in a call's handle": (
        12, "update callkeeper.jobs set call_handle = '{\"u\": \"https://x/y?X-Amz-Signature=1\"}' where status = 'waiting'",
    ),
    "a key in a notice": (12, f"update callkeeper.notices set last_error = {KEY}"),
    "a signed URL in a consequence": (12, "update callkeeper.consequences set body = '{\"u\": \"https://x/?a=1&sig=2\"}'"),
    "a key in an alert": (
        12, f"insert into callkeeper.alerts (subject, details) values ('s', jsonb_build_object('a', {KEY}))",
    ),
    "a key in a notice of an alert": (
        12, ("insert into callkeeper.alerts (subject) values ('s');"
        f"update callkeeper.alert_notices set last_error = {KEY}"),
    ),
    "a key in a message": (12, f"update dramatiq.queue set message = jsonb_build_object('a', {KEY})"),
    "more tasks than attempts": (13, RECEIPT.format(generation="n", times=3)),
    "a signal left behind": (
        14, "insert into callkeeper.job_signals (job_id, kind) select id, 'stop' from callkeeper.jobs where status = 'failed'",
    ),
}  # fmt: skip


def found_with(db: Database, *statements: str) -> list[Mapping[str, Any]]:
    """What the view says inside a transaction that never commits."""
    with db.engine.connect() as connection:
        for statement in statements:
            assert connection.exec_driver_sql(statement).rowcount != 0, "nothing was planted"
        found = reads.violations(connection)
        connection.rollback()
    return found


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_violation_is_named_and_no_other(healthy: Database, planted: str) -> None:
    invariant, statement = PLANTED[planted]
    found = found_with(healthy, *statement.split(";"))
    assert found, "nothing was reported"
    assert {row["invariant"] for row in found} == {invariant}, found
    for row in found:
        assert row["what"]
        assert (row["job_id"] is None) <= (invariant in {5, 12, 13}), "a violation names its job where there is one"


def test_every_invariant_has_a_planted_violation() -> None:
    assert {invariant for invariant, _ in PLANTED.values()} == set(range(1, 15))


def test_the_other_views_answer(healthy: Database) -> None:
    with healthy.engine.connect() as connection:
        rows = connection.execute(sa.text("select * from callkeeper_audit.calls")).mappings().all()
        assert len(rows) == connection.execute(sa.text("select count(*) from callkeeper.jobs")).scalar_one()
        assert sum(row["charged"] or 0 for row in rows) == 2
        queues = connection.execute(sa.text("select * from callkeeper_audit.queue")).mappings().all()
        assert {row["queue_name"] for row in queues} == {"calls", "results"}


def test_no_job_is_late_while_its_clock_stands_still(steps: Steps) -> None:
    job_id = steps.waiting()
    steps.by_hand("update callkeeper.jobs set deadline_at = now() - interval '1 hour'")
    assert [row["invariant"] for row in steps.violations()] == [1]
    steps.db.once(gates.close, KIND, "default", reason="outage", span=timedelta(minutes=1), stops_clocks=True)
    assert steps.violations() == []
    steps.db.once(gates.reopen, KIND, "default")
    steps.by_hand("update callkeeper.jobs set deadline_at = now() - interval '1 hour'")
    assert [row["job_id"] for row in steps.violations()] == [job_id]
