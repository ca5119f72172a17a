"""A submit belongs to the caller's transaction, spends each credit once and each idempotency key once."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from store import ledger, settle, signals, submit
from store.errors import AccountNotFound, IdempotencyConflict, InsufficientCredits
from store.models import Settlement
from store.states import State
from tests.store.steps import DONE, FAR, Steps, at_once, new_job, pid_of, wait_until_blocked

TABLES = ("jobs", "job_requests", "usage_logs", "job_events")
ORDERS = "create table public.orders (id int primary key)"


def written(steps: Steps) -> dict[str, int]:
    counts = {name: steps.count(f"callkeeper.{name}") for name in TABLES}
    return {**counts, "messages": steps.count("dramatiq.queue")}


NOTHING = {**dict.fromkeys(TABLES, 0), "messages": 0}
ONE = {**dict.fromkeys(TABLES, 1), "messages": 1}
ONE_FREE = {**ONE, "usage_logs": 0}


@pytest.fixture
def orders(steps: Steps) -> Steps:
    """The app's own table, in the same database."""
    steps.by_hand("drop table if exists public.orders", ORDERS)
    return steps


def test_a_job_commits_with_the_callers_rows(orders: Steps) -> None:
    account = orders.account(topup=5)
    with orders.db.engine.begin() as connection:
        connection.execute(sa.text("insert into public.orders values (1)"))
        submitted = submit.submit(connection, new_job(account_id=account, price=5, user_id="u"))
        assert written(orders) == NOTHING, "nobody sees it before the commit"
    assert (submitted.status, submitted.created) == (State.QUEUED, True)
    assert written(orders) == ONE
    assert orders.count("public.orders") == 1
    assert orders.pools(account)["reserved"] == (0, 5)
    assert orders.violations() == []


def test_a_rollback_leaves_nothing(orders: Steps) -> None:
    account = orders.account(topup=5)
    with orders.db.engine.connect() as connection:
        connection.execute(sa.text("insert into public.orders values (1)"))
        submit.submit(connection, new_job(account_id=account, price=5))
        connection.rollback()
    assert written(orders) == NOTHING
    assert orders.count("public.orders") == 0
    assert orders.pools(account)["balance"] == (0, 5)


def test_the_callers_failing_row_takes_the_job_along(orders: Steps) -> None:
    def order(connection: sa.Connection) -> None:
        submit.submit(connection, new_job())
        connection.execute(sa.text("insert into public.orders values (1), (1)"))

    with pytest.raises(sa.exc.IntegrityError):
        orders.db.transact(order)
    assert written(orders) == NOTHING


def test_a_session_submits(orders: Steps) -> None:
    with Session(orders.db.engine) as session:
        session.execute(sa.text("insert into public.orders values (1)"))
        submit.submit(session, new_job())
        session.rollback()
        assert written(orders) == NOTHING
        submit.submit(session, new_job())
        session.commit()
    assert written(orders) == ONE_FREE


def test_async_ones_submit_through_run_sync(orders: Steps, module_db: Any) -> None:
    async def both() -> None:
        engine = create_async_engine(module_db.engine.url)
        async with AsyncSession(engine) as session:
            await session.execute(sa.text("insert into public.orders values (1)"))
            await session.run_sync(submit.submit, new_job())
            await session.rollback()
            await session.run_sync(submit.submit, new_job())
            await session.commit()
        connection: AsyncConnection
        async with engine.begin() as connection:
            await connection.run_sync(submit.submit, new_job())
        await engine.dispose()

    asyncio.run(both())
    assert written(orders) == {name: 2 * count for name, count in ONE_FREE.items()}
    assert orders.count("public.orders") == 0


