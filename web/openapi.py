"""The OpenAPI document, made from the models that requests are checked against and answers are made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from actors import job_types
from actors.job_types import JobType
from web import models
from web.desk import Desk

_REF = "#/components/schemas/{model}"
_WHY = {
    400: "What came is not JSON, or not all of it came.",
    401: "No good token.",
    402: "Too few credits.",
    403: "A token of the other scope.",
    404: "There is no such thing for whoever asks.",
    408: "The body came too slowly.",
    409: "The Idempotency-Key was used for another request.",
    413: "The body is too large.",
    415: "The body is not application/json.",
    422: "A field, a header or a parameter cannot be used; `error.fields` says which and why.",
    429: "Too much at once: come again after Retry-After.",
    503: "Not just now: come again after Retry-After.",
}
_BODY = (400, 408, 413)


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `scope` None: nobody is asked who they are. `reading`: what the answer's body is."""

    summary: str
    answers: Mapping[int, type[BaseModel] | str]
    scope: str | None = "user"
    refusals: tuple[int, ...] = ()
    parameters: tuple[Mapping[str, Any], ...] = ()
    body: str | None = None


def _parameter(place: str, name: str, schema: Mapping[str, Any], words: str) -> Mapping[str, Any]:
    return {"in": place, "name": name, "required": place == "path", "schema": schema, "description": words}


_JOB_ID = _parameter("path", "job_id", {"type": "string", "format": "uuid"}, "The job's id.")
_KEY = _parameter(
    "header",
    "Idempotency-Key",
    {"type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[!-~]([ -~]*[!-~])?$"},
    "The same key and request of the same user give the same job, unless that one did not complete.",
)
_LAST_EVENT_ID = _parameter(
    "header",
    "Last-Event-ID",
    {"type": "string"},
    "The last id seen: events after it follow. What is no id of this job means everything from the start.",
)
_KIND = _parameter("path", "kind", {"type": "string", "minLength": 1}, "The provider kind.")
_TOKEN = _parameter("path", "token", {"type": "string", "minLength": 1}, "What this deployment signed for one call.")


def _query(model: type[BaseModel]) -> tuple[Mapping[str, Any], ...]:
    """A query string's parameters, from its model."""
    schema = model.model_json_schema()
    found = []
    for name, one in schema["properties"].items():
        # Absent or given: a query string has no null.
        kinds = [kind for kind in one.get("anyOf", [one]) if kind.get("type") != "null"]
        plain = {key: value for key, value in kinds[0].items() if key not in ("title", "default")}
        if "$ref" in plain:
            plain = schema["$defs"][plain["$ref"].rpartition("/")[2]]
        found.append({"in": "query", "name": name, "required": False, "schema": plain})
    return tuple(found)


OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("/jobs", "post"): Operation(
        "Submit a job: 201 for a new one, 200 for the one that its key already stands for.",
        {201: models.Submitted, 200: models.Submitted},
        refusals=(*_BODY, 402, 409, 415, 422, 429, 503),
        parameters=(_KEY,),
        body="submit",
    ),
    ("/jobs", "get"): Operation(
        "Your jobs, newest first.",
        {200: models.JobPage},
        refusals=(422, 503),
        parameters=_query(models.JobQuery),
    ),
    ("/jobs/{job_id}", "get"): Operation(
        "A job with its result or error.", {200: models.Job}, refusals=(404, 503), parameters=(_JOB_ID,)
    ),
    ("/jobs/{job_id}/events", "get"): Operation(
        "A job's events as Server-Sent Events, from where you left off until it ends. `data` is an `Event`.",
        {200: "text/event-stream"},
        refusals=(404, 422, 429, 503),
        parameters=(_JOB_ID, _LAST_EVENT_ID, *_query(models.EventQuery)),
    ),
    ("/jobs/{job_id}/stop", "post"): Operation(
        "Ask a job to end: 200 when it has, 202 when its holder was told. One that has ended stays as it is.",
        {200: models.Stopped, 202: models.Stopped},
        refusals=(404, 503),
        parameters=(_JOB_ID,),
    ),
    ("/webhooks/{kind}/{token}", "post"): Operation(
        "Where a provider calls back. Kept once, then thanked for.",
        {200: models.Kept},
        scope=None,
        refusals=(*_BODY, 401, 404, 503),
        parameters=(_KIND, _TOKEN),
        body="bytes",
    ),
    ("/healthz", "get"): Operation("Whether this process answers.", {200: models.Alive}, scope=None),
    ("/readyz", "get"): Operation(
        "Whether the whole system does its work.", {200: models.Readiness, 503: models.Readiness}, scope=None
    ),
    ("/openapi.json", "get"): Operation("This document.", {200: "application/json"}, scope=None),
    ("/operator", "get"): Operation("The operator's page.", {200: "text/html"}, scope=None),
    ("/operator/state", "get"): Operation(
        "What the page shows.", {200: "application/json"}, scope="operator", refusals=(503,)
    ),
    ("/operator/violations", "get"): Operation(
        "Every invariant that does not hold.", {200: "application/json"}, scope="operator", refusals=(503,)
    ),
}


