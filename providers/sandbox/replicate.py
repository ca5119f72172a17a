"""The fake Replicate: create, get, list, cancel, and the files of finished predictions."""

import asyncio
import base64
import hashlib
import json
import secrets
import string
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox import files
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept, handed_out
from providers.sandbox.script import Actions
from providers.sandbox.tasks import VIDEO, Task
from providers.sandbox.world import (
    REVOKED,
    World,
    account_of,
    base_of,
    canonical,
    refusal,
    task_of,
    world_of,
)

KIND = "replicate"
PAGE = 100
EVENTS = {"start", "output", "logs", "completed"}
_ID_LETTERS = string.ascii_lowercase + string.digits
UNAUTHENTICATED = "You did not pass an authentication token that is valid."


async def create(request: Request) -> Answer:
    world, account = world_of(request), account_in(request)
    if account is None:
        return problem(401, "Unauthenticated", UNAUTHENTICATED)
    raw = await request.body()
    body, invalid = _read(raw, request)
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


# The response to a create never shows the end, however fast the run was.
AS_CREATED: dict[str, Any] = {
    "status": "starting",
    "output": None,
    "error": None,
    "completed_at": None,
    "metrics": {},
    "logs": "",
}


async def poll(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := gate(request, actions)) is not None:
        return refused
    if task is None:
        return problem(404, "Not found", "Prediction not found")
    shown = task.show(world.clock.now(), base_of(request))
    if actions.word is not None:
        shown["status"] = actions.word
    return JSONResponse(shown)


