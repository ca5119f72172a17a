"""The fake Anthropic Messages API: one request, one bill, one answer, whole or streamed."""

import asyncio
import hashlib
import json
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from providers.sandbox.answers import words_of
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, Streamed, after_accept
from providers.sandbox.script import Actions
from providers.sandbox.world import REVOKED, World, account_of, canonical, refusal, world_of


async def messages(request: Request) -> Answer:
    world = world_of(request)
    # The vendor's own client sends an API key as a bearer token, its documentation as `x-api-key`: both are taken.
    key = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
    if not key or key == REVOKED:
        return _error(401, "authentication_error", "invalid x-api-key")
    if not request.headers.get("anthropic-version"):
        return _error(400, "invalid_request_error", "anthropic-version: header is required")
    raw = await request.body()
    body, invalid = _read(raw)
    text = canonical(body)
    actions = await world.cue("message", text)
    if (refused := refusal(actions) or invalid) is not None:
        return refused
    message = _message(body, text, actions)
    world.accept(_entry(world, key, message, text, hashlib.sha256(raw).hexdigest()))
    if actions.reply_delay:
        await asyncio.sleep(world.director.seconds(actions.reply_delay))
    if body.get("stream") is True:
        frames = [(event["type"], json.dumps(event)) for event in events(message, actions)]
        return Streamed(frames, actions, world.director.seconds)
    answer = JSONResponse(message, headers={"request-id": f"req_{secrets.token_hex(12)}"})
    return answer if actions.accept_then is None else after_accept(actions.accept_then, answer)


ROUTES = [Route("/v1/messages", messages, methods=["POST"])]


def _read(raw: bytes) -> tuple[dict[str, Any], Response | None]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}, _error(400, "invalid_request_error", "The request body is not valid JSON")
    if not isinstance(body, dict):
        return {}, _error(400, "invalid_request_error", "The request body is not an object")
    checks = {
        "model": isinstance(body.get("model"), str),
        "max_tokens": isinstance(body.get("max_tokens"), int) and body["max_tokens"] > 0,
        "messages": isinstance(body.get("messages"), list) and bool(body["messages"]),
    }
    for name, good in checks.items():
        if not good:
            return body, _error(400, "invalid_request_error", f"{name}: Field required or invalid")
    return body, None


def _message(body: dict[str, Any], text: str, actions: Actions) -> dict[str, Any]:
    words = words_of(body, actions, of=text.encode())
    refused = actions.stop_reason == "refusal"
    content: list[dict[str, Any]] = [] if refused else [{"type": "text", "text": words}]
    if actions.stop_reason == "tool_use":
        name = (body.get("tools") or [{"name": "tool"}])[0]["name"]
        content.append({"type": "tool_use", "id": f"toolu_{secrets.token_hex(8)}", "name": name, "input": {}})
    details = {"type": "refusal", "category": "policy", "explanation": "The sandbox was told to refuse."}
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": content,
        "stop_reason": actions.stop_reason,
        "stop_sequence": None,
        "stop_details": details if refused else None,
        "usage": {
            "input_tokens": len(text) // 4 + 1,
            "output_tokens": 0 if refused else len(words) // 4 + 1,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "service_tier": "standard",
        },
    }


def _entry(world: World, key: str, message: dict[str, Any], text: str, digest: str) -> Entry:
    return Entry(
        kind="anthropic",
        task_id=message["id"],
        account=account_of(key),
        created_at=world.clock.now(),
        path="/v1/messages",
        request_hash=digest,
        input=text,
        webhook=None,
        detail={"model": message["model"], "usage": message["usage"]},
    )


def events(message: dict[str, Any], actions: Actions) -> list[dict[str, Any]]:
    """The stream as a list of events; broken where the script says so."""
    opened = {**message, "content": [], "stop_reason": None}
    told: list[dict[str, Any]] = [{"type": "message_start", "message": opened}]
    for index, block in enumerate(message["content"]):
        is_text = block["type"] == "text"
        empty = {**block, "text": ""} if is_text else block
        told.append({"type": "content_block_start", "index": index, "content_block": empty})
        told.append({"type": "ping"})
        for start in range(0, len(block.get("text", "")), 8):
            delta = {"type": "text_delta", "text": block["text"][start : start + 8]}
            told.append({"type": "content_block_delta", "index": index, "delta": delta})
        told.append({"type": "content_block_stop", "index": index})
    if actions.stream_error:
        return [
            *told[:4],
            {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        ]
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": message["usage"]["output_tokens"]}
    return [*told, {"type": "message_delta", "delta": stop, "usage": usage}, {"type": "message_stop"}]


def _error(status: int, kind: str, message: str) -> JSONResponse:
    body = {
        "type": "error",
        "error": {"type": kind, "message": message},
        "request_id": f"req_{secrets.token_hex(8)}",
    }
    return JSONResponse(body, status_code=status)
