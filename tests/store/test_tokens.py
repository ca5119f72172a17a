"""Tokens of the web API, and pages of a user's jobs: each guard by itself."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import sqlalchemy as sa

from store import pages, tokens
from store.tokens import Bearer
from tests.store.steps import Steps


def test_a_token_speaks_for_whom_it_was_made(steps: Steps) -> None:
    number, token = steps.db.once(
        tokens.create, scope="user", user_id="ann", account_id="firm", life=timedelta(hours=1)
    )
    known = steps.db.once(tokens.identify, tokens.hash_of(token))
    assert known == Bearer(number, "user", "ann", "firm")
    assert steps.db.once(tokens.identify, tokens.hash_of(tokens.new_token())) is None


def test_an_expired_token_speaks_for_nobody(steps: Steps) -> None:
    _, token = steps.db.once(tokens.create, scope="user", user_id="ann", life=timedelta(seconds=-1))
    assert steps.db.once(tokens.identify, tokens.hash_of(token)) is None


def test_a_revoked_token_speaks_for_nobody_and_keeps_its_first_end(steps: Steps) -> None:
    number, token = steps.db.once(tokens.create, scope="operator")
    assert steps.db.once(tokens.revoke, number) is True
    assert steps.db.once(tokens.identify, tokens.hash_of(token)) is None
    ended = [row["revoked_at"] for row in steps.db.once(tokens.listed) if row["id"] == number]
    assert steps.db.once(tokens.revoke, number) is False
    assert [row["revoked_at"] for row in steps.db.once(tokens.listed) if row["id"] == number] == ended
    assert steps.db.once(tokens.revoke, 10**9) is None


@pytest.mark.parametrize(
    ("values", "constraint"),
    [
        ({"scope": "god"}, "api_tokens_scope_known"),
        ({"scope": "user"}, "api_tokens_user_is_named"),
        ({"scope": "operator", "user_id": "ann"}, "api_tokens_user_is_named"),
        ({"scope": "operator", "account_id": "firm"}, "api_tokens_only_users_pay"),
        ({"scope": "user", "user_id": ""}, "api_tokens_words_are_short"),
        ({"scope": "user", "user_id": "x" * 257}, "api_tokens_words_are_short"),
    ],
)
def test_a_token_that_means_nothing_is_refused(steps: Steps, values: dict[str, str], constraint: str) -> None:
    with pytest.raises(sa.exc.IntegrityError, match=constraint):
        steps.db.once(tokens.create, **values)


def test_a_page_is_one_users_and_goes_on_behind_its_last_row(steps: Steps) -> None:
    mine = [steps.submit(user_id="ann") for _ in range(3)]
    steps.submit(user_id="bob")
    steps.submit()
    first = steps.db.once(pages.of_user, "ann", at_most=2)
    last = first[-1]
    rest = steps.db.once(pages.of_user, "ann", before=(last["created_at"], last["id"]), at_most=2)
    assert [row["id"] for row in [*first, *rest]] == list(reversed(mine))
    assert steps.db.once(pages.of_user, "ann", status="completed", at_most=2) == []
    assert steps.db.once(pages.of_user, "ann", job_type="other", at_most=2) == []


def test_jobs_of_the_same_instant_are_told_apart_by_their_ids(steps: Steps) -> None:
    ids = sorted((steps.submit(user_id="ann") for _ in range(4)), reverse=True)
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    with steps.db.engine.begin() as connection:
        connection.execute(sa.text("update callkeeper.jobs set created_at = :at"), {"at": moment})
    seen: list[UUID] = []
    for _ in range(5):
        rows = steps.db.once(pages.of_user, "ann", before=(moment, seen[-1]) if seen else None, at_most=1)
        seen += [row["id"] for row in rows]
    assert seen == ids
