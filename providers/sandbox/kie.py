"""The fake KIE: one create and one record route a family, every answer in its envelope under HTTP 200.

Of the script it takes what the fake Replicate takes, but for lists and cancels, which KIE does not have:
`list_lag` on the route `poll` is how long a new task has no record. What else its words mean here stands in
`providers.sandbox.kie_tasks`.
"""

import asyncio
import base64
import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from providers.sandbox import files
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept
from providers.sandbox.kie_tasks import FAMILIES, Family, failure, record
from providers.sandbox.script import Actions
from providers.sandbox.world import REVOKED, World, account_of, base_of, canonical, refusal, task_of, world_of

KIND = "kie"
_VIDEO = re.compile(r"video|veo|luma|runway|lip-sync|avatar|omnihuman|infinitalk|kling|sora|wan")
_AUDIO = re.compile(r"suno|elevenlabs|speech|music|sound")


async def create(request: Request, *, family: Family) -> Answer:
    world, account = world_of(request), account_in(request)
    if account is None:
        return enveloped(401, "You do not have access permissions")
    raw = await request.body()
    body, missing = _read(raw, family)
    text = canonical({name: value for name, value in body.items() if name != "callBackUrl"})
    actions = await world.cue("create", text)
    if (refused := refusal(actions)) is not None:
        return refused
    if missing:
        return enveloped(422, f"{missing} is required or invalid")
    entry = _entry(request, account, family, body, text, actions, hashlib.sha256(raw).hexdigest())
    world.accept(entry)
    task = task_of(entry)
    world.tasks.add(task)
    world.courier.plan(task)
    if actions.webhook == "early" and task.webhook is not None:
        await world.courier.deliver_now(task)
    if actions.reply_delay:
        await asyncio.sleep(world.director.seconds(actions.reply_delay))
    answer = enveloped(200, "success", {"taskId": task.id})
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


async def poll(request: Request, *, family: Family) -> Answer:
    world, account = world_of(request), account_in(request)
    task = world.tasks.get(request.query_params.get("taskId", ""), account, kind=KIND) if account else None
    if task is not None and task.detail.get("family") != family.name:
        task = None
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := refusal(actions)) is not None:
        return refused
    if account is None:
        return enveloped(401, "You do not have access permissions")
    now = world.clock.now()
    if task is None or now < task.created_at + actions.list_lag:
        return enveloped(422, "recordInfo is null" if family.name == "market" else "record is null")
    return enveloped(200, "success", record(task, now, actions.word))


def account_in(request: Request) -> str | None:
    """Whose key the request carries; None for none, and for the one that is revoked."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    return account_of(key.strip()) if scheme == "Bearer" and key.strip() not in ("", REVOKED) else None


def enveloped(code: int, message: str, data: Any = None) -> JSONResponse:
    return JSONResponse({"code": code, "msg": message, "data": data})


def _read(raw: bytes, family: Family) -> tuple[dict[str, Any], str]:
    """The body, and the first field that is missing or wrong, if any."""
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, "body"
    if not isinstance(body, dict):
        return {}, "body"
    faults = [name for name in family.needs if body.get(name) in (None, "", {})]
    callback = body.get("callBackUrl")
    if callback is not None and not str(callback).startswith(("http://", "https://")):
        faults.append("callBackUrl")
    return body, faults[0] if faults else ""


def _entry(
    request: Request, account: str, family: Family, body: dict[str, Any], text: str, actions: Actions, digest: str
) -> Entry:
    world = world_of(request)
    task_id = family.prefix + secrets.token_hex(16)
    detail = {
        "family": family.name,
        "model": str(body.get("model", family.name)),
        **_ending(world, actions),
        "base": base_of(request),
        "webhook": actions.webhook,
        "webhook_late": actions.webhook_late,
        "output": actions.output,
        "shape": actions.shape,
        "empty": actions.succeed_without_output,
    }
    detail["files"] = _files(task_id, detail, actions)
    return Entry(
        kind=KIND,
        task_id=task_id,
        account=account,
        created_at=world.clock.now(),
        path=request.url.path,
        request_hash=digest,
        input=text,
        webhook=body.get("callBackUrl"),
        detail=detail,
    )


def _ending(world: World, actions: Actions) -> dict[str, Any]:
    code, message = failure("aborted" if actions.aborted else actions.fail)
    return {
        "run_seconds": world.director.seconds(actions.run_seconds),
        "end": "failed" if actions.fail is not None or actions.aborted else "succeeded",
        "error": message,
        "error_code": code,
        "result_life": actions.result_life,
    }


def _files(task_id: str, detail: dict[str, Any], actions: Actions) -> list[str]:
    if actions.shape == "data_url":
        return [f"data:image/png;base64,{base64.b64encode(files.png(task_id, 0)).decode()}"]
    named = f"{detail['family']} {detail['model']}"
    suffix = "mp3" if _AUDIO.search(named) else "mp4" if _VIDEO.search(named) else "png"
    count = max(actions.files, 2) if detail["family"] == "suno" else actions.files
    return [f"{detail['base']}/files/{task_id}/out-{number}.{suffix}" for number in range(count)]


def _bound(handler: Callable[..., Awaitable[Answer]], family: Family) -> Callable[[Request], Awaitable[Answer]]:
    return partial(handler, family=family)


ROUTES = [
    *(Route(family.create, _bound(create, family), methods=["POST"]) for family in FAMILIES),
    *(Route(path, _bound(poll, family), methods=["GET"]) for family in FAMILIES for path in family.records),
]
