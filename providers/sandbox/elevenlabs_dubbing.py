"""The fake ElevenLabs's dubbings: create, get, list, delete, and the dubbed file."""

import base64
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox import elevenlabs as common
from providers.sandbox import files
from providers.sandbox.faults import Answer, handed_out
from providers.sandbox.tasks import Task, stamp
from providers.sandbox.world import world_of

SHELF = "dubbing"
_UNKNOWN = "dubbing_not_found"
_WORDS = {
    "starting": "dubbing",
    "processing": "dubbing",
    "succeeded": "dubbed",
    "failed": "failed",
    "aborted": "failed",
}


async def create(request: Request) -> Answer:
    world = world_of(request)
    form, text = await common.form_of(request)
    actions = await world.cue("create", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if form is None or form.get("target_lang") is None:
        return common.faults("target_lang")
    source = form.get("source_url") or ""
    if not source and not form.files.get("file"):
        return common.error(400, "invalid_source", "Either a file or a source URL must be given")
    about = {
        "name": form.get("name") or "untitled",
        "language": form.get("target_lang"),
        "video": source.endswith(".mp4"),
        "run_seconds": world.director.seconds(actions.run_seconds),
        "end": "failed" if actions.fail is not None else "succeeded",
        "error": actions.fail,
    }
    task = await common.accept(request, shelf=SHELF, text=text, detail=about)
    return await common.answered(request, actions, JSONResponse({"dubbing_id": task.id, "expected_duration_sec": 1.0}))


async def poll(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None:
        return common.error(404, _UNKNOWN, "There is no such dubbing")
    shown = _show(task, world.clock.now())
    return JSONResponse(shown if actions.word is None else {**shown, "status": actions.word})


async def listing(request: Request) -> Answer:
    world, query = world_of(request), request.query_params
    actions = await world.cue("list")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if (
        query.get("order_direction", "DESCENDING") != "DESCENDING"
        or query.get("order_by", "created_at") != "created_at"
    ):
        return common.faults("order_direction")
    try:
        size = min(200, max(1, int(query.get("page_size", "100"))))
        upto = int(base64.urlsafe_b64decode(query["cursor"])) if "cursor" in query else None
    except ValueError:
        return common.error(400, "invalid_cursor", "The cursor is malformed")
    tasks, rest = common.listed(request, SHELF, actions, upto=upto, size=size)
    now = world.clock.now()
    shown = [_show(task, now) for task in tasks]
    wanted = set(query.getlist("dubbing_statuses"))
    return JSONResponse(
        {
            "dubs": [dub for dub in shown if not wanted or dub["status"] in wanted],
            "next_cursor": None if rest is None else base64.urlsafe_b64encode(str(rest).encode()).decode(),
            "has_more": rest is not None,
        }
    )


async def remove(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("cancel", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None:
        return common.error(404, _UNKNOWN, "There is no such dubbing")
    common.delete(world, task)
    return JSONResponse({"status": "ok"})


async def audio(request: Request) -> Answer:
    world, task = world_of(request), _task(request)
    actions = await world.cue("download", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None or request.path_params["language"] != task.detail["language"]:
        return common.error(404, _UNKNOWN, "There is no such dubbing or language")
    status = task.status(world.clock.now())
    if status != "succeeded":
        return common.error(425, "dubbing_not_dubbed", f"The dubbing is {_WORDS[status]}")
    if task.detail["video"]:
        return handed_out(Response(files.mp4(task.id), media_type="video/mp4"), actions)
    return handed_out(Response(files.mp3(task.id), media_type="audio/mpeg"), actions)


ROUTES = [
    Route("/v1/dubbing", create, methods=["POST"]),
    Route("/v1/dubbing", listing, methods=["GET"]),
    Route("/v1/dubbing/{task_id}", poll, methods=["GET"]),
    Route("/v1/dubbing/{task_id}", remove, methods=["DELETE"]),
    Route("/v1/dubbing/{task_id}/audio/{language}", audio, methods=["GET"]),
]


def _task(request: Request) -> Task | None:
    return common.kept(request, SHELF, request.path_params["task_id"])


def _show(task: Task, now: float) -> dict[str, Any]:
    status = _WORDS[task.status(now)]
    done = status == "dubbed"
    content_type = "video/mp4" if task.detail["video"] else "audio/mpeg"
    return {
        "dubbing_id": task.id,
        "name": task.detail["name"],
        "status": status,
        "source_language": "en" if done else None,
        "target_languages": [task.detail["language"]] if status != "failed" else [],
        "editable": False,
        "created_at": stamp(task.created_at),
        "media_metadata": {"content_type": content_type, "duration": 1.04} if done else None,
        "error": task.detail["error"] if status == "failed" else None,
    }
