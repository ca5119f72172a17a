"""`callkeeper token`: made once, shown once, listed without what it was, revoked by number."""

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

Cli = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("on_database")


def test_a_token_is_printed_once_and_only_its_hash_is_kept(cli: Cli, engine: sa.Engine) -> None:
    made = cli("token", "create", "--user", "ann", "--account", "firm", "--label", "her phone", "--days", 30)
    token = made.stdout.strip()
    assert (made.exit_code, token[:3], len(token)) == (0, "ck_", 46)
    assert "not shown again" in made.stderr
    with engine.connect() as connection:
        row = connection.execute(
            sa.text("select t::text, token_hash, expires_at - created_at from callkeeper.api_tokens t")
        )
        text, stored, life = row.one()
    assert token not in text
    assert stored == hashlib.sha256(token.encode()).digest()
    assert life.total_seconds() == pytest.approx(30 * 86_400, abs=60)


def test_tokens_are_listed_and_revoked_by_number(cli: Cli) -> None:
    assert cli("token", "list").stdout == "no tokens\n"
    made = json.loads(cli("token", "create", "--operator", "--json").stdout)
    listed = cli("token", "list")
    assert "operator" in listed.stdout
    assert made["token"] not in listed.stdout
    assert cli("token", "revoke", made["id"]).stdout == f"token {made['id']} is revoked\n"
    assert cli("token", "revoke", made["id"]).stdout == f"token {made['id']} was revoked before\n"
    assert json.loads(cli("token", "list", "--json").stdout)[0]["revoked_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("create",), 2, "either --user or --operator"),
        (("create", "--user", "ann", "--operator"), 2, "either --user or --operator"),
        (("create", "--operator", "--account", "firm"), 2, "--account goes with --user"),
        (("create", "--user", ""), 2, "--user has 0 characters"),
        (("create", "--user", "x" * 257), 2, "--user has 257 characters"),
        (("create", "--user", "sk-abcdefghijklmnopqrstuvwx"), 2, "--user looks like a key"),
        (("create", "--user", "ann", "--label", "ck_" + "A" * 43), 2, "--label looks like a key"),
        (("revoke", "7"), 3, "there is no token 7"),
    ],
)
def test_what_cannot_be_is_said(cli: Cli, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = cli("token", *arguments)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
