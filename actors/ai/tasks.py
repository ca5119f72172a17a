"""What a submit of an AI task stores: the task, and the model it is pinned to. Apps may add priced types."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from actors.ai import prompts
from actors.ai.profiles import Pinned, pin, unchanged
from actors.ai.requests import AiTask, Task
from actors.asked import validated
from actors.job_types import JobType, Plan, Price, register
from providers.registry import get_kind

ACTOR = "run_ai_task"
ATTEMPT_DEADLINE = timedelta(seconds=120)
ATTEMPTS = 3
PAUSES = (1.0, 2.0)  # seconds before the second attempt and the third


class StoredTask(BaseModel):
    """As it lies in the job's row: nothing that is configured later changes what it asks, or whom."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Task = Field(discriminator="task")
    pinned: Pinned


def plan(asked: AiTask) -> Plan:
    """Pin the model and see that the provider would take the question. Raises InvalidRequest."""
    pinned = pin(asked.root.model)
    question = prompts.first(asked.root, unchanged(pinned))
    validated(f"profile {pinned.profile} ({pinned.kind})", get_kind(pinned.kind).provider.request_model, question)
    return Plan(ACTOR, pinned.kind, StoredTask(task=asked.root, pinned=pinned).model_dump(mode="json"))


def register_ai_task(
    name: str,
    *,
    price: Price = 0,
    cost: Callable[[Mapping[str, Any]], int] | None = None,
    attempt_deadline: timedelta = ATTEMPT_DEADLINE,
    queue_deadline: timedelta = timedelta(hours=6),
    deadline: timedelta = timedelta(hours=1),
    retry_safe: bool = True,
    plain: bool = False,
) -> None:
    """A job type of your own over the same four tasks. `price` in credits, `cost` as in `job_type`; raises ValueError.

    `cost` gets the job's usage: input_tokens, output_tokens and cost_micro_usd. `retry_safe`: a question changes
    nothing in the world, so one whose answer was lost may be asked again, for the price of a second answer; False where
    that is too much. `plain`: as `job_types.JobType` has it.
    """
    register(
        JobType(
            name=name,
            request=AiTask,
            kind=None,
            function=None,
            price=price,
            cost=cost,
            retry_safe=retry_safe,
            max_attempts=ATTEMPTS,
            queue_deadline=queue_deadline,
            deadline=deadline,
            queue="calls",
            may_abandon=True,
            attempt_deadline=attempt_deadline,
            plan=plan,
            pauses=PAUSES,
            plain=plain,
        )
    )


register_ai_task("ai-task", plain=True)