async def show(desk: Desk, request: Request) -> Response:
    """The document for this deployment's job types."""
    document = describe(job_types.offered(desk.options.web_job_types), server=request.scope.get("root_path", ""))
    return Response(to_json(document), media_type="application/json")


def describe(offered: Mapping[str, JobType], *, server: str = "") -> dict[str, Any]:
    """The document for these job types, each with its own request's schema."""
    bodies = [one for operation in OPERATIONS.values() for one in operation.answers.values()]
    answers = {one for one in bodies if not isinstance(one, str)}
    said = [*sorted(answers, key=lambda one: one.__name__), models.Refused, models.Event]
    asked = [models.SubmitJob, *{one.request: None for one in offered.values()}]
    wanted = [(one, "serialization") for one in said] + [(one, "validation") for one in asked]
    references, definitions = models_json_schema(wanted, ref_template=_REF)  # type: ignore[arg-type]
    refs: dict[Any, Any] = {one: reference for (one, _), reference in references.items()}
    submit = _submit(offered, refs, definitions["$defs"])
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method] = _as_openapi(operation, refs, submit)
    scheme = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Callkeeper", "version": version("callkeeper")},
        "servers": [{"url": server or "/"}],
        "paths": paths,
        "components": {"schemas": definitions["$defs"], "securitySchemes": {"user": scheme, "operator": scheme}},
    }


def _submit(
    offered: Mapping[str, JobType], refs: Mapping[type[BaseModel], Any], schemas: Mapping[str, Any]
) -> dict[str, Any]:
    """One shape a job type, so that a client is checked before it asks."""
    plain = schemas[refs[models.SubmitJob]["$ref"].rpartition("/")[2]]
    if not offered:
        return dict(refs[models.SubmitJob])
    shapes = [
        {**plain, "title": name, "properties": {**plain["properties"], **_typed(name, refs[one.request])}}
        for name, one in offered.items()
    ]
    return {"oneOf": shapes}


def _typed(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"job_type": {"type": "string", "const": name}, "request": request}


def _as_openapi(operation: Operation, refs: Mapping[type[BaseModel], Any], submit: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"summary": operation.summary, "responses": {}}
    for status, answer in operation.answers.items():
        content = {answer: {"schema": {}}} if isinstance(answer, str) else _json(refs[answer])
        made["responses"][str(status)] = {"description": operation.summary, "content": content}
    asked = () if operation.scope is None else (401, 403)
    for status in sorted({*asked, *operation.refusals}):
        made["responses"][str(status)] = {"description": _WHY[status], "content": _json(refs[models.Refused])}
    if operation.parameters:
        made["parameters"] = list(operation.parameters)
    if operation.scope is not None:
        made["security"] = [{operation.scope: []}]
    if operation.body == "submit":
        made["requestBody"] = {"required": True, "content": _json(submit)}
    elif operation.body is not None:
        made["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    return made


def _json(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
