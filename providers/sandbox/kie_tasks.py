"""What the fake KIE shows of a task: its record in the words of its family, and its callback.

A script's words mean here: `fail` ends a task with that text, `"400: text"` with that code, too; `shape`
`string` puts `resultUrls` into a string, `object` sends `resultJson` undecorated; `output` stands in for the
result (or, where that is a string, for its whole text); `word` replaces the state, status or flag.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from providers import kie_callback
from providers.sandbox.tasks import Task

CREDITS = 18
_CODED = re.compile(r"(\d{3}): (.+)", re.DOTALL)
_STATES = {"starting": "waiting", "processing": "generating", "succeeded": "success", "failed": "fail"}
_RUNWAY_STATES = {**_STATES, "starting": "wait", "processing": "generating"}
_FLAGS = {"starting": 0, "processing": 0, "succeeded": 1, "failed": 3}
_SUNO = {"starting": "PENDING", "processing": "TEXT_SUCCESS", "succeeded": "SUCCESS", "failed": "GENERATE_AUDIO_FAILED"}


@dataclass(frozen=True, slots=True)
class Family:
    """One create endpoint and the record endpoint that goes with it. `word` is the field that holds the state."""

    name: str
    create: str
    records: tuple[str, ...]
    needs: tuple[str, ...]
    word: str
    prefix: str = ""  # of its task ids


FAMILIES = (
    Family(
        "market",
        "/api/v1/jobs/createTask",
        ("/api/v1/jobs/recordInfo", "/api/v1/jobs/getTaskDetail"),
        ("model", "input"),
        "state",
        prefix="task_",
    ),
    Family("veo", "/api/v1/veo/generate", ("/api/v1/veo/record-info",), ("prompt",), "successFlag", prefix="veo_task_"),
    Family(
        "suno",
        "/api/v1/generate",
        ("/api/v1/generate/record-info",),
        ("customMode", "instrumental", "model", "callBackUrl"),
        "status",
    ),
    Family(
        "kontext",
        "/api/v1/flux/kontext/generate",
        ("/api/v1/flux/kontext/record-info",),
        ("prompt",),
        "successFlag",
    ),
    Family("luma", "/api/v1/modify/generate", ("/api/v1/modify/record-info",), ("prompt", "videoUrl"), "successFlag"),
    Family("runway", "/api/v1/runway/generate", ("/api/v1/runway/record-detail",), ("prompt",), "state"),
)


def failure(text: str | None) -> tuple[str, str]:
    """Code and message of a scripted end; 500 where the script names no code, as KIE does for most."""
    coded = _CODED.fullmatch(text or "")
    return (coded.group(1), coded.group(2)) if coded else ("500", text or "")


def record(task: Task, now: float, word: str | None = None) -> dict[str, Any]:
    """The `data` of a poll."""
    shown = _RECORDS[task.detail["family"]](task, task.status(now), now)
    if word is not None:
        name = next(family.word for family in FAMILIES if family.name == task.detail["family"])
        shown[name] = int(word) if word.isdigit() else word
    return shown


def letter(task: Task, now: float, secret: str) -> tuple[bytes, dict[str, str]]:
    """A callback's body and headers. The task's id and the time are signed, nothing else."""
    status = task.status(now)
    code, message = (int(task.detail["error_code"]), task.detail["error"]) if status == "failed" else (200, "success")
    data = _CALLBACKS.get(task.detail["family"], record)(task, now)
    body = json.dumps({"code": code, "msg": message, "data": data}, separators=(",", ":")).encode()
    return body, kie_callback.sign(secret, task.id, int(now))


def _market(task: Task, status: str, now: float) -> dict[str, Any]:
    shown = {
        "taskId": task.id,
        "model": task.detail["model"],
        "state": _STATES[status],
        "param": json.dumps({**task.input, "callBackUrl": task.webhook or ""}),
        "resultJson": "",
        "failCode": "",
        "failMsg": "",
        "createTime": _ms(task.created_at),
        "updateTime": _ms(now),
    }
    if status == "processing":
        shown["progress"] = _percent(task, now)
    elif status == "succeeded":
        ended = {"completeTime": _ms(task.ends_at), "costTime": _ms(task.ends_at) - _ms(task.created_at)}
        shown |= {"resultJson": _result_json(task), **ended, "creditsConsumed": CREDITS}
    elif status == "failed":
        shown |= {"failCode": task.detail["error_code"], "failMsg": task.detail["error"]}
    return shown


def _result_json(task: Task) -> Any:
    if task.detail["empty"]:
        return ""
    if isinstance(task.detail["output"], str):
        return task.detail["output"]
    result = task.detail["output"] or {"resultUrls": _listed(task)}
    return result if task.detail["shape"] == "object" else json.dumps(result)


def _flagged(task: Task, status: str, _now: float) -> dict[str, Any]:
    over = status == "succeeded"
    failed = status == "failed"
    return {
        "taskId": task.id,
        "paramJson": json.dumps(task.input),
        "successFlag": _FLAGS[status],
        "response": _response(task) if over and not task.detail["empty"] else None,
        "errorCode": int(task.detail["error_code"]) if failed else None,
        "errorMessage": task.detail["error"] if failed else "",
        "createTime": _clock(task.created_at),
        "completeTime": _clock(task.ends_at) if over else None,
        "fallbackFlag": False,
    }


def _response(task: Task) -> Any:
    if task.detail["output"] is not None:
        return task.detail["output"]
    if task.detail["family"] == "kontext":
        return {"originImageUrl": f"{task.detail['base']}/gone.png", "resultImageUrl": task.detail["files"][0]}
    return {"taskId": task.id, "resultUrls": _listed(task), "originUrls": [], "resolution": "1080p"}


def _suno(task: Task, status: str, now: float) -> dict[str, Any]:
    word = _SUNO[status]
    if status == "processing" and now >= (task.created_at + task.ends_at) / 2:
        word = "FIRST_SUCCESS"
    ready = {"FIRST_SUCCESS": 1, "SUCCESS": len(task.detail["files"])}.get(word, 0)
    tracks = [_track(task, number, is_ready=number < ready) for number in range(len(task.detail["files"]))]
    response: Any = {"taskId": task.id, "sunoData": tracks} if ready and not task.detail["empty"] else None
    if status == "succeeded" and task.detail["output"] is not None:
        response = task.detail["output"]
    failed = status == "failed"
    return {
        "taskId": task.id,
        "parentMusicId": "",
        "param": json.dumps(task.input),
        "response": response,
        "status": word,
        "type": "chirp",
        "operationType": "generate",
        "errorCode": int(task.detail["error_code"]) if failed else None,
        "errorMessage": task.detail["error"] if failed else None,
    }


def _track(task: Task, number: int, *, is_ready: bool) -> dict[str, Any]:
    return {
        "id": f"{task.id}-{number}",
        "audioUrl": task.detail["files"][number] if is_ready else "",
        "streamAudioUrl": f"{task.detail['base']}/stream/{task.id}/{number}",
        "imageUrl": "",
        "prompt": task.input.get("prompt", ""),
        "modelName": "chirp",
        "title": task.input.get("title", "untitled"),
        "tags": task.input.get("style", ""),
        "createTime": _ms(task.created_at),
        "duration": 2.0,
    }


def _runway(task: Task, status: str, now: float) -> dict[str, Any]:
    over, failed = status == "succeeded" and not task.detail["empty"], status == "failed"
    video: Any = {"videoId": f"v-{task.id}", "taskId": task.id, "videoUrl": task.detail["files"][0], "imageUrl": ""}
    return {
        "taskId": task.id,
        "parentTaskId": "",
        "generateParam": task.input,
        "state": _RUNWAY_STATES[status],
        "generateTime": _clock(task.ends_at) if over else "",
        "videoInfo": (task.detail["output"] or video) if over else None,
        "failCode": int(task.detail["error_code"]) if failed else 0,
        "failMsg": task.detail["error"] if failed else "",
        "expireFlag": int(task.removed(now)),
    }


_RECORDS: dict[str, Callable[[Task, str, float], dict[str, Any]]] = {
    "market": _market,
    "veo": _flagged,
    "kontext": _flagged,
    "luma": _flagged,
    "suno": _suno,
    "runway": _runway,
}


def _told_veo(task: Task, now: float) -> dict[str, Any]:
    shown = record(task, now)
    info = shown["response"] and {name: shown["response"].get(name) for name in ("resultUrls", "originUrls")}
    return {"taskId": task.id, "promptJson": shown["paramJson"], "info": info, "fallbackFlag": False}


def _told_kontext(task: Task, now: float) -> dict[str, Any]:
    return {"taskId": task.id, "info": record(task, now)["response"]}


def _told_suno(task: Task, now: float) -> dict[str, Any]:
    shown = record(task, now)
    kinds = {"PENDING": "text", "TEXT_SUCCESS": "text", "FIRST_SUCCESS": "first", "SUCCESS": "complete"}
    tracks = (shown["response"] or {}).get("sunoData", [])
    told = [{"id": one["id"], "audio_url": one["audioUrl"], "title": one["title"]} for one in tracks]
    return {"callbackType": kinds.get(shown["status"], "error"), "task_id": task.id, "data": told}


def _told_runway(task: Task, now: float) -> dict[str, Any]:
    video = record(task, now)["videoInfo"] or {}
    return {
        "task_id": task.id,
        "video_id": video.get("videoId"),
        "video_url": video.get("videoUrl"),
        "image_url": video.get("imageUrl"),
    }


_CALLBACKS: dict[str, Callable[[Task, float], dict[str, Any]]] = {
    "veo": _told_veo,
    "kontext": _told_kontext,
    "suno": _told_suno,
    "runway": _told_runway,
}


def _listed(task: Task) -> Any:
    files = task.detail["files"]
    return json.dumps(files) if task.detail["shape"] == "string" else files


def _percent(task: Task, now: float) -> int:
    return min(99, int(100 * (now - task.created_at) / max(float(task.detail["run_seconds"]), 0.001)))


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
