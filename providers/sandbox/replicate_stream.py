"""The stream of a prediction whose output is text: Server-Sent Events, as Replicate's own client reads them.

An `output` event for every piece, `error` if the run failed, `done` at the end; the key is asked for as everywhere.
"""

import json
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from providers.sandbox.faults import Answer
from providers.sandbox.replicate import KIND, account_in, problem
from providers.sandbox.tasks import Task, is_text
from providers.sandbox.world import world_of


async def stream(request: Request) -> Answer:
    world, account = world_of(request), account_in(request)
    task = world.tasks.get(request.path_params["task_id"], account, kind=KIND) if account else None
    if task is None or not is_text(task.detail["output"]):
        return problem(404, "Not found", "Prediction not found")
    return StreamingResponse(_events(task, world.clock.now()), media_type="text/event-stream")


async def _events(task: Task, now: float) -> AsyncIterator[str]:
    pieces: Sequence[str] = task.detail["output"]
    # Of a run that goes on, what it has made so far; the stream of one that ended is whole.
    share = 1.0 if task.over(now) else (now - task.created_at) / max(float(task.detail["run_seconds"]), 0.001)
    failed = task.detail["end"] == "failed" and task.cancelled_at is None
    for number, piece in enumerate(pieces[: 0 if failed else round(share * len(pieces))]):
        yield _event("output", piece, number)
    if failed:
        yield _event("error", json.dumps({"detail": task.detail["error"]}), len(pieces))
    yield _event("done", json.dumps({"reason": "canceled"} if task.cancelled_at else {}), len(pieces) + 1)


def _event(kind: str, data: str, number: int) -> str:
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"event: {kind}\nid: {number}:0\n{lines}\n"


ROUTES = [Route("/v1/stream/{task_id}", stream, methods=["GET"])]
