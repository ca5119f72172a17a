"""Answers to questions that want one JSON object: made by the schema that the question shows, well or badly."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from providers.sandbox.script import Actions

_PROSE = "It could be one of several; I would say"


def words_of(body: Mapping[str, Any], actions: Actions, *, of: bytes) -> str:
    """What the model says: the script's own text, an object by the question's schema, or something made of it."""
    if actions.text is not None:
        return actions.text
    seed = hashlib.sha256(of).hexdigest()[:16]
    schema = _schema_in(body)
    if schema is None:
        return f"sandbox reply {seed}"
    match actions.answer:
        case "fits":
            return json.dumps(_made(schema, seed))
        case "misfits":
            return json.dumps({"unasked": _made(schema, seed)})
        case "malformed":
            return f"{_PROSE} {json.dumps(_made(schema, seed))[:-1]}"


def _schema_in(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """By the API's own field, or on a line of the messages."""
    config = body.get("output_config")
    form = config.get("format") if isinstance(config, dict) else None
    if isinstance(form, dict) and _is_schema(form.get("schema")):
        found: Mapping[str, Any] = form["schema"]
        return found
    return next(_told(body.get("messages")), None)


def _told(messages: Any) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for line in content.splitlines() if isinstance(content, str) else ():
            if line.startswith('{"type": "object"'):
                try:
                    schema = json.loads(line)
                except ValueError:
                    continue
                if _is_schema(schema):
                    yield schema


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("properties"), dict)


def _made(schema: Mapping[str, Any], seed: str) -> Any:
    if "anyOf" in schema:
        return _made(schema["anyOf"][0], seed)
    if "enum" in schema:
        return schema["enum"][int(seed, 16) % len(schema["enum"])]
    match schema.get("type"):
        case "object":
            return {name: _made(one, seed) for name, one in schema["properties"].items()}
        case "array":
            return [_made(schema["items"], seed)]
        case "number":
            return int(seed[:3], 16) / 4
        case "boolean":
            return int(seed, 16) % 2 == 0
        case _:
            return f"sandbox {seed[:8]}"
