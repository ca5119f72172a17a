"""What the fake providers show of a video, and the callbacks they all send: one place for each vendor's own words."""

import hashlib
import json
from typing import Any

from providers.sandbox import kie_tasks
from providers.sandbox.tasks import Task
from providers.webhooks import OPENROUTER, sign, sign_heygen, sign_stamped

_OPENROUTER_WORDS = {
    "starting": "pending",
    "processing": "in_progress",
    "succeeded": "completed",
    "canceled": "cancelled",
    "aborted": "expired",
}
_HEYGEN_WORDS = {"starting": "waiting", "succeeded": "completed", "canceled": "failed", "aborted": "failed"}


def letter(task: Task, now: float, base: str, *, secret: str, delivery_id: str) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the callback that tells how a task stands, signed in its vendor's way."""
    match task.kind:
        case "openrouter":
            body = _compact(openrouter_event(task, now, base))
            signed = sign_stamped(OPENROUTER, secret, int(now), body)
            named = {"x-openrouter-idempotency-key": delivery_id}
        case "heygen":
            body = _compact(heygen_event(task, now, base))
            signed = sign_heygen(secret, body)
            named = {"heygen-timestamp": str(int(now))}
        case "kie":
            body, signed = kie_tasks.letter(task, now, secret)
            named = {}
        case _:
            body = _compact(task.show(now, base))
            signed, named = sign(secret, delivery_id, int(now), body), {}
    if task.detail["webhook"] == "unsigned":
        signed = {}
    return body, {"content-type": "application/json", **named, **signed}


def openrouter_job(task: Task, now: float, base: str) -> dict[str, Any]:
    """The job as a poll shows it."""
    status = task.status(now)
    shown: dict[str, Any] = {
        "id": task.id,
        "polling_url": f"/api/v1/videos/{task.id}",
        "status": _OPENROUTER_WORDS.get(status, status),
    }
    if not task.over(now):
        return shown
    if status != "succeeded":
        return {**shown, "error": task.detail["error"] or f"The job was {shown['status']}"}
    shown["generation_id"] = f"gen-{task.id[-20:]}"
    shown["usage"] = {"cost": 0.42, "is_byok": False}
    if task.detail["output"] == "none":
        return shown
    shown["unsigned_urls"] = [f"{base}/api/v1/videos/{task.id}/content?index=0"]
    if task.detail["copies"] and not task.removed(now):
        shown["urls"] = [f"{elsewhere(base)}/storage/{task.id}.mp4?sig={signature(task.id)}"]
        life = task.detail["result_life"]
        shown["expires_at"] = int(task.ends_at + (86_400 if life is None else float(life)))
    return shown


def openrouter_event(task: Task, now: float, base: str) -> dict[str, Any]:
    job = openrouter_job(task, now, base)
    data = {name: value for name, value in job.items() if name not in ("polling_url", "urls", "expires_at")}
    kind = f"video.generation.{job['status']}"
    return {"type": kind, "created_at": int(task.ends_at), "data": {**data, "model": task.detail["model"]}}


def heygen_video(task: Task, now: float, base: str) -> dict[str, Any]:
    """The video as poll and list show it; its link is made anew each time, and ends some time from now."""
    status = task.status(now)
    word = _HEYGEN_WORDS.get(status, status)
    over, good = task.over(now), status == "succeeded" and task.detail["output"] != "none"
    expires = int(now + float(task.detail["link_life"]))
    query = f"Expires={expires}&Signature={signature(f'{task.id}/{expires}')}"
    links = {"video_url": f"{base}/heygen-files/{task.id}.mp4?{query}"}
    if task.input.get("caption"):
        links["captioned_video_url"] = f"{base}/heygen-files/{task.id}_captioned.mp4?{query}"
        links["subtitle_url"] = f"{base}/heygen-files/{task.id}.srt?{query}"
    names = ("video_url", "thumbnail_url", "gif_url", "subtitle_url", "captioned_video_url")
    return {
        "id": task.id,
        "title": task.input["title"],
        "status": word,
        "created_at": int(task.created_at),
        "completed_at": int(task.ends_at) if over else None,
        **{name: links.get(name) if good else None for name in names},
        "duration": 2.04 if status == "succeeded" else None,
        "failure_code": task.detail["failure_code"] if word == "failed" else None,
        "failure_message": task.detail["error"] if word == "failed" else None,
        "video_page_url": f"{base}/videos/{task.id}",
    }


def heygen_event(task: Task, now: float, base: str) -> dict[str, Any]:
    video = heygen_video(task, now, base)
    data = {"video_id": task.id, "url": video["video_url"], "callback_id": task.input.get("callback_id")}
    if video["status"] == "failed":
        return {**_event(task), "event_type": "avatar_video.fail", "event_data": {**data, "msg": task.detail["error"]}}
    return {**_event(task), "event_type": "avatar_video.success", "event_data": data}


def elsewhere(base: str) -> str:
    """This server by its other name: to a client that compares names, another host."""
    one, other = "//127.0.0.1", "//localhost"
    return base.replace(one, other) if one in base else base.replace(other, one)


def signature(text: str) -> str:
    """What makes a link of the fakes a signed one."""
    return hashlib.sha256(f"sandbox/{text}".encode()).hexdigest()[:32]


def _event(task: Task) -> dict[str, Any]:
    return {"event_id": f"evt_{task.id}", "created_at": int(task.ends_at)}


def _compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
