"""What the demo shows while it runs: each order's state, and what happened to it that is worth a line."""

from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from store.states import OPEN, State

_ORDERS = sa.text(
    """
    select o.number, o.item, j.status, j.progress, j.error_code
    from shop.orders o join callkeeper.jobs j on j.id = o.job_id order by o.number
    """
)
_EVENTS = sa.text(
    """
    select o.number, o.item, e.job_id, e.seq, e.kind, e.data, j.price, j.mode
    from callkeeper.job_events e
    join callkeeper.jobs j on j.id = e.job_id
    join shop.orders o on o.job_id = e.job_id
    where e.kind in (
      'recovered', 'requeued', 'call_ambiguous', 'call_adopted', 'result_returned', 'failed', 'timed_out'
    )
    order by e.created_at
    """
)


@dataclass(frozen=True, slots=True)
class OrderState:
    number: int
    item: str
    status: State
    progress: float | None
    error_code: str | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    orders: tuple[OrderState, ...]
    news: tuple[str, ...]

    @property
    def open(self) -> int:
        return sum(order.status in OPEN for order in self.orders)

    def count(self, status: State, item: str | None = None) -> int:
        return sum(order.status is status and item in (None, order.item) for order in self.orders)

    def counts(self) -> dict[State, int]:
        """States that any order is in."""
        return {status: count for status in State if (count := self.count(status))}


@dataclass
class Watcher:
    """Looks at the database; tells each event once."""

    engine: sa.Engine
    _told: set[tuple[Any, int]] = field(default_factory=set)

    def look(self) -> Snapshot:
        with self.engine.connect() as connection:
            orders = tuple(
                OrderState(row.number, row.item, State(row.status), row.progress, row.error_code)
                for row in connection.execute(_ORDERS)
            )
            events = connection.execute(_EVENTS).all()
        fresh = [event for event in events if (event.job_id, event.seq) not in self._told]
        self._told.update((event.job_id, event.seq) for event in fresh)
        return Snapshot(orders, tuple(f"order {event.number:>2} {event.item}: {_words(event)}" for event in fresh))


def _words(event: Any) -> str:
    why, code = event.data.get("why"), event.data.get("error_code")
    told = {
        "requeued": f"not accepted ({why}): once more later",
        "call_ambiguous": f"no answer ({why}): to be found, never sent again",
        "call_adopted": f"found at the provider, task {event.data.get('task_id')}",
        "result_returned": f"half a file ({why}): to be fetched again",
        # Recovery queues a job again, and says why, only where nothing had been sent.
        "recovered": "its worker died before it sent anything: queued again"
        if why
        else "its worker died; the call goes on, never sent again",
    }
    return told.get(event.kind) or f"{event.kind} ({code}), {event.price} credits given back"
