"""Job types for measured workers; loaded with CALLKEEPER_MODULES."""

import time

from pydantic import BaseModel

from actors import Context, job_type

LOOK_EVERY = 0.002  # seconds between a handler's boundaries


class Wait(BaseModel):
    """Nothing to say."""


@job_type("bench-wait", request=Wait)
def bench_wait(context: Context, asked: Wait) -> dict[str, int]:  # noqa: ARG001  # it only waits for its end
    """Works until it is stopped."""
    while True:
        context.check()
        time.sleep(LOOK_EVERY)
