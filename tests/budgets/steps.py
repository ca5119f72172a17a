"""Short ways to set limits, and to have the next in line started under them."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from store import admission, budgets, line, parking
from store.admission import Outcome, Parked
from store.models import ClaimedJob
from tests.store.steps import TERM, Steps

ACTORS = ("start_call", "run_sync_call", "run_handler")
QUEUES = ("calls", "large")


class Starts(Steps):
    """Steps, and what budgets and turns add to them."""

    def budget(
        self, measure: str, scope: str, name: str = "", *, at_most: int, per: timedelta | None = None, by: str = "test"
    ) -> None:
        self.db.once(budgets.set_budget, measure, scope, name, at_most=at_most, per=per, by=by)

    def unlimited(self, message: UUID, *, actors: Sequence[str] = ACTORS) -> ClaimedJob | None:
        return self.db.once(line.claim_next, message, actors=actors, owner="worker", term=TERM)

    def asked(self, message: UUID, **accounts: str) -> Outcome:
        return self.db.transact(
            admission.claim_within, message, actors=ACTORS, owner="worker", term=TERM, accounts=accounts
        )

    def start(self, message: UUID) -> ClaimedJob | None:
        """As a worker does: what is full is parked until something starts or nobody is left."""
        while isinstance(found := self.asked(message), Parked):
            pass
        assert found is None or isinstance(found, ClaimedJob), found
        return found

    def release(self) -> int:
        keys = self.db.once(parking.parked_keys, queues=QUEUES)
        return self.db.once(parking.release, queues=QUEUES, accounts={}, keys=keys)

    def parked(self) -> set[UUID]:
        return {row["id"] for row in self.all("select id from callkeeper.jobs where parked_on is not null")}

    def slots(self) -> int:
        return self.count("callkeeper.slots")

    def order(self, message: UUID, how_many: int) -> list[Any]:
        """Who is started next, by user."""
        started = [self.unlimited(message) for _ in range(how_many)]
        return [job.user_id if job else None for job in started]
