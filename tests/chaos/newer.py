"""Loaded into a worker: a release that has one more actor."""

import dramatiq


@dramatiq.actor(queue_name="calls")
def of_another_release() -> None:
    return
