"""What a user's own database role can reach: its runs and jobs by column, and nothing of calls, money or others."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from store import roles
from store.tables import metadata
from tests.runs.kit import diamond, submit
from tests.store.steps import Steps


@pytest.fixture
def guarded(fresh: Steps) -> Steps:
    """Ann's run and Bob's, and the roles."""
    for user in ("ann", "bob"):
        account = fresh.account(subscription=100)
        run = submit(fresh, diamond(user_id=user, account_id=account, price=1), user_id=user, account_id=account)
        run.complete("scene:1")
        run.fail("avatar")
        fresh.waiting(user_id=user)
    fresh.db.transact(roles.create)
    fresh.db.transact(roles.create)
    return fresh


@contextmanager
def as_role(steps: Steps, role: str, user: str | None = None) -> Iterator[sa.Connection]:
    with steps.db.engine.connect() as connection:
        connection.execute(sa.text(f"set local role {role}"))
        if user is not None:
            connection.execute(sa.text("select set_config('callkeeper.user_id', :user, true)"), {"user": user})
        try:
            yield connection
        finally:
            connection.rollback()


def test_a_user_sees_its_own_runs_and_jobs(guarded: Steps) -> None:
    with as_role(guarded, "callkeeper_user", "ann") as connection:
        assert connection.execute(sa.text("select user_id from callkeeper.runs")).scalars().all() == ["ann"]
        owners = set(connection.execute(sa.text("select user_id from callkeeper.jobs")).scalars())
        assert owners == {"ann"}
        events = set(connection.execute(sa.text("select job_id from callkeeper.job_events")).scalars())
        jobs = set(connection.execute(sa.text("select id from callkeeper.jobs")).scalars())
        assert events == jobs
        assert connection.execute(sa.text("select code from callkeeper.run_warnings")).scalars().all() == [
            "step_failed"
        ]


@pytest.mark.parametrize("user", [None, "", "nobody", "%"])
def test_whoever_has_not_said_who_it_is_sees_nothing(guarded: Steps, user: str | None) -> None:
    with as_role(guarded, "callkeeper_user", user) as connection:
        for table in roles.VISIBLE:
            column = roles.VISIBLE[table][0]
            assert connection.execute(sa.text(f"select {column} from callkeeper.{table}")).all() == []


HIDDEN = sorted({table.name for table in metadata.tables.values()} - set(roles.VISIBLE))


@pytest.mark.parametrize("table", HIDDEN)
def test_calls_and_money_are_out_of_a_users_reach(guarded: Steps, table: str) -> None:
    with as_role(guarded, "callkeeper_user", "ann") as connection, pytest.raises(ProgrammingError, match="denied"):
        connection.execute(sa.text(f"select 1 from callkeeper.{table}"))


@pytest.mark.parametrize(
    "column", ["provider_task_id", "provider_kind", "call_handle", "call_key", "lease_owner", "price", "error_message"]
)
def test_what_is_operational_on_a_job_is_out_of_a_users_reach(guarded: Steps, column: str) -> None:
    with as_role(guarded, "callkeeper_user", "ann") as connection, pytest.raises(ProgrammingError, match="denied"):
        connection.execute(sa.text(f"select {column} from callkeeper.jobs"))


@pytest.mark.parametrize(
    "write",
    [
        "update callkeeper.jobs set status = 'completed'",
        "update callkeeper.runs set quality = 'standard'",
        "delete from callkeeper.job_events",
        "insert into callkeeper.runs (run_type) values ('x')",
        "select 1 from dramatiq.queue",
        "select 1 from callkeeper_audit.calls",
        "set role callkeeper_service",
    ],
)
def test_a_user_changes_nothing(guarded: Steps, write: str) -> None:
    with guarded.db.engine.connect() as connection:
        login = "callkeeper_user"
        connection.execute(sa.text(f"set session authorization {login}"))
        try:
            with pytest.raises(ProgrammingError, match="denied"):
                connection.execute(sa.text(write))
        finally:
            connection.rollback()
            connection.execute(sa.text("reset session authorization"))


def test_the_service_role_does_the_workers_work(guarded: Steps) -> None:
    with as_role(guarded, "callkeeper_service") as connection:
        assert set(connection.execute(sa.text("select user_id from callkeeper.runs")).scalars()) == {"ann", "bob"}
        assert connection.execute(sa.text("select count(*) from callkeeper.call_receipts")).scalar_one() == 2
        connection.execute(sa.text("update callkeeper.jobs set progress = 0.5 where status = 'queued'"))
        assert connection.execute(sa.text("select count(*) from callkeeper_audit.violations")).scalar_one() == 0
