"""A step of a run as the app names it, and the checks that need nothing but the plan itself."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from actors import job_types
from store.errors import PlanRefused
from store.models import NewJob, Place

NODE_DEADLINE = timedelta(minutes=90)
RUN_DEADLINE = timedelta(minutes=120)
MOST_STEPS = 500

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}(:[A-Za-z0-9_.-]{1,60})?")
_NO_RUN = UUID(int=0)


@dataclass(frozen=True, slots=True)
class Step:
    """One job of a run. `name` is "stage" or "stage:what", `depends_on` names other steps of the run.

    When an `optional` step fails, its dependants run all the same and the run is degraded.
    """

    name: str
    job_type: str
    request: BaseModel | Mapping[str, Any]
    depends_on: Sequence[str] = ()
    optional: bool = False


def check_limits(node: timedelta, run: timedelta) -> None:
    """Raises ValueError when a step could be allowed longer than its run."""
    if not timedelta(0) < node <= run:
        raise ValueError(f"node_deadline {node} must be more than nothing and at most the run's deadline {run}")


check_limits(NODE_DEADLINE, RUN_DEADLINE)


def check(steps: Sequence[Step], *, known: Iterable[str] = ()) -> None:
    """Raises PlanRefused naming the first step that cannot work. `known`: steps that the run has already."""
    if not steps or len(steps) > MOST_STEPS:
        raise PlanRefused("(all)", f"{len(steps)} steps: send 1 to {MOST_STEPS}")
    names = [step.name for step in steps]
    there = {*names, *known}
    for step in steps:
        if not _NAME.fullmatch(step.name):
            raise PlanRefused(
                step.name[:80], "names are lower case, like final-video, or scene-video:2 for one of many"
            )
        if names.count(step.name) > 1:
            raise PlanRefused(step.name, "two steps have this name: give each its own, like scene-video:1")
        missing = [name for name in step.depends_on if name not in there]
        if missing:
            raise PlanRefused(step.name, f"depends_on names {missing[0]!r}, which is no step of this run")
    try:
        TopologicalSorter({step.name: set(step.depends_on) for step in steps}).prepare()
    except CycleError as error:
        circle = " -> ".join(error.args[1])
        raise PlanRefused(error.args[1][0], f"its dependencies go in a circle: {circle}") from None


def prepare(
    step: Step,
    *,
    user_id: str | None,
    account_id: str | None,
    node_limit: timedelta,
    run_id: UUID = _NO_RUN,
    watermark: bool = False,
) -> NewJob:
    """The step as a job. Raises what a submit raises for its request, and PlanRefused for one that may run longer."""
    known = job_types.REGISTRY.get(step.job_type)
    longest = timedelta(0) if known is None else job_types.longest_run(known)
    if longest > node_limit:
        raise PlanRefused(
            step.name,
            f"{step.job_type} may run {longest}, a step of this run {node_limit}, so paid work would be given up:"
            " give the run a longer node_deadline, or the job type may_abandon=True",
        )
    job = job_types.prepare(
        step.job_type,
        step.request,
        user_id=user_id,
        account_id=account_id,
        idempotency_key=None,
        delay=timedelta(0),
        watermark=watermark,
    )
    place = Place(
        run_id=run_id,
        step=step.name,
        stage=step.name.split(":", 1)[0],
        operation_key=f"{step.name}:{job.fingerprint[:16]}",
        depends_on=tuple(dict.fromkeys(step.depends_on)),
        optional=step.optional,
    )
    return replace(job, place=place, run_limit=node_limit, queue_limit=node_limit)
