"""Is this process there, and does the whole system do its work. Asked without a token, by whatever watches it."""

from starlette.requests import Request
from starlette.responses import Response

from web.bodies import json_answer
from web.desk import Desk
from web.models import Alive, CheckResult, Readiness


async def alive(_desk: Desk, _request: Request) -> Response:
    """200 as long as this process answers; asks nobody else, so that a database that is away restarts nothing."""
    return json_answer(Alive(status="ok"))


async def ready(desk: Desk, _request: Request) -> Response:
    """200, or 503 naming every check that fails: a late pass, no worker, a queue nobody claims from."""
    checks = await desk.readiness()
    results = [CheckResult(name=check.name, ok=check.ok, said=check.said) for check in checks]
    well = all(check.ok for check in checks)
    return json_answer(Readiness(ready=well, checks=results), 200 if well else 503)
