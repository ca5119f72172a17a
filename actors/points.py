"""Named instants in the life of a call, for tests that must stop the world exactly there.

In production nobody listens and reaching a point costs one truth test.
"""

from collections.abc import Callable
from uuid import UUID

POINTS = (
    "after_claim",
    "after_intent",
    "after_accept",
    "after_checkpoint",
    "mid_poll",
    "after_result",
    "after_upload",
    "after_settle",
)

listeners: list[Callable[[str, UUID], None]] = []


def reached(point: str, job_id: UUID) -> None:
    for listener in listeners:
        listener(point, job_id)
