"""The fake HeyGen v3: create with idempotency keys, poll, list by title, history of events, and presigned files."""

import asyncio
import hashlib
import json
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox import files, films
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept, handed_out
from providers.sandbox.letters import heygen_event, heygen_video, signature
from providers.sandbox.openrouter import fate
from providers.sandbox.script import Actions
from providers.sandbox.tasks import Task
from providers.sandbox.world import REVOKED, World, account_of, base_of, canonical, refusal, task_of, world_of

KIND = "heygen"
KEY_LIFE = 86_400.0  # seconds in which a repeated key is answered with the first answer
_SUBTITLES = "1\n00:00:00,000 --> 00:00:02,000\n"


async def create(request: Request) -> Answer:
    world, account = world_of(request), _account(request)
    if account is None:
        return _error(401, "unauthorized", "invalid API key")
    raw = await request.body()
    body, invalid = _read(raw)
    actions = await world.cue("create", canonical(body))
    if (refused := refusal(actions) or invalid) is not None:
        return refused
    key = "" if actions.ignores_key else request.headers.get("idempotency-key", "")
    if (account, key) in world.in_flight:
        return _error(409, "request_in_progress", "A request with this key is in progress")
    if (first := _first(world, account, key)) is not None:
        return _accepted(first)
    entry = _entry(request, account, body, actions, hashlib.sha256(raw).hexdigest(), key)
    world.accept(entry)
    task = task_of(entry)
    world.tasks.add(task)
    world.courier.plan(task)
    if actions.webhook == "early" and task.webhook is not None:
        await world.courier.deliver_now(task)
    if actions.reply_delay:
        await _wait(world, account, key, world.director.seconds(actions.reply_delay))
    answer = _accepted(task)
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


async def poll(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := _gate(request, actions)) is not None:
        return refused
    now = world.clock.now()
    if task is None or now < task.created_at + actions.unknown_for:
        return _error(404, "video_not_found", "Video not found")
    shown = heygen_video(task, now, base_of(request))
    return JSONResponse({"data": shown if actions.word is None else {**shown, "status": actions.word}})


async def listing(request: Request) -> Answer:
    world, account = world_of(request), _account(request)
    query = request.query_params
    actions = await world.cue("list", query.get("title", ""))
    if (refused := _gate(request, actions)) is not None or account is None:
        return refused or _error(401, "unauthorized", "invalid API key")
    try:
        limit, start = min(max(int(query.get("limit", "10")), 1), 100), int(query.get("token", "0"))
    except ValueError:
        return _error(400, "invalid_parameter", "limit or token is malformed")
    now, base, title = world.clock.now(), base_of(request), query.get("title", "")
    newest = now - actions.list_lag
    tasks = world.tasks.of(account, kind=KIND)[::-1]
    matching = [task for task in tasks if title in str(task.input["title"]) and task.created_at <= newest]
    shown = [] if actions.list_off else matching[start : start + limit]
    more = not actions.list_off and len(matching) > start + limit
    data = [heygen_video(task, now, base) for task in shown]
    return JSONResponse({"data": data, "has_more": more, "next_token": str(start + limit) if more else None})


async def events(request: Request) -> Answer:
    world, account = world_of(request), _account(request)
    if account is None:
        return _error(401, "unauthorized", "invalid API key")
    now = world.clock.now()
    told = [task for task in world.tasks.of(account, kind=KIND) if task.webhook is not None and task.over(now)]
    data = [heygen_event(task, now, base_of(request)) for task in reversed(told)]
    return JSONResponse({"data": data, "has_more": False, "next_token": None})


async def download(request: Request) -> Answer:
    world, name = world_of(request), request.path_params["name"]
    task = world.tasks.by_id.get(name.partition(".")[0].removesuffix("_captioned"))
    actions = await world.cue("download", task.input_text if task else "")
    if (refused := refusal(actions)) is not None:
        return refused
    expires = request.query_params.get("Expires", "")
    good = task is not None and request.query_params.get("Signature") == signature(f"{task.id}/{expires}")
    if task is None or not good or world.clock.now() > int(expires) or actions.download == "gone":
        return Response("AccessDenied", status_code=403)
    if name.endswith(".srt"):
        return handed_out(Response(f"{_SUBTITLES}{task.id}\n", media_type="text/plain"), actions)
    film = films.film_of(task.detail)
    script = str(task.input.get("script", ""))
    video = files.mp4(task.id) if film is None else await films.avatar(task.id, film, script)
    return handed_out(Response(video, media_type="video/mp4"), actions)


ROUTES = [
    Route("/v3/videos", create, methods=["POST"]),
    Route("/v3/videos", listing, methods=["GET"]),
    Route("/v3/videos/{task_id}", poll, methods=["GET"]),
    Route("/v3/webhooks/events", events, methods=["GET"]),
    Route("/heygen-files/{name}", download, methods=["GET"]),
]


async def _wait(world: World, account: str, key: str, seconds: float) -> None:
    if key:
        world.in_flight.add((account, key))
    try:
        await asyncio.sleep(seconds)
    finally:
        world.in_flight.discard((account, key))


def _first(world: World, account: str, key: str) -> Task | None:
    """The video that was made under this key within a day."""
    since = world.clock.now() - KEY_LIFE
    made = reversed(world.tasks.of(account, kind=KIND)) if key else ()
    return next((task for task in made if task.detail["key"] == key and task.created_at > since), None)


def _accepted(task: Task) -> JSONResponse:
    # A repeat is answered as the first was, however far the video has come since.
    form = task.input.get("output_format", "mp4")
    return JSONResponse({"data": {"video_id": task.id, "status": "waiting", "output_format": form}})


def _read(raw: bytes) -> tuple[dict[str, Any], Response | None]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, _error(400, "invalid_parameter", "The body is not JSON")
    if not isinstance(body, dict):
        return {}, _error(400, "invalid_parameter", "The body is not an object")
    if body.get("type") not in ("avatar", "image", "cinematic_avatar", "studio"):
        return body, _error(400, "invalid_parameter", "type is required")
    if body["type"] == "avatar" and not isinstance(body.get("avatar_id"), str):
        return body, _error(400, "invalid_parameter", "avatar_id is required")
    if len(str(body.get("script", ""))) > 5000:
        return body, _error(400, "validation_error", "script is too long")
    return body, None


def _entry(request: Request, account: str, body: dict[str, Any], actions: Actions, digest: str, key: str) -> Entry:
    world = world_of(request)
    wanted = {"title": "", **{name: value for name, value in body.items() if name != "callback_url"}}
    return Entry(
        kind=KIND,
        task_id=f"v_{secrets.token_hex(12)}",
        account=account,
        created_at=world.clock.now(),
        path=request.url.path,
        request_hash=digest,
        input=canonical(wanted),
        webhook=body.get("callback_url"),
        detail={
            "model": body["type"],
            "base": base_of(request),
            **fate(world, actions),
            "key": key,
            "link_life": actions.link_life,
            "failure_code": "moderation" if "moderation" in (actions.fail or "").lower() else "rendering_failed",
        },
    )


def _account(request: Request) -> str | None:
    key = request.headers.get("x-api-key", "")
    return account_of(key) if key not in ("", REVOKED) else None


def _task(request: Request) -> Task | None:
    account = _account(request)
    return world_of(request).tasks.get(request.path_params["task_id"], account, kind=KIND) if account else None


def _gate(request: Request, actions: Actions) -> Answer | None:
    if (refused := refusal(actions)) is not None:
        return refused
    return _error(401, "unauthorized", "invalid API key") if _account(request) is None else None


def _error(status: int, code: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"code": code, "message": message}}, status_code=status)
