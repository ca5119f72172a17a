"""The fake KIE's chat models: Claude's words on one route, OpenAI's on a route a model. One request, one bill."""

import asyncio
import hashlib
import json
import secrets
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from providers.sandbox.answers import words_of
from providers.sandbox.anthropic import events
from providers.sandbox.bill import Entry
from providers.sandbox.faults import Answer, Streamed, after_accept
from providers.sandbox.kie import KIND, account_in
from providers.sandbox.script import Actions
from providers.sandbox.world import canonical, refusal, world_of

CREDITS = 1.5
_REASONS = {"end_turn": "stop", "max_tokens": "length", "refusal": "content_filter", "tool_use": "tool_calls"}


async def chat(request: Request) -> Answer:
    """Either shape; without `stream: false` the answer is a stream, as KIE's default is."""
    world, account = world_of(request), account_in(request)
    if account is None:
        return _problem(401, "authentication_error", "invalid key")
    raw = await request.body()
    body = _read(raw)
    text = canonical(body)
    actions = await world.cue("message", text)
    if (refused := refusal(actions)) is not None:
        return refused
    model = request.path_params.get("model") or body.get("model")
    if not isinstance(model, str) or not isinstance(body.get("messages"), list) or not body["messages"]:
        return _problem(400, "invalid_request_error", "model and messages are required")
    words = words_of(body, actions, of=raw)
    make = _completion if "model" in request.path_params else _message
    answer = make(model, words, actions, tokens=len(text) // 4 + 1)
    world.accept(
        Entry(
            kind=KIND,
            task_id=answer["id"],
            account=account,
            created_at=world.clock.now(),
            path=request.url.path,
            request_hash=hashlib.sha256(raw).hexdigest(),
            input=text,
            webhook=None,
            detail={"model": model},
        )
    )
    if actions.reply_delay:
        await asyncio.sleep(world.director.seconds(actions.reply_delay))
    if body.get("stream", True):
        told = _chunks(answer, actions) if "model" in request.path_params else _named(answer, actions)
        return Streamed(told, actions, world.director.seconds)
    whole = JSONResponse(answer)
    return whole if actions.accept_then is None else after_accept(actions.accept_then, whole)


ROUTES = [
    Route("/claude/v1/messages", chat, methods=["POST"]),
    Route("/{model}/v1/chat/completions", chat, methods=["POST"]),
]


def _read(raw: bytes) -> dict[str, Any]:
    try:
        body = json.loads(raw)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _message(model: str, words: str, actions: Actions, *, tokens: int) -> dict[str, Any]:
    content: list[dict[str, Any]] = [] if actions.stop_reason == "refusal" else [{"type": "text", "text": words}]
    if actions.stop_reason == "tool_use":
        content.append({"type": "tool_use", "id": f"toolu_{secrets.token_hex(8)}", "name": "tool", "input": {}})
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        "stop_reason": actions.stop_reason,
        "stop_sequence": None,
        "usage": {"input_tokens": tokens, "output_tokens": len(words) // 4 + 1},
        "credits_consumed": CREDITS,
    }


def _completion(model: str, words: str, actions: Actions, *, tokens: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": words}
    if actions.stop_reason == "tool_use":
        called = {"id": f"call_{secrets.token_hex(8)}", "type": "function", "function": {"name": "tool"}}
        message["tool_calls"] = [called]
    if actions.stop_reason == "refusal":
        message["content"] = None
    spent = {"prompt_tokens": tokens, "completion_tokens": len(words) // 4 + 1}
    reason = _REASONS.get(actions.stop_reason, actions.stop_reason)
    return {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason}],
        "usage": {**spent, "total_tokens": sum(spent.values())},
    }


def _named(message: dict[str, Any], actions: Actions) -> list[tuple[str | None, str]]:
    """Claude's message as its own events, the credits in the last but one."""
    told = [(event["type"], event) for event in events(message, actions)]
    for kind, event in told:
        if kind == "message_delta":
            event["credits_consumed"] = message["credits_consumed"]
    return [(kind, json.dumps(event)) for kind, event in told]


def _chunks(answer: dict[str, Any], actions: Actions) -> list[tuple[str | None, str]]:
    """A completion in chunks, in OpenAI's words."""
    (choice,) = answer["choices"]
    message, text = choice["message"], choice["message"]["content"] or ""
    head = {"id": answer["id"], "object": "chat.completion.chunk", "created": 0, "model": answer["model"]}

    def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> tuple[None, str]:
        return None, json.dumps({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more})

    told = [chunk({"role": "assistant", "content": ""})]
    told += [chunk({"content": text[start : start + 8]}) for start in range(0, len(text), 8)]
    for index, call in enumerate(message.get("tool_calls", ())):
        told.append(chunk({"tool_calls": [{"index": index, **call}]}))
    if actions.stream_error:
        return [*told[:4], (None, json.dumps({"error": {"type": "overloaded_error", "message": "Overloaded"}}))]
    spent = {"usage": answer["usage"], "credits_consumed": CREDITS}
    return [*told, chunk({}, choice["finish_reason"], **spent), (None, "[DONE]")]


def _problem(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": kind}}, status_code=status)
