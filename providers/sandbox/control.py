"""The hand that steers the sandbox: routes under `/_sandbox/`, no key asked.

GET  health                       {"ok": true}
GET  bill?input=TEXT&totals=1     creates, oldest first, and totals by kind; `input` keeps what contains it,
                                  `totals` leaves the list out
GET  stats                        requests per route, rules fired, webhooks sent, tasks open, and the most that
                                  ever ran at the same time, by provider
POST script                       replaces the script, its counts start again; 422 says what is wrong
POST reset                        empties bill, tasks, counters and script
POST clock {"advance": seconds}   moves the sandbox's clock forward
POST tasks/{id}/finish            ends a running task now, as its script says
"""

import json
from typing import Any, get_args

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox.bill import Entry
from providers.sandbox.script import Director, Script
from providers.sandbox.script import Route as ScriptRoute
from providers.sandbox.tasks import stamp
from providers.sandbox.world import World, is_task, task_of, world_of


async def health(_request: Request) -> Response:
    return JSONResponse({"ok": True})


async def bill(request: Request) -> Response:
    world, query = world_of(request), request.query_params
    containing = query.get("input")
    shown: dict[str, Any] = {"totals": world.bill.totals(containing=containing)}
    if "totals" not in query:
        shown["creates"] = [_line(world, entry) for entry in world.bill.entries(containing=containing)]
    return JSONResponse(shown)


async def stats(request: Request) -> Response:
    world = world_of(request)
    now = world.clock.now()
    return JSONResponse(
        {
            "requests": {route: world.requests[route] for route in get_args(ScriptRoute)},
            "rules": dict(world.director.fired),
            "webhooks": dict(world.courier.counts),
            "open_tasks": sum(not task.over(now) for task in world.tasks.by_id.values()),
            "most_at_once": world.tasks.most_at_once(),
        }
    )


async def script(request: Request) -> Response:
    try:
        wanted = Script.model_validate_json(await request.body())
    except ValidationError as error:
        return Response(error.json(include_url=False), status_code=422, media_type="application/json")
    world_of(request).director = Director(wanted)
    return JSONResponse({"ok": True})


async def reset(request: Request) -> Response:
    world_of(request).reset()
    return JSONResponse({"ok": True})


async def clock(request: Request) -> Response:
    world = world_of(request)
    try:
        seconds = float(json.loads(await request.body())["advance"])
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": 'want {"advance": seconds}'}, status_code=422)
    world.advance(max(0.0, seconds))
    return JSONResponse({"now": stamp(world.clock.now())})


async def finish(request: Request) -> Response:
    world = world_of(request)
    task = world.tasks.by_id.get(request.path_params["task_id"])
    if task is None:
        return JSONResponse({"error": "no such task"}, status_code=404)
    world.end(task, cancelled=False)
    return JSONResponse({"status": task.status(world.clock.now())})


ROUTES = [
    Route("/_sandbox/health", health),
    Route("/_sandbox/bill", bill),
    Route("/_sandbox/stats", stats),
    Route("/_sandbox/script", script, methods=["POST"]),
    Route("/_sandbox/reset", reset, methods=["POST"]),
    Route("/_sandbox/clock", clock, methods=["POST"]),
    Route("/_sandbox/tasks/{task_id}/finish", finish, methods=["POST"]),
]


def _line(world: World, entry: Entry) -> dict[str, Any]:
    status = task_of(entry).status(world.clock.now()) if is_task(entry) else "done"
    return {
        "kind": entry.kind,
        "task_id": entry.task_id,
        "account": entry.account,
        "created_at": stamp(entry.created_at),
        "path": entry.path,
        "request_hash": entry.request_hash,
        "input": json.loads(entry.input),
        "webhook": entry.webhook,
        "model": entry.detail["model"],
        "status": status,
    }