def test_the_message_carries_the_job_id_and_nothing_else(steps: Steps) -> None:
    job_id = steps.submit(queue="large", delay=FAR)
    row = steps.one("select *, available_at > now() + interval '59 minutes' as held_back from dramatiq.queue")
    assert (row["queue_name"], row["state"], row["held_back"]) == ("large", "queued", True)
    message = dict(row["message"])
    assert message.pop("message_id") == str(row["message_id"])
    assert isinstance(message.pop("message_timestamp"), int)
    assert message == {
        "queue_name": "large", "actor_name": "start_call", "args": [str(job_id)], "kwargs": {}, "options": {},
    }  # fmt: skip


def test_the_row_and_its_first_event_say_what_was_asked(steps: Steps) -> None:
    request = {"prompt": "é😀", "nested": [1, 2.5, None, True]}
    limits = {"queue_limit": timedelta(minutes=5), "run_limit": timedelta(minutes=7)}
    job_id = steps.submit(user_id="u", mode="sync", retry_safe=True, request=request, max_attempts=4, **limits)
    row = steps.row(job_id)
    assert (row["status"], row["attempt"], row["max_attempts"], row["epoch"]) == ("queued", 1, 4, 0)
    assert (row["mode"], row["retry_safe"], row["user_id"], row["price"]) == ("sync", True, "u", 0)
    assert row["queue_deadline_at"] - row["available_at"] == timedelta(minutes=5)
    assert row["deadline_at"] - row["queue_deadline_at"] == timedelta(minutes=7)
    assert steps.one("select request from callkeeper.job_requests")["request"] == request
    event = steps.one("select seq, kind, data from callkeeper.job_events")
    assert (event["seq"], event["kind"], event["data"]) == (1, "queued", {"job_type": "picture"})


# Idempotency.


def test_the_same_key_and_body_is_the_same_job_in_its_current_state(steps: Steps) -> None:
    account = steps.account(topup=5)
    asked: dict[str, Any] = {"user_id": "u", "idempotency_key": "k", "account_id": account, "price": 5}
    first = steps.db.transact(submit.submit, new_job(**asked))
    again = steps.db.transact(submit.submit, new_job(**asked))
    assert (again.job_id, again.status, again.created) == (first.job_id, State.QUEUED, False)
    lease = steps.claim(first.job_id).lease
    assert steps.db.transact(submit.submit, new_job(**asked)).status is State.RUNNING
    steps.db.transact(settle.complete, lease, DONE)
    after = steps.db.transact(submit.submit, new_job(**asked))
    assert (after.job_id, after.status) == (first.job_id, State.COMPLETED)
    assert steps.count("callkeeper.jobs") == 1
    assert steps.pools(account)["committed"] == (0, 5)


def test_another_body_under_the_same_key_is_refused(steps: Steps) -> None:
    first = steps.submit(user_id="u", idempotency_key="k")
    with pytest.raises(IdempotencyConflict, match="use a new key") as refusal:
        steps.submit(user_id="u", idempotency_key="k", fingerprint="f2")
    assert (refusal.value.key, refusal.value.job_id) == ("k", first)
    assert written(steps) == ONE_FREE


def test_keys_are_each_users_own_and_the_ownerless_share_a_space(steps: Steps) -> None:
    first = steps.submit(user_id="u", idempotency_key="k")
    other = steps.submit(user_id="v", idempotency_key="k")
    nobody = steps.submit(user_id=None, idempotency_key="k")
    assert len({first, other, nobody}) == 3
    assert steps.submit(user_id=None, idempotency_key="k") == nobody
    with pytest.raises(IdempotencyConflict):
        steps.submit(user_id=None, idempotency_key="k", fingerprint="f2")


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.TIMED_OUT])
def test_a_job_that_came_to_nothing_frees_its_key(steps: Steps, state: State) -> None:
    first = steps.ended(state, idempotency_key="k")
    assert steps.submit(idempotency_key="k", fingerprint="f2") != first
    assert steps.violations() == []


