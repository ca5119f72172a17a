"""What a database of jobs should look like, in plain Python: holders, calls, a ledger with two pools, outboxes.

Time has two readings only: passed or far away. The machine moves it by hand, so the model never measures.
"""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from store.models import CallState, NewJob
from store.states import OPEN, State


@dataclass
class Account:
    granted: list[int] = field(default_factory=lambda: [0, 0])
    balance: list[int] = field(default_factory=lambda: [0, 0])
    reserved: list[int] = field(default_factory=lambda: [0, 0])
    committed: list[int] = field(default_factory=lambda: [0, 0])

    def grant(self, *amounts: int) -> None:
        for pool, amount in enumerate(amounts):
            self.granted[pool] += amount
            self.balance[pool] += amount

    def reserve(self, price: int) -> tuple[int, int]:
        """The split of a reservation: subscription first."""
        first = min(self.balance[0], price)
        split = (first, price - first)
        for pool, amount in enumerate(split):
            self.balance[pool] -= amount
            self.reserved[pool] += amount
        return split

    def settle(self, split: tuple[int, int], charged: int) -> tuple[int, int]:
        """What each pool pays. The surplus goes back to the pool that was drawn last."""
        first = min(charged, split[0])
        paid = (first, charged - first)
        for pool in (0, 1):
            self.reserved[pool] -= split[pool]
            self.committed[pool] += paid[pool]
            self.balance[pool] += split[pool] - paid[pool]
        return paid


@dataclass
class Call:
    """One generation. `task` is what the provider knows it by, whether or not we have learned it yet."""

    state: CallState
    task: str
    over: bool = False  # known to have ended, or never sent
    sent: bool = True


@dataclass
class Job:
    id: UUID
    new: NewJob
    account: Account | None
    split: tuple[int, int]
    status: State = State.QUEUED
    attempt: int = 1
    epoch: int = 0
    token: UUID | None = None
    lapsed: bool = False
    started: bool = False
    available: bool = True
    queue_late: bool = False
    late: bool = False
    check_due: bool = False
    call: Call | None = None
    generation: int = 0
    task: str | None = None
    known: bool = False
    quiet_over: bool = False
    poll: UUID | None = None
    due: bool = False
    misses: int = 0
    import_failures: int = 0
    progress: float | None = None
    stopping: bool = False
    charged: tuple[int, int] = (0, 0)
    events: list[str] = field(default_factory=lambda: ["queued"])
    messages: int = 1
    assets: int = 0
    receipts: set[tuple[str, str]] = field(default_factory=set)
    used_its_one_repeat: bool = False

    @property
    def open(self) -> bool:
        return self.status in OPEN

    @property
    def at_rest(self) -> bool:
        return self.status is State.QUEUED or (self.status is State.WAITING and self.task is not None)

    @property
    def credits(self) -> str | None:
        if self.account is None:
            return None
        if self.open:
            return "reserved"
        return "committed" if self.status is State.COMPLETED else "refunded"

    def claim(self, token: UUID, *, lapsed: bool) -> None:
        self.status, self.token, self.lapsed = State.RUNNING, token, lapsed
        self.epoch += 1

    def start(self, token: UUID, *, lapsed: bool) -> None:
        self.claim(token, lapsed=lapsed)
        if not self.started:
            self.late = False
        self.started, self.check_due = True, self.late
        self.events.append("started")

    def wait(self, event: str, *, due: bool) -> None:
        self.status, self.token, self.lapsed = State.WAITING, None, False
        self.due, self.check_due = due, self.late
        self.events.append(event)

    def forget_call(self) -> None:
        if self.call is not None:
            self.call.over = True
        self.call = self.task = self.progress = None
        self.known, self.misses, self.import_failures, self.quiet_over = False, 0, 0, False

    @property
    def safe(self) -> bool:
        """May run again after an unknown outcome: the app's own handler as often as it has attempts, a paid call once."""
        return self.new.retry_safe and not self.used_its_one_repeat

    def requeue(self, event: str, *, available: bool, counted: bool, unknown: bool = False) -> None:
        self.status, self.token, self.lapsed = State.QUEUED, None, False
        self.available, self.queue_late, self.check_due = available, self.late, self.late
        self.attempt += counted
        self.used_its_one_repeat |= unknown and self.new.mode != "local"
        self.messages += 1
        self.events.append(event)
        self.forget_call()

    def go_on(self, progress: float | None) -> None:
        """Progress never goes back, and what is no share is not believed."""
        if progress is not None and 0 <= progress <= 1:
            self.progress = max(self.progress or 0.0, progress)

    def learn(self, task: str) -> None:
        assert self.call is not None
        self.task = task
        self.receipts.add((self.kind, task))

    @property
    def kind(self) -> str:
        assert self.call is not None
        assert self.call.state.kind is not None
        return self.call.state.kind

    def end(self, status: State, *, cost: int | None = None, assets: int = 0) -> None:
        self.status, self.token, self.poll = status, None, None
        self.lapsed = self.due = self.check_due = self.stopping = False
        self.events.append(str(status))
        self.assets = assets
        if status is State.COMPLETED:
            self.progress = 1.0
        if self.account is not None:
            reserved = sum(self.split)
            wanted = reserved if cost is None else min(cost, reserved)
            self.charged = self.account.settle(self.split, wanted if status is State.COMPLETED else 0)

    def seen(self) -> dict[str, Any]:
        """The same facts as the machine's query selects."""
        return {
            "status": str(self.status),
            "attempt": self.attempt,
            "epoch": self.epoch,
            "lease_token": self.token,
            "lapsed": self.status is State.RUNNING and self.lapsed,
            "poll_token": self.poll,
            "due": self.status is State.WAITING and self.due,
            "available": self.status is State.QUEUED and self.available,
            "check_due": self.check_due,
            "late": self.open and self.late,
            "called": self.call is not None,
            "call_key": None if self.call is None else self.call.state.key,
            "generation": self.generation,
            "task": self.task,
            "known": self.known,
            "misses": self.misses,
            "import_failures": self.import_failures,
            "progress": self.progress,
            "stopping": int(self.stopping),
            "credits": self.credits,
            "charged": self.charged,
            "events": self.events,
            "messages": self.messages,
            "assets": self.assets,
            "receipts": self.receipts,
        }


@dataclass
class Owed:
    """A row of an outbox. `tokens` counts nothing: only the newest one may finish it."""

    due: bool = True
    token: UUID | None = None
    finished: str | None = None
    attempts: int = 0
