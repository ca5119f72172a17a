"""`callkeeper budgets` and `callkeeper emergency-stop`: set, shown, changed, removed; what cannot be used is named."""

import json
from collections.abc import Callable
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_limits_are_set_shown_changed_and_removed(cli: Cli, on_database: str) -> None:
    assert cli("budgets").stdout == "no budgets: nothing is limited\n"
    assert cli("budgets", "set", "concurrency", "user:*", 3, "--by", "ann").exit_code == 0
    assert cli("budgets", "set", "rate", "account:kie/default", 20, "--per", "10s", "--by", "ann").exit_code == 0
    assert cli("budgets", "set", "concurrency", "user:*", 5, "--by", "bob").stdout == "concurrency user:*: at most 5\n"
    shown = json.loads(cli("budgets", "list", "--json").stdout)
    assert [(row["measure"], row["whom"], row["limit"], row["per_seconds"], row["changed_by"]) for row in shown] == [
        ("concurrency", "user:*", 5, None, "bob"), ("rate", "account:kie/default", 20, 10.0, "ann"),
    ]  # fmt: skip
    assert "account:kie/default" in cli("budgets").stdout
    assert cli("budgets", "remove", "concurrency", "user:*", "--by", "cid").stdout == "concurrency user:*: no limit\n"
    assert cli("budgets", "remove", "concurrency", "user:*").exit_code == 3
    changes = json.loads(cli("budgets", "changes", "--json").stdout)
    assert [(row["changed_by"], row["name"], row["was"], row["at_most"]) for row in changes] == [
        ("cid", "*", 5, None), ("bob", "*", 3, 5), ("ann", "kie/default", None, 20), ("ann", "*", None, 3),
    ]  # fmt: skip
    assert "cid" in cli("budgets", "changes").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("speed", "global", 1), "measure 'speed' is unknown: use one of concurrency"),
        (("spend", "app:shop", 1, "--per", "1d"), "scope 'app' does not fit spend: use one of user"),
        (("concurrency", "global:x", 1), "name 'x' does not fit scope global"),
        (("concurrency", "user", 1), "name '' does not fit scope user"),
        (("rate", "global", 1), "per None does not fit rate"),
        (("rate", "global", 1, "--per", "soon"), "--per 'soon' is not a length of time"),
        (("concurrency", "global", 1, "--per", "1h"), "per 1:00:00 does not fit concurrency"),
        (("weight", "user:ann", 0), "limit 0 of weight is out of range: 1 to 1000"),
        (("rate", "global", 1001, "--per", "1h"), "limit 1001 of rate is out of range: 0 to 1000"),
        (("rate", "global", 1, "--per", "999d"), "breaks the rule budgets_window_fits"),
        (("concurrency", "global", -1), "-1"),
        (("concurrency", "global", "many"), "Invalid value for 'limit'"),
    ],
)
def test_a_limit_that_cannot_be_used_is_named(cli: Cli, on_database: str, words: tuple[object, ...], said: str) -> None:
    refused = cli("budgets", "set", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr
    assert cli("budgets").stdout == "no budgets: nothing is limited\n"


def test_the_stop_is_set_shown_and_removed_with_a_reason(cli: Cli, on_database: str) -> None:
    assert "nothing stops priced calls" in cli("emergency-stop").stdout
    assert cli("emergency-stop", "show", "--json").stdout == "null\n"
    assert (
        cli("emergency-stop", "set", "12.50", "--by", "ann").stdout == "emergency stop: at most 12.50 USD in 1.0 days\n"
    )
    assert cli("emergency-stop", "set", 250, "--per", "12h", "--warn-at", 90, "--by", "ann").exit_code == 0
    shown = cli("emergency-stop")
    assert shown.exit_code == 0
    assert shown.stdout == "open: 0.00 USD spent and 0.00 USD set aside of 250.00 USD in 12.0 h; warns at 90 %\n"
    told = json.loads(cli("emergency-stop", "show", "--json").stdout)
    assert (told["amount_micro_usd"], told["per_seconds"], told["latched_at"]) == (250_000_000, 43_200.0, None)
    assert cli("emergency-stop", "release", "--why", "x").exit_code == 3, "it has not latched"
    assert cli("emergency-stop", "remove").exit_code == 2
    assert cli("emergency-stop", "remove", "--by", "bob", "--why", "not ours any more").exit_code == 0
    assert cli("emergency-stop", "remove", "--why", "x").exit_code == 3
    kept = json.loads(cli("emergency-stop", "history", "--json").stdout)
    assert [(row["what"], row["by"], row["why"]) for row in kept] == [
        ("removed", "bob", "not ours any more"), ("set", "ann", ""), ("set", "ann", ""),
    ]  # fmt: skip
    assert "not ours any more" in cli("emergency-stop", "history").stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("0",), "USD '0' is not an amount"),
        (("-5",), "-5"),
        (("NaN",), "USD 'NaN' is not an amount"),
        (("0.0000001",), "at most six decimals"),
        (("ten",), "USD 'ten' is not an amount"),
        (("1e30",), "is out of range"),
        (("1", "--per", "10m"), "per 0:10:00 is out of range: 1 hour to 31 days"),
        (("1", "--per", "soon"), "--per 'soon' is not a length of time"),
        (("1", "--warn-at", "0"), "warn-at 0 is out of range"),
    ],
)
def test_a_stop_that_cannot_be_used_is_named(cli: Cli, on_database: str, words: tuple[str, ...], said: str) -> None:
    refused = cli("emergency-stop", "set", *words)
    assert refused.exit_code == 2
    assert said in refused.stderr