def test_fifty_submits_at_once_under_one_key_are_one_job(steps: Steps) -> None:
    account = steps.account(subscription=3, topup=500)
    barrier = threading.Barrier(50)
    engine = sa.create_engine(steps.db.engine.url, poolclass=sa.NullPool)

    def one() -> Any:
        with engine.begin() as connection:
            barrier.wait()
            return submit.submit(connection, new_job(user_id="u", idempotency_key="k", account_id=account, price=5))

    answers = at_once([one] * 50)
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(answer.created for answer in answers) == 1
    assert written(steps) == ONE
    assert steps.pools(account)["reserved"] == (3, 2)
    assert steps.violations() == []


def test_submits_at_once_without_an_account_are_one_job_too(steps: Steps) -> None:
    """No account's lock puts them in a row: the key's unique index alone decides."""
    barrier = threading.Barrier(12)

    def one() -> Any:
        with steps.db.engine.begin() as connection:
            barrier.wait()
            return submit.submit(connection, new_job(idempotency_key="k"))

    assert sum(answer.created for answer in at_once([one] * 12)) == 1
    assert written(steps) == ONE_FREE


def test_a_racer_for_a_key_waits_for_the_first_and_takes_over_if_it_gives_up(steps: Steps) -> None:
    answers: list[Any] = []
    with steps.db.engine.connect() as first, steps.db.engine.connect() as second:
        given_up = submit.submit(first, new_job(idempotency_key="k"))
        pid = pid_of(second)
        racing = threading.Thread(
            target=lambda: (answers.append(submit.submit(second, new_job(idempotency_key="k"))), second.commit())
        )
        racing.start()
        wait_until_blocked(steps.db.engine, pid)
        first.rollback()
        racing.join()
    assert answers[0].created
    assert answers[0].job_id != given_up.job_id
    assert written(steps) == ONE_FREE


def test_a_submit_under_the_key_of_a_job_that_settles_does_not_deadlock(steps: Steps) -> None:
    """The settlement holds the job and wants the account; a submit that held the account must not want the job."""
    account = steps.account(topup=50)
    asked: dict[str, Any] = {"idempotency_key": "k", "account_id": account, "price": 5}
    job_id = steps.submit(**asked)
    lease = steps.claim(job_id).lease
    answers: list[Any] = []
    with ExitStack() as open_until_here:
        settler, caller = (open_until_here.enter_context(steps.db.engine.connect()) for _ in range(2))
        submit.submit(caller, new_job(account_id=account, price=1))  # the caller's transaction holds the account
        pid = pid_of(settler)
        outcome = Settlement(State.FAILED, error_code="made_to_fail")
        settling = threading.Thread(target=lambda: (settle.end_held(settler, lease, outcome), settler.commit()))
        settling.start()
        wait_until_blocked(steps.db.engine, pid)
        answers.append(submit.submit(caller, new_job(**asked)))
        caller.commit()
        settling.join()
    assert (answers[0].job_id, answers[0].created) == (job_id, False)
    assert steps.row(job_id)["status"] == "failed"
    assert steps.violations() == []


# Credits.


@pytest.mark.parametrize(("price", "split"), [(0, (0, 0)), (4, (4, 0)), (5, (5, 0)), (6, (5, 1)), (15, (5, 10))])
def test_a_reservation_draws_on_the_subscription_first(steps: Steps, price: int, split: tuple[int, int]) -> None:
    account = steps.account(subscription=5, topup=10)
    job_id = steps.submit(account_id=account, price=price)
    usage = steps.one("select * from callkeeper.usage_logs where job_id = :id", id=job_id)
    assert (usage["status"], usage["reserved_subscription"], usage["reserved_topup"]) == ("reserved", *split)
    assert steps.pools(account)["reserved"] == split
    assert steps.violations() == []


