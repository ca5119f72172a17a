"""The fake ElevenLabs's voices: clones, designs and their previews, saved designs; get, search, delete."""

import base64
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox import elevenlabs as common
from providers.sandbox import files
from providers.sandbox.faults import Answer, handed_out
from providers.sandbox.tasks import Task
from providers.sandbox.world import world_of

SHELF, DESIGNS = "voices", "designs"
PREVIEWS = 3


async def clone(request: Request) -> Answer:
    form, text = await common.form_of(request)
    actions = await world_of(request).cue("create", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    missing = [name for name in ("name", "files") if form is None or not (form.get(name) or form.files.get(name))]
    if form is None or missing:
        return common.faults(*missing)
    try:
        labels = json.loads(form.get("labels") or "{}") or {}
    except ValueError:
        return common.error(400, "invalid_labels", "labels is not JSON")
    named = {"name": form.get("name"), "description": form.get("description") or ""}
    about = {**named, "labels": labels, "category": "cloned"}
    task = await common.accept(request, shelf=SHELF, text=text, detail=about)
    answer = JSONResponse({"voice_id": task.id, "requires_verification": False})
    return await common.answered(request, actions, answer)


async def design(request: Request) -> Answer:
    body, text = await common.json_of(request)
    actions = await world_of(request).cue("create", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if body is None or not isinstance(body.get("voice_description"), str):
        return common.faults("voice_description")
    ids = [common.new_id() for _ in range(PREVIEWS)]
    await common.accept(request, shelf=DESIGNS, text=text, detail={"ids": ids}, task_id=".".join(ids))
    streamed = body.get("stream_previews") is True
    previews = [
        {
            "audio_base_64": "" if streamed else base64.b64encode(files.mp3(one)).decode(),
            "generated_voice_id": one,
            "media_type": "audio/mpeg",
            "duration_secs": 1.04,
            "language": "en",
        }
        for one in ids
    ]
    spoken = body.get("text") or "A text that the sandbox made up, long enough to hear what a voice is like."
    return await common.answered(request, actions, JSONResponse({"previews": previews, "text": spoken}))


async def preview(request: Request) -> Answer:
    world, wanted = world_of(request), request.path_params["task_id"]
    actions = await world.cue("download")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if not _designed(request, wanted):
        return common.error(404, "voice_not_found", "There is no such preview")
    return handed_out(Response(files.mp3(wanted), media_type="audio/mpeg"), actions)


async def save(request: Request) -> Answer:
    body, text = await common.json_of(request)
    actions = await world_of(request).cue("create", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    names = ("voice_name", "voice_description", "generated_voice_id")
    missing = [name for name in names if body is None or not isinstance(body.get(name), str)]
    if body is None or missing:
        return common.faults(*missing)
    if not _designed(request, body["generated_voice_id"]):
        return common.error(400, "voice_not_found", "There is no such preview")
    named = {"name": body["voice_name"], "description": body["voice_description"]}
    about = {**named, "labels": body.get("labels") or {}, "category": "generated"}
    task = await common.accept(request, shelf=SHELF, text=text, detail=about)
    return await common.answered(request, actions, JSONResponse(_show(task)))


async def one(request: Request) -> Answer:
    task = common.kept(request, SHELF, request.path_params["task_id"])
    actions = await world_of(request).cue("poll", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    return _gone() if task is None else JSONResponse(_show(task))


async def remove(request: Request) -> Answer:
    world, task = world_of(request), common.kept(request, SHELF, request.path_params["task_id"])
    actions = await world.cue("cancel", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None:
        return _gone()
    common.delete(world, task)
    return JSONResponse({"status": "ok"})


async def search(request: Request) -> Answer:
    query = request.query_params
    actions = await world_of(request).cue("list")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    try:
        size = min(100, max(1, int(query.get("page_size", "10"))))
        upto = int(query["next_page_token"]) if "next_page_token" in query else None
    except ValueError:
        return common.error(400, "invalid_page", "page_size or next_page_token is malformed")
    tasks, rest = common.listed(request, SHELF, actions, upto=upto, size=size)
    voices = [_show(task) for task in tasks]
    word = query.get("search", "").lower()
    found = [voice for voice in voices if word in f"{voice['name']} {voice['description']} {voice['labels']}".lower()]
    more = {"has_more": rest is not None, "next_page_token": None if rest is None else str(rest)}
    return JSONResponse({"voices": found, "total_count": len(found), **more})


ROUTES = [
    Route("/v1/voices/add", clone, methods=["POST"]),
    Route("/v1/text-to-voice/design", design, methods=["POST"]),
    Route("/v1/text-to-voice/{task_id}/stream", preview, methods=["GET"]),
    Route("/v1/text-to-voice", save, methods=["POST"]),
    Route("/v1/voices/{task_id}", one, methods=["GET"]),
    Route("/v1/voices/{task_id}", remove, methods=["DELETE"]),
    Route("/v2/voices", search, methods=["GET"]),
]


def _designed(request: Request, generated: str) -> bool:
    world = world_of(request)
    designs, _ = world.tasks.page(
        f"{common.account(request)}/{DESIGNS}", kind=common.KIND, after=None, before=None, upto=None, size=10**6
    )
    return any(generated in task.detail["ids"] for task in designs)


def _gone() -> Response:
    # The vendor answers 400 here where other lookups answer 404.
    return common.error(400, "voice_not_found", "A voice with that voice_id was not found.")


def _show(task: Task) -> dict[str, Any]:
    return {
        "voice_id": task.id,
        "name": task.detail["name"],
        "category": task.detail["category"],
        "labels": task.detail["labels"],
        "description": task.detail["description"],
        "preview_url": None,
        "available_for_tiers": [],
        "high_quality_base_model_ids": [],
        "is_owner": True,
        "created_at_unix": int(task.created_at),
    }
