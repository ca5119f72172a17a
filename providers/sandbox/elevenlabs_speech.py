"""The fake ElevenLabs's answers in one piece: speech, sounds, transcriptions, alignments; and the history of speech."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox import elevenlabs as common
from providers.sandbox import files, films
from providers.sandbox.faults import Answer, handed_out
from providers.sandbox.tasks import Task
from providers.sandbox.world import world_of

SPEECH, SOUNDS, TEXTS, ALIGNMENTS = "speech", "sounds", "transcripts", "alignments"


async def speak(request: Request) -> Answer:
    return await _sound(request, SPEECH, logged=request.query_params.get("enable_logging", "true") != "false")


async def sound(request: Request) -> Answer:
    return await _sound(request, SOUNDS, logged=False)


async def transcribe(request: Request) -> Answer:
    world = world_of(request)
    form, text = await common.form_of(request)
    actions = await world.cue("message", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if form is None or form.get("model_id") is None:
        return common.faults("model_id")
    if not any((form.get("source_url"), form.get("cloud_storage_url"), form.files.get("file"))):
        return common.error(400, "invalid_source", "Either a file or a source URL must be given")
    words = actions.text if actions.text is not None else "these are the words of the sandbox"
    later = {"run_seconds": world.director.seconds(actions.run_seconds), "text": words, "model": form.get("model_id")}
    task = await common.accept(request, shelf=TEXTS, text=text, detail=later)
    if form.get("webhook") == "true":
        told = {"message": "Request accepted", "request_id": common.new_id(), "transcription_id": task.id}
        return await common.answered(request, actions, JSONResponse(told))
    answer = JSONResponse(_transcript(task), headers={"request-id": common.new_id()})
    return await common.answered(request, actions, answer)


async def transcript(request: Request) -> Answer:
    world, task = world_of(request), common.kept(request, TEXTS, request.path_params["task_id"])
    actions = await world.cue("poll", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None or not task.over(world.clock.now()):
        return common.error(404, "transcript_not_found", "There is no such transcript, or not yet")
    return JSONResponse(_transcript(task))


async def align(request: Request) -> Answer:
    form, text = await common.form_of(request)
    actions = await world_of(request).cue("create", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    missing = [name for name in ("file", "text") if form is None or not (form.get(name) or form.files.get(name))]
    if form is None or missing:
        return common.faults(*missing)
    await common.accept(request, shelf=ALIGNMENTS, text=text, detail={})
    said = str(form.get("text"))
    letters = [{"text": one, "start": at / 10, "end": (at + 1) / 10} for at, one in enumerate(said)]
    words = [{"text": one, "start": at / 2, "end": (at + 1) / 2, "loss": 0.1} for at, one in enumerate(said.split())]
    answer = JSONResponse({"characters": letters, "words": words, "loss": 0.1})
    return await common.answered(request, actions, answer)


async def history(request: Request) -> Answer:
    query = request.query_params
    actions = await world_of(request).cue("list")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    try:
        after, before = float(query.get("date_after_unix", "0")), float(query.get("date_before_unix", "inf"))
        size = min(1000, max(1, int(query.get("page_size", "100"))))
    except ValueError:
        return common.faults("page_size")
    tasks, _ = common.listed(request, SPEECH, actions, upto=None, size=10**6)
    shown = [
        _item(task)
        for task in tasks
        if task.detail["logged"]
        and after <= task.created_at <= before
        and query.get("voice_id", task.detail["voice_id"]) == task.detail["voice_id"]
    ]
    page = shown[:size]
    last = page[-1]["history_item_id"] if page else None
    return JSONResponse({"history": page, "last_history_item_id": last, "has_more": len(shown) > size})


async def history_item(request: Request) -> Answer:
    return await _remembered(request, lambda task: JSONResponse(_item(task)))


async def history_audio(request: Request) -> Answer:
    return await _remembered(request, lambda task: Response(files.mp3(task.id), media_type="audio/mpeg"))


ROUTES = [
    Route("/v1/text-to-speech/{voice_id}", speak, methods=["POST"]),
    Route("/v1/text-to-speech/{voice_id}/stream", speak, methods=["POST"]),
    Route("/v1/sound-generation", sound, methods=["POST"]),
    Route("/v1/speech-to-text", transcribe, methods=["POST"]),
    Route("/v1/speech-to-text/transcripts/{task_id}", transcript, methods=["GET"]),
    Route("/v1/forced-alignment", align, methods=["POST"]),
    Route("/v1/history", history, methods=["GET"]),
    Route("/v1/history/{task_id}", history_item, methods=["GET"]),
    Route("/v1/history/{task_id}/audio", history_audio, methods=["GET"]),
]


async def _sound(request: Request, shelf: str, *, logged: bool) -> Answer:
    body, text = await common.json_of(request)
    actions = await world_of(request).cue("message", text)
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if body is None or not isinstance(body.get("text"), str):
        return common.faults("text")
    voice = request.path_params.get("voice_id")
    if voice == "unknown":
        return common.error(404, "voice_not_found", "A voice with that voice_id was not found.")
    about = {"said": body["text"], "voice_id": voice, "logged": logged, "model": body.get("model_id") or shelf}
    task = await common.accept(request, shelf=shelf, text=text, detail=about)
    headers = {"request-id": f"req{task.id}", "character-cost": str(len(body["text"]))}
    if logged:
        headers["history-item-id"] = task.id
    if request.query_params.get("output_format", "mp3").startswith("wav"):
        answer = Response(files.wav(task.id), media_type="audio/wav", headers=headers)
    else:
        said = body["text"]
        mp3 = files.mp3(task.id) if actions.film is None else await films.speech(task.id, actions.film, said)
        answer = Response(mp3, media_type="audio/mpeg", headers=headers)
    if actions.download != "ok":
        return handed_out(answer, actions)
    return await common.answered(request, actions, answer)


async def _remembered(request: Request, shown: Any) -> Answer:
    task = common.kept(request, SPEECH, request.path_params["task_id"])
    actions = await world_of(request).cue("poll", task.input_text if task else "")
    if (refused := common.gate(request, actions)) is not None:
        return refused
    if task is None or not task.detail["logged"]:
        return common.error(404, "history_item_not_found", "There is no such history item")
    answer: Answer = shown(task)
    return answer


def _transcript(task: Task) -> dict[str, Any]:
    words = str(task.detail["text"])
    timed = [
        {"text": one, "type": "word", "start": at / 2, "end": (at + 1) / 2, "logprob": -0.1}
        for at, one in enumerate(words.split())
    ]
    return {
        "language_code": "eng",
        "language_probability": 0.99,
        "text": words,
        "words": timed,
        "transcription_id": task.id,
        "audio_duration_secs": 1.04,
    }


def _item(task: Task) -> dict[str, Any]:
    said = str(task.detail["said"])
    return {
        "history_item_id": task.id,
        "request_id": f"req{task.id}",
        "voice_id": task.detail["voice_id"],
        "model_id": task.detail["model"],
        "text": said,
        "date_unix": int(task.created_at),
        "character_count_change_from": 0,
        "character_count_change_to": len(said),
        "content_type": "audio/mpeg",
        "state": "created",
        "source": "TTS",
    }