def test_twenty_racers_reserve_exactly_what_there_is(steps: Steps) -> None:
    account = steps.account(subscription=8, topup=15)
    barrier = threading.Barrier(20)

    def one() -> bool:
        with steps.db.engine.begin() as connection:
            barrier.wait()
            try:
                submit.submit(connection, new_job(account_id=account, price=3))
            except InsufficientCredits:
                return False
            return True

    assert sum(at_once([one] * 20)) == 7
    pools = steps.pools(account)
    assert (pools["balance"], pools["reserved"]) == ((0, 2), (8, 13))
    assert steps.count("callkeeper.jobs") == steps.count("dramatiq.queue") == 7
    assert steps.violations() == []


REFUSALS: dict[str, tuple[type[Exception], Callable[[Steps], dict[str, Any]]]] = {
    "insufficient": (
        InsufficientCredits,
        lambda steps: {"account_id": steps.account(subscription=2, topup=2), "price": 5},
    ),
    "unknown account": (AccountNotFound, lambda steps: {"account_id": "nobody", "price": 0}),
    "key used": (
        IdempotencyConflict,
        lambda steps: {"idempotency_key": "k", "fingerprint": f"not {steps.submit(idempotency_key='k')}"},
    ),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_after_a_refusal_the_callers_transaction_goes_on(orders: Steps, why: str) -> None:
    error, asked = REFUSALS[why]
    job = new_job(**asked(orders))
    before = written(orders)
    with orders.db.engine.begin() as connection:
        with pytest.raises(error):
            submit.submit(connection, job)
        connection.execute(sa.text("insert into public.orders values (1)"))
        submit.submit(connection, new_job())
    assert orders.count("public.orders") == 1
    assert written(orders)["jobs"] == before["jobs"] + 1
    assert orders.violations() == []


def test_insufficient_says_what_is_missing(steps: Steps) -> None:
    account = steps.account(subscription=2, topup=1)
    with pytest.raises(InsufficientCredits) as refusal:
        steps.submit(account_id=account, price=5)
    assert (refusal.value.needed, refusal.value.available) == (5, 3)


def test_a_stop_within_the_submitting_transaction(steps: Steps) -> None:
    account = steps.account(topup=5)
    with steps.db.engine.begin() as connection:
        job_id = submit.submit(connection, new_job(account_id=account, price=5)).job_id
        assert signals.request_stop(connection, job_id) is State.CANCELLED
    assert steps.pools(account)["balance"] == (0, 5)
    assert steps.violations() == []


def test_a_used_key_is_answered_without_waiting_for_the_account(steps: Steps) -> None:
    account = steps.account(topup=9)
    asked: dict[str, Any] = {"idempotency_key": "k", "account_id": account, "price": 5}
    job_id = steps.submit(**asked)
    with steps.db.engine.connect() as holder, steps.db.engine.begin() as caller:
        holder.execute(sa.text("select from callkeeper.accounts for update"))
        caller.execute(sa.text("set local lock_timeout = 300"))
        assert submit.submit(caller, new_job(**asked)).job_id == job_id


def test_a_grant_is_never_negative_and_adds_up(steps: Steps) -> None:
    account = steps.account(subscription=2, topup=1)
    steps.db.once(ledger.grant, account, subscription=3)
    assert steps.pools(account)["balance"] == (5, 1)
    assert steps.db.once(ledger.balance, account) == (6, 6, 0, 0)
    for wrong in ({"subscription": -1}, {"topup": -1}):
        with pytest.raises(ValueError, match="cannot be negative"):
            steps.db.once(ledger.grant, account, **wrong)
    assert steps.pools(account)["granted"] == (5, 1)


def test_a_freed_key_hides_no_refusal(steps: Steps) -> None:
    """The job that failed under this key is not the answer to a new submit that cannot be paid."""
    account = steps.account(topup=5)
    steps.ended(State.FAILED, idempotency_key="k", account_id=account, price=5)
    with pytest.raises(InsufficientCredits):
        steps.submit(idempotency_key="k", account_id=account, price=6)
