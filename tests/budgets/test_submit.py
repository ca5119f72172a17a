"""Refusals at submit: typed, with nothing written and the caller's transaction still usable."""

from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from store import submit
from store.errors import NeverFits, QueueFull, SubmitRefused
from tests.budgets.steps import Starts
from tests.store.steps import KIND, at_once, new_job

HOUR = timedelta(hours=1)


def written(starts: Starts) -> dict[str, int]:
    tables = ("callkeeper.jobs", "callkeeper.usage_logs", "callkeeper.job_events", "dramatiq.queue")
    return {table: starts.count(table) for table in tables}


@pytest.mark.parametrize(
    ("scope", "name"), [("global", ""), ("kind", KIND), ("user", "ann"), ("user", "*"), ("app", "shop")]
)
def test_a_full_queue_refuses_and_writes_nothing(starts: Starts, scope: str, name: str) -> None:
    starts.budget("queued", scope, name, at_most=2)
    account = starts.account(topup=100)
    mine: dict[str, Any] = {"user_id": "ann", "app": "shop", "provider_kind": KIND, "account_id": account, "price": 5}
    for _ in range(2):
        starts.submit(**mine)
    before, pools = written(starts), starts.pools(account)
    with pytest.raises(QueueFull) as refused:
        starts.submit(**mine)
    assert (refused.value.code, refused.value.retryable, refused.value.limit) == ("queue_full", True, 2)
    assert refused.value.retry_after == 5
    assert (written(starts), starts.pools(account)) == (before, pools)
    starts.claim(starts.all("select id from callkeeper.jobs limit 1")[0]["id"])
    starts.submit(**mine)


def test_the_transaction_of_a_refused_submit_goes_on(starts: Starts) -> None:
    starts.budget("queued", "user", "ann", at_most=0)
    with starts.db.engine.begin() as connection:
        with pytest.raises(QueueFull):
            submit.submit(connection, new_job(user_id="ann"))
        kept = submit.submit(connection, new_job(user_id="bob")).job_id
    assert starts.row(kept)["status"] == "queued"


def test_a_known_key_is_never_refused_for_a_full_queue(starts: Starts) -> None:
    starts.budget("queued", "global", at_most=1)
    first = starts.submit(user_id="ann", idempotency_key="k")
    assert starts.submit(user_id="ann", idempotency_key="k") == first


def test_many_at_once_fill_it_exactly(starts: Starts) -> None:
    starts.budget("queued", "global", at_most=5)

    def one() -> bool:
        try:
            starts.submit(user_id="ann")
        except QueueFull:
            return False
        return True

    assert sum(at_once([one] * 16)) == 5
    assert starts.count("callkeeper.jobs") == 5


@pytest.mark.parametrize(
    ("measure", "scope", "name", "at_most", "per", "needed"),
    [
        ("concurrency", "kind", KIND, 0, None, 1),
        ("rate", "account", "replicate/default", 0, HOUR, 1),
        ("spend", "user", "*", 4, HOUR, 5),
    ],
)
def test_what_can_never_fit_is_refused_at_once(
    starts: Starts, measure: str, scope: str, name: str, at_most: int, per: timedelta | None, needed: int
) -> None:
    account = starts.account(topup=100)
    starts.budget(measure, scope, name, at_most=at_most, per=per)
    before = written(starts)
    with pytest.raises(NeverFits) as refused:
        starts.submit(user_id="ann", provider_kind=KIND, account_id=account, price=5)
    assert (refused.value.code, refused.value.retryable, refused.value.needed) == ("budget_never_fits", False, needed)
    assert refused.value.retry_after is None
    assert written(starts) == before


def subclasses(of: type[SubmitRefused]) -> set[type[SubmitRefused]]:
    return {of, *(deeper for one in of.__subclasses__() for deeper in subclasses(one))}


def test_every_refusal_has_a_code_of_its_own() -> None:
    import actors  # noqa: F401  # registers its own

    plain = [one.__name__ for one in subclasses(SubmitRefused) - {SubmitRefused} if one.code == SubmitRefused.code]
    assert plain == []


def test_without_a_budget_a_submit_is_one_statement(starts: Starts) -> None:
    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(starts.db.engine, "before_cursor_execute", note)
    try:
        job_id = starts.submit(user_id="ann")
        assert len(seen) == 1
        assert starts.unlimited(job_id)
        assert len(seen) == 2, "and a claim is one, too"
    finally:
        sa.event.remove(starts.db.engine, "before_cursor_execute", note)
