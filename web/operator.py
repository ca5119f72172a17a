"""The operator's page, and what it shows: jobs live, violations, alerts, passes. Behind tokens of its own scope."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from actors import readiness
from store import health, reads
from store.engine import Database
from web.auth import require_operator
from web.desk import Desk

_JOBS_SHOWN = 50


async def page(_desk: Desk, _request: Request) -> Response:
    """The page itself holds nothing; what it shows, it asks for with the operator's token."""
    html, policy = _page()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return Response(html, 200, headers, media_type="text/html")


@cache
def _page() -> tuple[str, str]:
    """The HTML, and a policy under which nothing runs on it but its own script, whatever a job is called."""
    html = (resources.files("web") / "operator.html").read_text(encoding="utf-8")
    script, style = (_digest(re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)) for tag in ("script", "style"))
    policy = f"default-src 'none'; script-src {script}; style-src {style}; connect-src 'self';"
    return html, policy + " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def _digest(found: re.Match[str] | None) -> str:
    text = found.group(1) if found else ""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


async def state(desk: Desk, request: Request) -> Response:
    """What changes all the time, in one answer."""
    await require_operator(desk, request)
    checks = await desk.readiness()
    seen = await desk.on_thread(_look, desk.db)
    return _answer({**seen, "checks": [{"name": one.name, "said": one.said} for one in checks]})


def _look(db: Database) -> Mapping[str, Any]:
    passes = db.once(health.passes)
    return {
        "jobs": db.once(health.newest_jobs, status=None, user_id=None, at_most=_JOBS_SHOWN),
        "counts": db.once(reads.counts),
        "passes": [{**one, "late": one["name"] in readiness.late(passes)} for one in passes],
        "alerts": db.once(health.alerts),
        "queues": db.once(health.queues),
        "workers": db.once(health.live_workers),
    }


async def violations(desk: Desk, request: Request) -> Response:
    """Every invariant that does not hold. Reads all jobs: on a large system it takes long, and is then refused."""
    await require_operator(desk, request)
    return _answer({"violations": await desk.once(reads.violations)})


def _answer(body: Mapping[str, Any]) -> Response:
    return Response(
        to_json(body, inf_nan_mode="null"), headers={"Cache-Control": "no-store"}, media_type="application/json"
    )
