"""Short ways to begin priced calls, to book them, and to see what they come to."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from store import call_ledger, emergency_stop
from store.call_ledger import Spend
from store.emergency_stop import Stop
from store.errors import SpendingRefused
from store.models import CallState, Lease
from tests.store.steps import FAR, Steps

KIND = "anthropic-sync"
DAY = timedelta(days=1)


def spend(reserved: int, **changes: Any) -> Spend:
    plain: dict[str, Any] = {
        "account": "default",
        "provider_model": "claude-test",
        "price": {"input": 3_000_000, "output": 15_000_000},
        "reserved": reserved,
        "may_run": timedelta(minutes=1),
        "profile": "small",
    }
    return Spend(**{**plain, **changes})


class Money(Steps):
    """Steps, and what priced calls add to them."""

    first = CallState(KIND, None, None, 1, None, None)

    def held(self, **changes: Any) -> Lease:
        return self.running(**{"mode": "sync", "provider_kind": KIND, "actor": "run_sync_call", **changes})

    def ask(self, lease: Lease, what: Spend, *, next_call: bool = False) -> CallState | SpendingRefused:
        """As a worker does."""
        asked: dict[str, Any] = {"kind": KIND, "handle": {}, "quiet": FAR, "spend": what, "next_call": next_call}
        begun = self.db.once(call_ledger.begin_unlimited, lease, **asked)
        return begun or self.db.transact(call_ledger.begin_within, lease, **asked)

    def begin(self, lease: Lease, what: Spend, *, next_call: bool = False) -> CallState:
        begun = self.ask(lease, what, next_call=next_call)
        assert isinstance(begun, CallState), begun
        return begun

    def finish(self, lease: Lease, state: CallState, **booked: Any) -> bool:
        booked = {"status": "ok", **booked}
        return self.db.once(call_ledger.finish, lease.job_id, state.generation, **booked)

    def row_of(self, lease: Lease) -> Mapping[str, Any]:
        return self.one("select * from callkeeper.call_ledger where job_id = :id", id=lease.job_id)

    def age(self, *leases: Lease) -> None:
        """Their calls can run no longer."""
        self.by_hand(
            "update callkeeper.call_ledger set started_at = started_at - interval '1 h', until = now()"
            " where job_id = any(:ids)",
            ids=[lease.job_id for lease in leases],
        )

    def spent(self) -> int:
        return int(self.one("select coalesce(sum(cost), 0) as n from callkeeper.spending_hours")["n"])

    def stop(self, amount: int, *, per: timedelta = DAY, warn_at: int = 80) -> None:
        self.db.once(emergency_stop.set_stop, amount=amount, per=per, warn_at=warn_at, by="test")

    def seen(self) -> Stop:
        stop = self.db.once(emergency_stop.read)
        assert stop is not None
        return stop

    def alerts(self) -> dict[str, int]:
        rows = self.all("select subject, times from callkeeper.alerts where resolved_at is null")
        return {row["subject"]: row["times"] for row in rows}
