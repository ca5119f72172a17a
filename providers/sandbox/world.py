"""Everything one sandbox process holds: clock, script, bill, tasks, courier and counters."""

import asyncio
import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from starlette.requests import Request

from providers.sandbox.bill import Bill, Entry
from providers.sandbox.courier import Courier
from providers.sandbox.faults import Answer, Silence, canned
from providers.sandbox.script import Actions, Director, Route, Script
from providers.sandbox.tasks import Clock, Task, Tasks

REVOKED = "revoked"  # the one key that all fakes refuse


@dataclass(slots=True)
class World:
    bill: Bill
    director: Director
    courier: Courier
    clock: Clock
    tasks: Tasks = field(default_factory=Tasks)
    requests: Counter[str] = field(default_factory=Counter)
    in_flight: set[tuple[str, str]] = field(default_factory=set)  # account and idempotency key of unanswered creates

    @classmethod
    def open(cls, bill_path: Path, script: Script, webhook_secret: str) -> "World":
        """A world that goes on where the bill ends: tasks in it are known again."""
        clock, bill = Clock(), Bill(bill_path)
        clock.advance(bill.advance)
        world = cls(bill, Director(script), Courier(clock, webhook_secret, base_of_task), clock)
        for entry in filter(is_task, bill.entries()):
            task = task_of(entry)
            task.told = task.over(clock.now())
            world.tasks.add(task)
            world.courier.plan(task)
        return world

    async def cue(self, route: Route, text: str = "") -> Actions:
        """Count a request, find its actions, and wait out their latency."""
        self.requests[route] += 1
        actions = self.director.cue(route, text)
        if actions.latency:
            await asyncio.sleep(self.director.seconds(actions.latency))
        return actions

    def accept(self, entry: Entry) -> None:
        """Write it on the bill. From here on it is money."""
        self.bill.add(entry)

    def end(self, task: Task, *, cancelled: bool) -> None:
        """End a task now, if it has not ended."""
        now = self.clock.now()
        if task.over(now):
            return
        if cancelled:
            task.cancelled_at = now
        else:
            task.finished_at = now
        self.bill.ended(task.id, cancelled_at=task.cancelled_at, finished_at=task.finished_at)
        self.courier.plan(task)

    def advance(self, seconds: float) -> None:
        """Move the clock forward, for good: a restart remembers it."""
        self.clock.advance(seconds)
        self.bill.note_advance(seconds)
        self.courier.poke()

    def reset(self) -> None:
        """Forget all tasks, the bill, the counters, the script and what the clock was advanced."""
        self.bill.clear()
        self.tasks.clear()
        self.requests.clear()
        self.courier.clear()
        self.director = Director(Script())
        self.clock.reset()


def world_of(request: Request) -> World:
    return cast(World, request.app.state.world)


def refusal(actions: Actions) -> Answer | None:
    """The scripted answer to a request that is not accepted, or None."""
    if actions.refuse is not None:
        return Silence(actions.refuse)
    return canned(actions.reply) if actions.reply is not None else None


def account_of(key: str) -> str:
    """A name for whoever holds this key, so that the key itself is kept nowhere."""
    return hashlib.sha256(key.encode()).hexdigest()[:12]


def canonical(value: Any) -> str:
    """JSON with sorted keys: what rules search and what the bill shows."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def base_of(request: Request) -> str:
    """The server's address as the caller knows it."""
    return f"http://{request.headers.get('host', 'localhost')}"


def base_of_task(task: Task) -> str:
    return str(task.detail["base"])


def is_task(entry: Entry) -> bool:
    """Whether what was accepted goes on after its response."""
    return "run_seconds" in entry.detail


def task_of(entry: Entry) -> Task:
    return Task(
        id=entry.task_id,
        account=entry.account + entry.detail.get("shelf", ""),
        created_at=entry.created_at,
        input=json.loads(entry.input),
        input_text=entry.input,
        webhook=entry.webhook,
        detail=entry.detail,
        cancelled_at=entry.cancelled_at,
        finished_at=entry.finished_at,
        kind=entry.kind,
    )
