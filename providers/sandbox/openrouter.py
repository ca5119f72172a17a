"""The fake OpenRouter's video API: submit, poll, content, and a storage under another name that takes no key."""

import asyncio
import hashlib
import json
import secrets
import string
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from providers.sandbox import files, films
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept, handed_out
from providers.sandbox.letters import elsewhere, openrouter_job, signature
from providers.sandbox.script import Actions
from providers.sandbox.tasks import Task
from providers.sandbox.world import REVOKED, World, account_of, base_of, canonical, refusal, task_of, world_of

KIND = "openrouter"
_LETTERS = string.ascii_letters + string.digits


async def create(request: Request) -> Answer:
    world, account = world_of(request), _account(request)
    if account is None:
        return _error(401, "No auth credentials found")
    raw = await request.body()
    body, invalid = _read(raw)
    actions = await world.cue("create", canonical(body))
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
    path = f"/api/v1/videos/{task.id}"
    where = path if actions.polling_url == "relative" else base_of(request) + path
    answer = JSONResponse({"id": task.id, "polling_url": where, "status": "pending"}, status_code=202)
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


async def poll(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := _gate(request, actions)) is not None:
        return refused
    if task is None:
        return _error(404, "Video generation job not found")
    shown = openrouter_job(task, world.clock.now(), base_of(request))
    return JSONResponse(shown if actions.word is None else {**shown, "status": actions.word})


async def content(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("download", task.input_text if task else "")
    if (refused := _gate(request, actions)) is not None:
        return refused
    now = world.clock.now()
    if task is None or request.query_params.get("index", "0") != "0":
        return _error(404, "Video generation job not found")
    if not task.over(now):
        return _error(409, "Video generation is not completed")
    if task.status(now) != "succeeded" or task.removed(now) or actions.download == "gone":
        return _error(410, "The video is no longer available")
    if actions.content == "redirect":
        return RedirectResponse(f"{elsewhere(base_of(request))}/storage/{task.id}.mp4?sig={signature(task.id)}", 302)
    return handed_out(Response(await _video(task), media_type="video/mp4"), actions)


async def storage(request: Request) -> Answer:
    world = world_of(request)
    task = world.tasks.by_id.get(request.path_params["task_id"])
    actions = await world.cue("download", task.input_text if task else "")
    if (refused := refusal(actions)) is not None:
        return refused
    if "authorization" in request.headers:
        # As object stores do. A key that came this far was shown to a stranger.
        return Response("Only one auth mechanism allowed", status_code=400)
    now = world.clock.now()
    if task is None or request.query_params.get("sig") != signature(task.id) or task.removed(now):
        return Response("forbidden", status_code=403)
    return handed_out(Response(await _video(task), media_type="video/mp4"), actions)


ROUTES = [
    Route("/api/v1/videos", create, methods=["POST"]),
    Route("/api/v1/videos/{task_id}", poll, methods=["GET"]),
    Route("/api/v1/videos/{task_id}/content", content, methods=["GET"]),
    Route("/storage/{task_id}.mp4", storage, methods=["GET"]),
]


async def _video(task: Task) -> bytes:
    film = films.film_of(task.detail)
    return (
        files.mp4(task.id) if film is None else await films.scene(task.id, film, float(task.input.get("duration", 5)))
    )


def _read(raw: bytes) -> tuple[dict[str, Any], Response | None]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, _error(400, "The body is not JSON")
    if not isinstance(body, dict):
        return {}, _error(400, "The body is not an object")
    if not isinstance(body.get("model"), str):
        return body, _error(400, "model: expected string")
    duration = body.get("duration", 1)
    if not isinstance(duration, int) or duration < 1:
        return body, _error(400, "duration: expected a positive integer")
    callback = body.get("callback_url")
    if callback is not None and not str(callback).startswith(("https://", "http://")):
        return body, _error(400, "callback_url: expected a URL")
    return body, None


def _entry(request: Request, account: str, body: dict[str, Any], actions: Actions, digest: str) -> Entry:
    world = world_of(request)
    now = world.clock.now()
    task_id = f"gen-vid-{int(now)}-{''.join(secrets.choice(_LETTERS) for _ in range(20))}"
    return Entry(
        kind=KIND,
        task_id=task_id,
        account=account,
        created_at=now,
        path=request.url.path,
        request_hash=digest,
        input=canonical({name: value for name, value in body.items() if name != "callback_url"}),
        webhook=body.get("callback_url"),
        detail={"model": body["model"], "base": base_of(request), **fate(world, actions), "copies": actions.copies},
    )


def fate(world: World, actions: Actions) -> dict[str, Any]:
    """What a script decides about a video when it is accepted."""
    word = "canceled" if actions.stopped else "aborted" if actions.aborted else "succeeded"
    return {
        "run_seconds": world.director.seconds(actions.run_seconds),
        "end": "failed" if actions.fail is not None else word,
        "error": actions.fail,
        "result_life": actions.result_life,
        "output": "none" if actions.succeed_without_output else "file",
        "webhook": actions.webhook,
        "webhook_late": actions.webhook_late,
        "film": None if actions.film is None else actions.film.model_dump(mode="json"),
    }


def _account(request: Request) -> str | None:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return account_of(key.strip()) if scheme == "Bearer" and key.strip() not in ("", REVOKED) else None


def _task(request: Request) -> Task | None:
    account = _account(request)
    return world_of(request).tasks.get(request.path_params["task_id"], account, kind=KIND) if account else None


def _gate(request: Request, actions: Actions) -> Answer | None:
    if (refused := refusal(actions)) is not None:
        return refused
    return _error(401, "No auth credentials found") if _account(request) is None else None


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": status, "message": message}, "user_id": "user_sandbox"}, status_code=status)
