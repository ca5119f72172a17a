"""What an app asks with a submit, checked before anything is stored."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from store.errors import InvalidRequest
from store.hygiene import check_request, clean_text, looks_secret
from store.line import MOST_PRIORITY

_MAX_WORD = 256  # bytes


class BadRequest(InvalidRequest):
    """The request does not fit its job type's model; the message lists every field."""

    def __init__(self, job_type: str, problems: list[tuple[str, str]]) -> None:
        (first, problem), *others = [(path or "(all)", problem) for path, problem in problems]
        more = "".join(f"; {path}: {other}" for path, other in others)
        super().__init__(first, f"{problem}{more} (job type {job_type!r})")
        self.problems = problems


def validated(name: str, model: type[BaseModel], request: BaseModel | Mapping[str, Any]) -> BaseModel:
    """The request as `model`, by its own words. Raises BadRequest, or what `check_request` raises."""
    if isinstance(request, model):
        return request
    if isinstance(request, BaseModel):
        request = request.model_dump(mode="json")
    check_request(request)
    try:
        return model.model_validate(request)
    except ValidationError as error:
        problems = [
            (".".join(str(part) for part in problem["loc"]), _problem(problem))
            for problem in error.errors(include_url=False)
        ]
        raise BadRequest(name, problems) from None


def _problem(problem: Any) -> str:
    value = problem.get("input")
    shown = f" (got {clean_text(repr(value), limit=80)})" if isinstance(value, str | int | float) else ""
    return f"{problem['msg']}{shown}"


def check_words(words: Mapping[str, str | None]) -> None:
    """Names that become columns. Raises InvalidRequest."""
    for field, value in words.items():
        if value is not None and not (0 < len(value.encode(errors="replace")) <= _MAX_WORD and "\x00" not in value):
            raise InvalidRequest(field, f"has {len(value)} characters: send 1 to 256 bytes of text without NUL")
        if value is not None and looks_secret(value):
            raise InvalidRequest(field, "looks like a key, and secrets are never stored: choose another")


def check_choices(visibility: str | None, priority: int, price: int, payer: str | None, name: str) -> None:
    """What is chosen with the request of job type `name`. Raises InvalidRequest."""
    if visibility not in (None, "public", "private"):
        raise InvalidRequest("visibility", f"is {clean_text(visibility, limit=40)!r}: send public, private or nothing")
    if not -MOST_PRIORITY <= priority <= MOST_PRIORITY:
        raise InvalidRequest("priority", f"is {priority}: send -{MOST_PRIORITY} to {MOST_PRIORITY}")

    if price < 0:
        raise InvalidRequest("price", f"of job type {name!r} came out as {price}: it must not be negative")
    if price > 0 and payer is None:
        raise InvalidRequest("account_id", f"is missing, but job type {name!r} reserves {price} credits: name who pays")
