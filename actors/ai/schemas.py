"""The one shape that an answer may have, by task, and whether it has it. Pure."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from jsonschema import Draft202012Validator, ValidationError

from actors.ai.requests import Classify, ClassifyMany, ExtractData, ExtractedField, GenerateText, Task

_TYPES = {"text": "string", "number": "number", "boolean": "boolean"}
_MOST_SAID = 400
_MOST_QUOTED = 120
_MOST_PROBLEMS = 3
_MOST_DIGITS = 300  # the store keeps whole numbers of about so many

Output = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Malformed:
    """No JSON, or not all of it: the same question may get a whole answer another time.

    `problem` is for the model alone, and may quote what was said; `where` says no more than may be kept.
    """

    problem: str
    where: str


@dataclass(frozen=True, slots=True)
class Misfit:
    """JSON of another shape than was asked for; `problem` and `where` as above."""

    problem: str
    where: str


def schema_of(task: Task) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the task's output: an object of exactly these fields."""
    match task:
        case GenerateText():
            return _object({"text": {"type": "string", "minLength": 1, "maxLength": task.max_characters}})
        case Classify():
            return _object({"choice": {"type": "string", "enum": list(task.choices)}})
        case ClassifyMany():
            one = {"type": "string", "enum": list(task.choices)}
            return _object({"choices": {"type": "array", "items": one}})
        case ExtractData():
            return _object({field.name: _schema_of_field(field) for field in task.fields})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _schema_of_field(field: ExtractedField) -> dict[str, Any]:
    one: dict[str, Any] = {"type": _TYPES.get(field.type, "string")}
    if field.values is not None:
        one["enum"] = list(field.values)
    if field.nullable:
        one = {"anyOf": [one, {"type": "null"}]}
    return {**one, "description": field.description} if field.description else one


def read(task: Task, text: str) -> Output | Malformed | Misfit:
    """The output in a model's answer, or what is wrong with it, in a few words that may be shown to the model."""
    if not text.strip():
        return Malformed("the answer is empty", "empty")
    if isinstance(task, GenerateText):
        found: Any = {"text": text.strip()}  # a text is its own best form
    else:
        try:
            found = json.loads(_unfenced(text), parse_constant=_refuse, parse_int=_whole, parse_float=_finite)
        except (ValueError, RecursionError) as error:
            return Malformed(f"the answer is not JSON: {error}"[:_MOST_SAID], "not JSON")
    problems = tuple(islice(Draft202012Validator(schema_of(task)).iter_errors(found), _MOST_PROBLEMS))
    if problems:
        return Misfit(
            "; ".join(
                f"{_path(one)} breaks {one.validator} {str(one.validator_value)[:_MOST_QUOTED]}" for one in problems
            ),
            "; ".join(f"{_path(one)}: {one.validator}" for one in problems),
        )
    if isinstance(task, ClassifyMany):
        chosen = set(found["choices"])
        return {"choices": [choice for choice in task.choices if choice in chosen]}
    return dict(found)


def _unfenced(text: str) -> str:
    """Without the fence that models like to put around JSON."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```"):
        first, _, rest = bare[3:-3].partition("\n")
        if first.strip().lower() in ("", "json"):
            return rest
    return bare


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word[:40]} is no number that can be kept")


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= _MOST_DIGITS else _refuse(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse(digits)


def _path(problem: ValidationError) -> str:
    """Through the fields that were asked for: what the model added is reported at the object around it."""
    return ".".join(map(str, problem.absolute_path)) or "the answer"
