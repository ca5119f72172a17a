"""The app: its routes, one shape for every refusal, and what opens and closes with it."""

import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from actors.settings import Settings, settings
from web import callbacks, events, health, jobs, openapi, operator
from web.desk import Desk
from web.problems import Problem, answer_exception, problem_of

log = logging.getLogger("callkeeper.web")

Handler = Callable[[Desk, Request], Awaitable[Response]]

PATHS: Mapping[str, Mapping[str, Handler]] = {
    "/jobs": {"POST": jobs.submit, "GET": jobs.listed},
    "/jobs/{job_id}": {"GET": jobs.show},
    "/jobs/{job_id}/events": {"GET": events.follow},
    "/jobs/{job_id}/stop": {"POST": jobs.stop},
    "/webhooks/{kind}/{token}": {"POST": callbacks.take_in},
    "/healthz": {"GET": health.alive},
    "/readyz": {"GET": health.ready},
    "/openapi.json": {"GET": openapi.show},
    "/operator": {"GET": operator.page},
    "/operator/state": {"GET": operator.state},
    "/operator/violations": {"GET": operator.violations},
}


def app(options: Settings | None = None) -> Starlette:
    """The whole API as an app of its own: to be served, or mounted in another.

    `options` are by default those of the environment. A mounted app opens what it needs at first use; whoever wants it
    closed in order enters `lifespan(app)` in its own. Raises SettingsError.
    """
    desk = Desk(options or settings())

    @asynccontextmanager
    async def run(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await desk.close()

    refusals = {HTTPException: answer_exception}
    made = Starlette(routes=_routes(desk), exception_handlers=refusals, lifespan=run)
    made.state.desk = desk
    return made


def routes(options: Settings | None = None) -> list[Route]:
    """The same routes for an app that wants them among its own. Raises SettingsError."""
    return _routes(Desk(options or settings()))


def _routes(desk: Desk) -> list[Route]:
    return [
        Route(path, _endpoint(desk, path, handlers), methods=list(handlers), name=path)
        for path, handlers in PATHS.items()
    ]


def _endpoint(desk: Desk, path: str, handlers: Mapping[str, Handler]) -> Callable[[Request], Awaitable[Response]]:
    """One path. Logs which, never what: paths, headers and bodies may hold what is secret."""

    async def endpoint(request: Request) -> Response:
        started = time.monotonic()
        handler = handlers.get(request.method) or handlers["GET"]  # a HEAD is a GET without its body
        try:
            answer = await handler(desk, request)
        except Exception as error:  # noqa: BLE001  # each becomes an answer
            answer = _answer(path, error)
        took_ms = (time.monotonic() - started) * 1_000
        log.info("web.answered method=%s path=%s status=%s ms=%.1f", request.method, path, answer.status_code, took_ms)
        return answer

    return endpoint


def _answer(path: str, error: Exception) -> Response:
    problem = problem_of(error)
    if problem is None:
        # Without the error's words: they may quote what was sent.
        places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)[-4:]]
        log.error("web.failed path=%s error=%s at=%s", path, type(error).__name__, " < ".join(reversed(places)))
        problem = Problem(500, "failed", "this is a bug of ours; it has been logged")
    return problem.answer()


@asynccontextmanager
async def lifespan(mounted: Starlette) -> AsyncIterator[Mapping[str, Any]]:
    """For the lifespan of an app that mounts this one: closes streams, threads and connections at its end."""
    async with mounted.router.lifespan_context(mounted) as state:
        yield state or {}
