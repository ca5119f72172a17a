"""The fake Replicate's trainings: create, get, list, cancel."""

import asyncio
import base64
import hashlib
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept
from providers.sandbox.replicate import (
    AS_CREATED,
    EVENTS,
    PAGE,
    UNAUTHENTICATED,
    account_in,
    ending,
    gate,
    new_id,
    next_page,
    problem,
)
from providers.sandbox.script import Actions
from providers.sandbox.tasks import Task
from providers.sandbox.world import base_of, canonical, refusal, task_of, world_of

KIND = "replicate-training"


async def create(request: Request) -> Answer:
    world, account = world_of(request), account_in(request)
    if account is None:
        return problem(401, "Unauthenticated", UNAUTHENTICATED)
    raw = await request.body()
    body, invalid = _read(raw)
    text = canonical(body.get("input")) if invalid is None else ""
    actions = await world.cue("create", text)
    if (refused := refusal(actions) or invalid) is not None:
        return refused
    entry = _entry(request, account, body, actions, hashlib.sha256(raw).hexdigest())
    world.accept(entry)
    task = task_of(entry)
    world.tasks.add(task)
    world.courier.plan(task)
    if actions.webhook == "early" and task.webhook is not None:
        await world.courier.deliver_now(task)
    if actions.reply_delay:
        await asyncio.sleep(world.director.seconds(actions.reply_delay))
    shown = {**task.show(task.created_at, base_of(request)), **AS_CREATED}
    answer = JSONResponse(shown, status_code=actions.created_status)
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


async def poll(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := gate(request, actions)) is not None:
        return refused
    if task is None:
        return problem(404, "Not found", "Training not found")
    shown = task.show(world.clock.now(), base_of(request))
    return JSONResponse(shown if actions.word is None else {**shown, "status": actions.word})


async def cancel(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("cancel", task.input_text if task else "")
    if (refused := gate(request, actions)) is not None:
        return refused
    if task is None:
        return problem(404, "Not found", "Training not found")
    world.end(task, cancelled=True)
    return JSONResponse(task.show(world.clock.now(), base_of(request)))


async def listing(request: Request) -> Answer:
    world, account, query = world_of(request), account_in(request), request.query_params
    actions = await world.cue("list")
    if (refused := gate(request, actions)) is not None or account is None:
        return refused or problem(401, "Unauthenticated", UNAUTHENTICATED)
    try:
        upto = int(base64.urlsafe_b64decode(query["cursor"])) if "cursor" in query else None
    except ValueError:
        return problem(400, "Bad request", "cursor is malformed")
    now = world.clock.now()
    newest = -1.0 if actions.list_off else now - actions.list_lag
    tasks, rest = world.tasks.page(account, kind=KIND, after=None, before=newest, upto=upto, size=PAGE)
    shown = [task.show(now, base_of(request)) for task in tasks]
    return JSONResponse({"previous": None, "next": next_page(request, rest), "results": shown})


ROUTES = [
    Route("/v1/models/{owner}/{name}/versions/{version}/trainings", create, methods=["POST"]),
    Route("/v1/trainings", listing, methods=["GET"]),
    Route("/v1/trainings/{task_id}", poll, methods=["GET"]),
    Route("/v1/trainings/{task_id}/cancel", cancel, methods=["POST"]),
]


def _read(raw: bytes) -> tuple[dict[str, Any], Response | None]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, problem(400, "Bad request", "The body is not JSON")
    if not isinstance(body, dict):
        return {}, problem(400, "Bad request", "The body is not an object")
    faults = [] if isinstance(body.get("input"), dict) else ["input"]
    if str(body.get("destination")).count("/") != 1:
        faults.append("destination")
    if not faults:
        return body, None
    detail = "\n".join(f"- {name} is required or has the wrong type" for name in faults)
    fields = [{"field": name, "type": "invalid", "description": "required or of the wrong type"} for name in faults]
    return body, problem(422, "Input validation failed", detail, invalid_fields=fields)


def _entry(request: Request, account: str, body: dict[str, Any], actions: Actions, digest: str) -> Entry:
    world, task_id, base = world_of(request), new_id(), base_of(request)
    made = f"{body['destination']}:{hashlib.sha256(task_id.encode()).hexdigest()}"
    output = {"version": made, "weights": f"{base}/files/{task_id}/weights.tar"}
    nothing = actions.succeed_without_output or actions.output is not None
    return Entry(
        kind=KIND,
        task_id=task_id,
        account=account,
        created_at=world.clock.now(),
        path=request.url.path,
        request_hash=digest,
        input=canonical(body["input"]),
        webhook=body.get("webhook"),
        detail={
            "model": f"{request.path_params['owner']}/{request.path_params['name']}",
            "version": request.path_params["version"],
            "destination": body["destination"],
            **ending(world, actions),
            "base": base,
            "webhook": actions.webhook if "completed" in (body.get("webhook_events_filter") or EVENTS) else "off",
            "webhook_late": actions.webhook_late,
            "output": actions.output if nothing else output,
        },
    )


def _task(request: Request) -> Task | None:
    account = account_in(request)
    task_id = request.path_params["task_id"]
    return world_of(request).tasks.get(task_id, account, kind=KIND) if account else None
