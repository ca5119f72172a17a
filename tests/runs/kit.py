"""Short ways to a run with its jobs at chosen points, and to everything that is stored of it."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from store import runs, settle
from store.models import ClaimedJob, Lease, NewJob, NewRun, Place, Settlement, StepWarning, SubmittedRun
from store.states import State
from tests.store.steps import TERM, Steps, new_job

NOBODY = UUID(int=0)


def step(name: str, *, needs: Sequence[str] = (), optional: bool = False, **changes: Any) -> NewJob:
    place = Place(NOBODY, name, name.split(":", maxsplit=1)[0], f"{name}:f1", tuple(needs), optional)
    return new_job(**{"actor": "run_handler", "mode": "local", "place": place, "retry_safe": True, **changes})


def new_run(steps: Sequence[NewJob], **changes: Any) -> NewRun:
    last = steps[-1].place
    assert last is not None
    plain: dict[str, Any] = {
        "run_type": "tour",
        "fingerprint": "p1",
        "result_step": last.step,
        "node_limit": timedelta(minutes=90),
        "run_limit": timedelta(minutes=120),
    }
    return NewRun(**{**plain, **changes})


class Run:
    """One run and its jobs by step."""

    def __init__(self, steps: Steps, submitted: SubmittedRun) -> None:
        self._steps = steps
        self.db = steps.db
        self.id = submitted.run_id
        self.jobs = dict(submitted.jobs)

    def claim(self, name: str) -> ClaimedJob:
        self.jobs = self.db.once(runs.jobs_of, self.id)
        return self._steps.claim(self.jobs[name])

    def complete(self, name: str, lease: Lease | None = None, **outcome: Any) -> None:
        held = lease or self.claim(name).lease
        result = Settlement(State.COMPLETED, result={"step": name}, **outcome)
        self.db.transact(settle.complete, held, result)

    def fail(self, name: str, code: str = "task_failed", lease: Lease | None = None) -> None:
        held = lease or self.claim(name).lease
        self.db.transact(settle.end_held, held, Settlement(State.FAILED, error_code=code))

    def ready(self) -> set[str]:
        """The steps that a worker could claim now."""
        rows = self._steps.all(
            "select step from callkeeper.jobs where run_id = :id and status = 'queued' and not blocked"
            " and available_at <= now()",
            id=self.id,
        )
        return {row["step"] for row in rows}

    def read(self) -> Mapping[str, Any]:
        found = self.db.once(runs.read, self.id)
        assert found is not None
        return found

    @property
    def status(self) -> str:
        return str(self.read()["status"])

    def states(self) -> dict[str, str]:
        return {one["step"]: one["status"] for one in self.read()["steps"]}

    def events(self) -> list[str]:
        return [one["kind"] for one in self.db.once(runs.events, self.id)]

    def mails(self) -> list[Mapping[str, Any]]:
        return self._steps.all("select * from callkeeper.notices where run_id = :id", id=self.id)


def submit(steps: Steps, plan: Sequence[NewJob], **changes: Any) -> Run:
    return Run(steps, steps.db.transact(runs.create, new_run(plan, **changes), plan))


def diamond(**changes: Any) -> list[NewJob]:
    """scene:1, scene:2 and an optional avatar, then join, then final."""
    return [
        step("scene:1", **changes),
        step("scene:2", **changes),
        step("avatar", optional=True, **changes),
        step("join", needs=["scene:1", "scene:2"], **changes),
        step("final", needs=["join", "avatar"], **changes),
    ]


__all__ = ["TERM", "Run", "StepWarning", "diamond", "new_run", "step", "submit", "uuid4"]
