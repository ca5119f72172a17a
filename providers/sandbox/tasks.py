"""What fakes have accepted: its state is a function of the clock, so nothing has to run for it to go on."""

import time
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

IMAGE, VIDEO = "png", "mp4"


class Clock:
    """The sandbox's time: the machine's, plus what a test has advanced it by. In seconds since 1970; never
    goes back.
    """

    def __init__(self) -> None:
        self._offset = 0.0
        self._last = 0.0

    def now(self) -> float:
        # To the microsecond, as it is shown: a filter by a shown time must find the task it was shown for.
        self._last = max(self._last, round(time.time() + self._offset, 6))
        return self._last

    def advance(self, seconds: float) -> None:
        self._offset += seconds

    def reset(self) -> None:
        """Back to the machine's time; only when no task is left that knows a later one."""
        self._offset = self._last = 0.0


@dataclass(slots=True)
class Task:
    """One accepted piece of work. `detail` is its fate as the script decided it when it was created."""

    id: str
    account: str
    created_at: float
    input: dict[str, Any]
    input_text: str
    webhook: str | None
    detail: dict[str, Any]
    cancelled_at: float | None = None
    finished_at: float | None = None
    kind: str = "replicate"
    told: bool = field(default=False)  # whether the terminal webhook went out

    @property
    def ends_at(self) -> float:
        """When it ends or ended, by the sandbox's clock."""
        if self.cancelled_at is not None:
            return self.cancelled_at
        if self.finished_at is not None:
            return self.finished_at
        return self.created_at + float(self.detail["run_seconds"])

    def status(self, now: float) -> str:
        if self.cancelled_at is not None:
            return "canceled"
        if now >= self.ends_at:
            return str(self.detail["end"])
        return "starting" if now < self.created_at + 0.1 * float(self.detail["run_seconds"]) else "processing"

    def over(self, now: float) -> bool:
        return self.cancelled_at is not None or now >= self.ends_at

    def removed(self, now: float) -> bool:
        """Whether input, output and files are gone, as Replicate does an hour after the end."""
        life = self.detail["result_life"]
        return life is not None and self.over(now) and now >= self.ends_at + float(life)

    def show(self, now: float, base: str) -> dict[str, Any]:
        """The prediction or training, as create, get, list and the webhook send it."""
        status, removed, over = self.status(now), self.removed(now), self.over(now)
        trains = "destination" in self.detail
        here = f"{base}/v1/{'trainings' if trains else 'predictions'}/{self.id}"
        ran = max(0.0, min(now, self.ends_at) - self.created_at)
        own: dict[str, Any] = {"deployment": self.detail.get("deployment"), "data_removed": removed}
        return {
            "id": self.id,
            "model": self.detail["model"],
            "version": self.detail["version"],
            **({"destination": self.detail["destination"]} if trains else own),
            "input": {} if removed else self.input,
            "logs": None if removed else self._logs(status, ran),
            "output": self.detail["output"] if status == "succeeded" and not removed else None,
            "error": self.detail["error"] if status == "failed" else None,
            "source": "api",
            "status": status,
            "created_at": stamp(self.created_at),
            "started_at": None if status in ("starting", "aborted") else stamp(self.created_at),
            "completed_at": stamp(self.ends_at) if over else None,
            "metrics": {"predict_time": round(ran, 3), "total_time": round(ran, 3)} if over else {},
            "urls": {
                "get": here,
                "cancel": f"{here}/cancel",
                "web": f"{base}/p/{self.id}",
                **({"stream": f"{base}/v1/stream/{self.id}"} if is_text(self.detail["output"]) else {}),
            },
        }

    def _logs(self, status: str, ran: float) -> str:
        if status != "processing":
            return ""
        done = min(99, int(100 * ran / max(float(self.detail["run_seconds"]), 0.001)))
        return f" {done}%|{'#' * (done // 10):<10}| {done}/100"


def is_text(output: Any) -> bool:
    """Whether an output is pieces of text, which alone are streamed."""
    return isinstance(output, list) and all(isinstance(one, str) and "://" not in one[:8] for one in output)


class Tasks:
    """All tasks by id, and each account's in the order of their creation."""

    def __init__(self) -> None:
        self.by_id: dict[str, Task] = {}
        self._by_account: dict[tuple[str, str], list[Task]] = {}

    def add(self, task: Task) -> None:
        self.by_id[task.id] = task
        self._by_account.setdefault((task.kind, task.account), []).append(task)

    def get(self, task_id: str, account: str, *, kind: str) -> Task | None:
        task = self.by_id.get(task_id)
        return task if task is not None and (task.kind, task.account) == (kind, account) else None

    def of(self, account: str, *, kind: str) -> list[Task]:
        """All of an account's tasks at one provider, oldest first."""
        return self._by_account.get((kind, account), [])

    def most_at_once(self) -> dict[str, int]:
        """How many tasks ran at the same time at the most, by provider."""
        most: dict[str, int] = {}
        for kind in {task.kind for task in self.by_id.values()}:
            tasks = [task for task in self.by_id.values() if task.kind == kind]
            changes = sorted([(task.created_at, 1) for task in tasks] + [(task.ends_at, -1) for task in tasks])
            running = 0
            for _, change in changes:
                running += change
                most[kind] = max(most.get(kind, 0), running)
        return most

    def clear(self) -> None:
        self.by_id.clear()
        self._by_account.clear()

    def page(
        self,
        account: str,
        *,
        kind: str,
        after: float | None,
        before: float | None,
        upto: int | None,
        size: int,
    ) -> tuple[list[Task], int | None]:
        """Newest first: at most `size` tasks created from `after` to `before`, and where the next page
        starts, if any.
        """
        tasks = self.of(account, kind=kind)
        low = 0 if after is None else bisect_left(tasks, after, key=lambda t: t.created_at)
        high = len(tasks) if before is None else bisect_right(tasks, before, key=lambda t: t.created_at)
        high = high if upto is None else min(high, upto)
        start = max(low, high - size)
        return tasks[start:high][::-1], start if start > low else None


def stamp(seconds: float) -> str:
    """RFC 3339, in UTC, to the microsecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
