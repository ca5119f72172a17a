"""Bodies and query strings: read within limits of size and time, and understood strictly."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from store.hygiene import clean_text
from web.problems import Problem, invalid

M = TypeVar("M", bound=BaseModel)

MAX_BODY = 1024 * 1024  # bytes; a request's own limit is lower, but escapes and spaces count here
_READ_WITHIN = 30.0  # seconds


async def read_body(request: Request, *, limit: int = MAX_BODY) -> bytes:
    """The body's raw bytes. Raises Problem: 413 over `limit` bytes, 408 when they come too slowly."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        _too_large(limit)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(_READ_WITHIN):
            async for part in request.stream():
                size += len(part)
                if size > limit:
                    _too_large(limit)
                parts.append(part)
    except TimeoutError:
        words = f"the body did not come within {_READ_WITHIN:g} s"
        raise Problem(408, "too_slow", words, headers={"Connection": "close"}) from None
    return b"".join(parts)


def _too_large(limit: int) -> NoReturn:
    # The rest of it is not read: it would be taken for the next request.
    headers = {"Connection": "close"}
    raise Problem(413, "too_large", f"the body has more than {limit} bytes: pass large inputs by URL", headers=headers)


async def read_model(request: Request, model: type[M]) -> M:
    """The JSON body as `model`. Raises Problem: 415, 413, 400 for what is not JSON, 422 naming the fields."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        words = f"the body is {clean_text(kind, limit=80) or 'of no named type'}: send application/json"
        raise Problem(415, "unsupported_media_type", words)
    return _checked(model, _parsed(await read_body(request)))


def read_query(request: Request, model: type[M]) -> M:
    """The query string as `model`. Raises Problem 422; a name that is given twice is refused, not guessed at."""
    values: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in values:
            raise invalid([(name, "is given more than once: send it once")])
        values[name] = value
    return _checked(model, values)


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_no_such_number)
    except RecursionError:
        raise Problem(400, "bad_json", "the body is nested too deeply: flatten it") from None
    except ValueError as error:  # also what is not UTF-8
        raise Problem(400, "bad_json", f"the body is not JSON: {_first_words(error)}") from None


def _no_such_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")


def _first_words(error: ValueError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"byte {error.start} is not UTF-8"
    return str(error)[:200]


def _checked(model: type[M], value: Any) -> M:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(_problems(error)) from None


def _problems(error: ValidationError) -> Sequence[tuple[str, str]]:
    """Field and problem. Values are not repeated: what was misplaced may be a secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    return [(".".join(map(str, one["loc"])) or "(body)", one["msg"]) for one in found[:20]]


def json_answer(body: BaseModel, status: int = 200, *, headers: dict[str, str] | None = None) -> Response:
    """An answer that no cache keeps."""
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(body.model_dump_json(), status, headers, media_type="application/json")
