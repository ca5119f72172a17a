"""The fake ElevenLabs: what all its routes share, and the routes.

Errors come in the vendor's three shapes: `detail` is an object with a status word, a list of faults, or a text.
"""

import asyncio
import hashlib
import json
import secrets
import string
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from providers.sandbox import forms
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, after_accept
from providers.sandbox.script import Actions
from providers.sandbox.tasks import Task
from providers.sandbox.world import REVOKED, World, account_of, base_of, canonical, refusal, task_of, world_of

KIND = "elevenlabs"
_LETTERS = string.ascii_letters + string.digits


def new_id() -> str:
    return "".join(secrets.choice(_LETTERS) for _ in range(20))


def error(status: int, word: str, message: str) -> JSONResponse:
    return JSONResponse({"detail": {"status": word, "message": message}}, status_code=status)


def faults(*places: str) -> JSONResponse:
    """A 422, as the vendor's framework writes it."""
    listed = [{"loc": ["body", place], "msg": "Field required", "type": "missing"} for place in places]
    return JSONResponse({"detail": listed}, status_code=422)


def account(request: Request) -> str | None:
    key = request.headers.get("xi-api-key", "")
    return account_of(key) if key and key != REVOKED else None


def gate(request: Request, actions: Actions) -> Answer | None:
    """What is answered instead of looking at the request, if anything."""
    if (refused := refusal(actions)) is not None:
        return refused
    return None if account(request) else error(401, "invalid_api_key", "Invalid API key")


async def form_of(request: Request) -> tuple[forms.Form | None, str]:
    """The form of a request, and how rules and the bill see it."""
    form = forms.read(request.headers.get("content-type", ""), await request.body())
    return form, canonical(form.shown()) if form else ""


async def json_of(request: Request) -> tuple[dict[str, Any] | None, str]:
    """The JSON object of a request, and how rules and the bill see it."""
    try:
        body = json.loads(await request.body())
    except ValueError:
        return None, ""
    return (body, canonical(body)) if isinstance(body, dict) else (None, "")


async def accept(
    request: Request, *, shelf: str, text: str, detail: dict[str, Any], task_id: str | None = None
) -> Task:
    """Bill it and keep it. `shelf` is the list it stands in; `detail` is what its routes need to answer for it."""
    world, who = world_of(request), account(request)
    entry = Entry(
        kind=KIND,
        task_id=task_id or new_id(),
        account=str(who),
        created_at=world.clock.now(),
        path=request.url.path,
        request_hash=hashlib.sha256(await request.body()).hexdigest(),
        input=text,
        webhook=None,
        detail={
            "model": shelf,
            "shelf": f"/{shelf}",
            "run_seconds": 0.0,
            "end": "succeeded",
            "error": None,
            "result_life": None,
            "base": base_of(request),
            "webhook": "off",
            **detail,
        },
    )
    world.accept(entry)
    task = task_of(entry)
    world.tasks.add(task)
    return task


async def answered(request: Request, actions: Actions, answer: Response) -> Answer:
    """The answer to what was accepted, late or spoilt where the script says so."""
    world = world_of(request)
    if actions.reply_delay:
        await asyncio.sleep(world.director.seconds(actions.reply_delay))
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


def kept(request: Request, shelf: str, task_id: str) -> Task | None:
    """What this account has under this id and has not deleted."""
    who = account(request)
    task = world_of(request).tasks.get(task_id, f"{who}/{shelf}", kind=KIND) if who else None
    return task if task is not None and task.cancelled_at is None else None


def listed(
    request: Request, shelf: str, actions: Actions, *, upto: int | None, size: int
) -> tuple[list[Task], int | None]:
    """One page, newest first, and where the next begins."""
    world = world_of(request)
    if actions.list_off:
        return [], None
    newest = world.clock.now() - actions.list_lag
    page, rest = world.tasks.page(
        f"{account(request)}/{shelf}", kind=KIND, after=None, before=newest, upto=upto, size=size
    )
    return [task for task in page if task.cancelled_at is None], rest


def delete(world: World, task: Task) -> None:
    """Take it away, whether it runs or has ended."""
    task.cancelled_at = world.clock.now()
    world.bill.ended(task.id, cancelled_at=task.cancelled_at, finished_at=task.finished_at)