async def cancel(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("cancel", task.input_text if task else "")
    if (refused := gate(request, actions)) is not None:
        return refused
    if task is None:
        return problem(404, "Not found", "Prediction not found")
    world.end(task, cancelled=True)
    return JSONResponse(task.show(world.clock.now(), base_of(request)))


async def listing(request: Request) -> Answer:
    world, account = world_of(request), account_in(request)
    actions = await world.cue("list")
    if (refused := gate(request, actions)) is not None or account is None:
        return refused or problem(401, "Unauthenticated", UNAUTHENTICATED)
    query = request.query_params
    try:
        after, before = _time(query.get("created_after")), _time(query.get("created_before"))
        upto = int(base64.urlsafe_b64decode(query["cursor"])) if "cursor" in query else None
    except ValueError:
        return problem(400, "Bad request", "created_after, created_before or cursor is malformed")
    if actions.list_off:
        return JSONResponse({"previous": None, "next": None, "results": []})
    now = world.clock.now()
    newest = now - actions.list_lag
    before = newest if before is None else min(before, newest)
    tasks, rest = world.tasks.page(account, kind=KIND, after=after, before=before, upto=upto, size=PAGE)
    return JSONResponse(
        {
            "previous": None,
            "next": next_page(request, rest),
            "results": [task.show(now, base_of(request)) for task in tasks],
        }
    )


async def download(request: Request) -> Answer:
    world = world_of(request)
    task = world.tasks.by_id.get(request.path_params["task_id"])
    actions = await world.cue("download", task.input_text if task else "")
    if (refused := refusal(actions)) is not None:
        return refused
    now = world.clock.now()
    if task is None or not task.over(now) or task.removed(now):
        return Response("not found", status_code=404)
    return handed_out(_file(task, request.path_params["name"]), actions)


async def webhook_secret(request: Request) -> Answer:
    if account_in(request) is None:
        return problem(401, "Unauthenticated", UNAUTHENTICATED)
    return JSONResponse({"key": world_of(request).courier.secret})


ROUTES = [
    Route("/v1/webhooks/default/secret", webhook_secret, methods=["GET"]),
    Route("/v1/predictions", create, methods=["POST"]),
    Route("/v1/predictions", listing, methods=["GET"]),
    Route("/v1/predictions/{task_id}", poll, methods=["GET"]),
    Route("/v1/predictions/{task_id}/cancel", cancel, methods=["POST"]),
    Route("/v1/models/{owner}/{name}/predictions", create, methods=["POST"]),
    Route("/v1/deployments/{owner}/{name}/predictions", create, methods=["POST"]),
    Route("/files/{task_id}/{name}", download, methods=["GET"]),
]


def _read(raw: bytes, request: Request) -> tuple[dict[str, Any], Response | None]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, problem(400, "Bad request", "The body is not JSON")
    if not isinstance(body, dict):
        return {}, problem(400, "Bad request", "The body is not an object")
    faults = []
    if not isinstance(body.get("input"), dict):
        faults.append("input")
    if not request.path_params and not isinstance(body.get("version"), str):
        faults.append("version")
    webhook, events = body.get("webhook"), body.get("webhook_events_filter")
    if webhook is not None and not str(webhook).startswith(("http://", "https://")):
        faults.append("webhook")
    if events is not None and not (isinstance(events, list) and EVENTS.issuperset(events)):
        faults.append("webhook_events_filter")
    if not faults:
        return body, None
    detail = "\n".join(f"- {name} is required or has the wrong type" for name in faults)
    fields = [{"field": name, "type": "invalid", "description": "required or of the wrong type"} for name in faults]
    return body, problem(422, "Input validation failed", detail, invalid_fields=fields)


def _entry(request: Request, account: str, body: dict[str, Any], actions: Actions, digest: str) -> Entry:
    world = world_of(request)
    task_id = new_id()
    detail = {
        **_names(request, body, actions),
        **ending(world, actions),
        "base": base_of(request),
        "webhook": actions.webhook if "completed" in (body.get("webhook_events_filter") or EVENTS) else "off",
        "webhook_late": actions.webhook_late,
    }
    detail["output"] = _output(task_id, detail, actions)
    return Entry(
        kind=KIND,
        task_id=task_id,
        account=account,
        created_at=world.clock.now(),
        path=request.url.path,
        request_hash=digest,
        input=canonical(body["input"]),
        webhook=body.get("webhook"),
        detail=detail,
    )


def new_id() -> str:
    return "".join(secrets.choice(_ID_LETTERS) for _ in range(26))


def _names(request: Request, body: dict[str, Any], actions: Actions) -> dict[str, Any]:
    owner, name = request.path_params.get("owner"), request.path_params.get("name")
    deployment = f"{owner}/{name}" if "/deployments/" in request.url.path else None
    model, _, version = str(body.get("version", "")).partition(":")
    if owner is not None:
        model, version = f"{owner}/{name}", ""
    elif "/" not in model:
        model, version = "sandbox/by-version", model
    version = version or hashlib.sha256(model.encode()).hexdigest()
    return {
        "model": model,
        "version": "hidden" if actions.hidden_version else version,
        "deployment": deployment,
    }


def ending(world: World, actions: Actions) -> dict[str, Any]:
    end = "failed" if actions.fail is not None else "aborted" if actions.aborted else "succeeded"
    return {
        "run_seconds": world.director.seconds(actions.run_seconds),
        "end": end,
        "error": actions.fail,
        "result_life": actions.result_life,
    }


def _output(task_id: str, detail: dict[str, Any], actions: Actions) -> Any:
    if actions.succeed_without_output or actions.output is not None:
        return actions.output
    suffix = VIDEO if "video" in detail["model"] else "png"
    urls = [f"{detail['base']}/files/{task_id}/out-{number}.{suffix}" for number in range(actions.files)]
    if actions.shape == "data_url":
        urls = [f"data:image/png;base64,{base64.b64encode(files.png(task_id, 0)).decode()}"]
    if actions.shape == "object":
        return {"files": urls, "preview": {"first": urls[0]}, "seed": 7}
    return urls if actions.shape == "list" else urls[0]


def _file(task: Task, name: str) -> Response:
    stem, _, suffix = name.rpartition(".")
    number = stem.removeprefix("out-")
    if suffix == VIDEO:
        return Response(files.mp4(task.id), media_type="video/mp4")
    position = int(number) if number.isdigit() else 0
    if suffix == "mp3":
        return Response(files.mp3(task.id, position), media_type="audio/mpeg")
    return Response(files.png(task.id, position), media_type="image/png")


def account_in(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme not in ("Bearer", "Token") or not key.strip() or key.strip() == REVOKED:
        return None
    return account_of(key.strip())


def _task(request: Request) -> Task | None:
    account = account_in(request)
    return world_of(request).tasks.get(request.path_params["task_id"], account, kind=KIND) if account else None


def gate(request: Request, actions: Actions) -> Answer | None:
    if (refused := refusal(actions)) is not None:
        return refused
    return problem(401, "Unauthenticated", UNAUTHENTICATED) if account_in(request) is None else None


def next_page(request: Request, rest: int | None) -> str | None:
    """The address of the next page, which begins at `rest`."""
    if rest is None:
        return None
    query = {k: v for k, v in request.query_params.items() if k != "cursor"}
    query["cursor"] = base64.urlsafe_b64encode(str(rest).encode()).decode()
    return f"{base_of(request)}{request.url.path}?{urlencode(query)}"


def _time(text: str | None) -> float | None:
    if text is None:
        return None
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def problem(status: int, title: str, detail: str, **more: Any) -> JSONResponse:
    return JSONResponse({"title": title, "detail": detail, "status": status, **more}, status_code=status)
