"""The demo's last word: what was asked for, what was bought, what was charged, and whether everything holds."""

import json
from collections import Counter
from dataclasses import dataclass

import sqlalchemy as sa

from actors.cli.output import say, say_table
from actors.demo import shop
from actors.demo.kills import Kills
from actors.demo.snapshot import Snapshot
from actors.demo.stage import Stage
from store import ledger, reads
from store.ledger import Balance
from store.states import TERMINAL, State

# Why a code is the right end of a call, for those who see it for the first time.
_WHY = {
    "reconcile_no_recovery": (
        "reconcile_no_recovery: a synchronous call's answer was lost with its worker, or a create was cut off before"
        " the provider took it; sending again could bill twice, so it fails and its credits go back"
    ),
    "content_policy": "content_policy: the provider ran it and refused the result, so its credits go back",
}
_FOUND = sa.text("select count(*) from callkeeper.call_receipts where source = 'find'")


@dataclass(frozen=True, slots=True)
class Report:
    """Numbers only; `problems` says in words what should not be."""

    calls: int
    creates: int
    billed_twice: int
    completed: int
    ended_without: dict[str, int]
    found: int
    before: Balance
    after: Balance
    violations: int
    problems: list[str]


def take(stage: Stage, snapshot: Snapshot, kills: Kills, before: Balance, leftovers: int) -> Report:
    """Read everything back: the database's side, and the provider's own bill."""
    bill = stage.sandbox.bill()
    twice = sum(count > 1 for count in Counter(json.dumps(entry["input"], sort_keys=True) for entry in bill).values())
    violations = stage.db.once(reads.violations)
    after = stage.db.once(ledger.balance, shop.ACCOUNT) or Balance(0, 0, 0, 0)
    with stage.engine.connect() as connection:
        found = int(connection.execute(_FOUND).scalar_one())
    completed = snapshot.count(State.COMPLETED)
    problems = [
        words
        for wrong, words in (
            (len(snapshot.orders) != shop.ORDERS, f"{len(snapshot.orders)} orders instead of {shop.ORDERS}"),
            (snapshot.open > 0, f"{snapshot.open} calls have not ended"),
            (twice > 0, f"{twice} calls were billed twice"),
            (not completed <= len(bill) <= shop.ORDERS, f"{len(bill)} upstream creates for {completed} results"),
            (leftovers > 0, f"the rolled-back order left {leftovers} things behind"),
            (after.granted != after.available + after.reserved + after.committed, "credits are not conserved"),
            (after.reserved > 0, f"{after.reserved} credits are still reserved"),
            (not kills.done, "a worker was not killed where it should have been"),
            *((True, f"invariant {one['invariant']}: {one['what']}") for one in violations),
        )
        if wrong
    ]
    ended = Counter(o.error_code or "?" for o in snapshot.orders if o.status in TERMINAL and o.error_code)
    return Report(
        calls=len(snapshot.orders),
        creates=len(bill),
        billed_twice=twice,
        completed=completed,
        ended_without=dict(ended),
        found=found,
        before=before,
        after=after,
        violations=len(violations),
        problems=problems,
    )


def show(report: Report, kills: Kills, seconds: float) -> None:
    codes = ", ".join(f"{count} {code}" for code, count in sorted(report.ended_without.items()))
    killed = f"mid-create ({kills.creates} creates, {kills.sync_calls} synchronous calls in flight)"
    rows = [
        (
            "calls",
            f"{report.calls} ({shop.POSTERS} posters, {shop.CAPTIONS} captions), each with its order",
        ),
        ("rolled back", "1 order: no job, no credits and no message were left"),
        ("workers killed", f"2: {killed}, mid-poll ({kills.polls} polls in flight)"),
        ("upstream creates", f"{report.creates}, by the provider's own bill; billed twice: {report.billed_twice}"),
        ("found again", f"{report.found} calls whose answer was lost"),
        ("completed", str(report.completed)),
        ("failed and refunded", f"{sum(report.ended_without.values())}" + (f": {codes}" if codes else "")),
        ("credits before", balance_words(report.before)),
        ("credits after", balance_words(report.after)),
        ("seconds", f"{seconds:.1f}"),
    ]
    say("")
    say_table(("", "result"), rows)
    for code in sorted(report.ended_without):
        say(_WHY.get(code, f"{code}: see docs/failure-codes.md"))
    say(f"audit: {report.violations} violations")
    for problem in report.problems:
        say(f"not as it should be: {problem}")


def balance_words(balance: Balance) -> str:
    """A balance as a sum."""
    return (
        f"{balance.granted} granted = {balance.available} available"
        f" + {balance.reserved} reserved + {balance.committed} committed"
    )
