"""The operator's page and the OpenAPI document as they are served, and the API inside other apps and under its command."""

import base64
import hashlib
import re
import signal
from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from tests.web.conftest import Command, Site, free_port, until

NASTY = "<img src=x onerror=alert(1)>\"'</script>"
HOST = """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import web
import tests.web.kit

api = web.app()
app = Starlette(
    routes=[Mount("/inner", api), *web.routes(), Route("/mine", lambda request: PlainTextResponse("mine"))],
    lifespan=lambda _app: web.lifespan(api),
)
"""


def test_the_page_runs_nothing_but_its_own_script_and_makes_no_html_of_values(site: Site) -> None:
    answer = httpx.get(f"{site.address}/operator")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = answer.headers["content-security-policy"]
    (script,) = re.findall(r"<script>(.*?)</script>", answer.text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for maker in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc", "DOMParser"):
        assert maker not in script, "whatever a value is, it may only become text"
    assert not re.search(r"https?://", answer.text), "nothing is fetched from elsewhere"


def test_the_page_is_told_what_is_there(site: Site) -> None:
    site.do("insert into callkeeper.alerts (subject) values (:subject) on conflict do nothing", subject=NASTY)
    client = site.client(site.operator_token())
    job_id = site.of(NASTY).post("/jobs", json={"job_type": "sum", "request": {"numbers": []}}).json()["job_id"]
    state = client.get("/operator/state").json()
    assert state["jobs"][0]["id"] == job_id
    assert state["jobs"][0]["user_id"] == NASTY
    assert NASTY in [alert["subject"] for alert in state["alerts"]]
    assert state["counts"]["queued"] >= 1
    assert {"passes", "queues", "workers", "checks"} <= set(state)
    assert client.get("/operator/violations").json() == {"violations": []}


def test_the_document_describes_the_apps_own_job_types_only(site: Site) -> None:
    document = httpx.get(f"{site.address}/openapi.json").json()
    body = document["paths"]["/jobs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    offered = {
        shape["properties"]["job_type"]["const"]: shape["properties"]["request"]["$ref"] for shape in body["oneOf"]
    }
    assert offered == {"sum": "#/components/schemas/Sum", "paid-poem": "#/components/schemas/Poem"}
    assert document["components"]["schemas"]["Sum"]["properties"]["numbers"]["maxItems"] == 20


def test_it_lives_inside_another_app(make_site: Callable[..., Site]) -> None:
    site = make_site()
    (site.folder / "hosting.py").write_text(HOST)
    arguments = ("hosting:app", "--port", str(site.port), "--app-dir", str(site.folder))
    host = Command(site.folder, site.env, *arguments, module="uvicorn")
    site.commands.append(host)
    client = site.of("ann")

    def answers() -> bool:
        assert host.process.poll() is None, host.text()
        with suppress(httpx.TransportError):
            return client.get("/mine").text == "mine"
        return False

    until(answers, what="the hosting app")
    job = {"job_type": "sum", "request": {"numbers": [1]}}
    inner = client.post("/inner/jobs", json=job)
    assert (inner.status_code, inner.headers["location"]) == (201, f"/inner/jobs/{inner.json()['job_id']}")
    assert client.get(inner.headers["location"]).status_code == 200
    assert client.get(f"/jobs/{inner.json()['job_id']}").status_code == 200, "and among its own paths"
    assert client.get("/inner/openapi.json").json()["servers"] == [{"url": "/inner"}]
    assert client.post(f"/jobs/{inner.json()['job_id']}/stop").json()["status"] == "cancelled"
    with client.stream("GET", f"/inner/jobs/{inner.json()['job_id']}/events") as stream:
        assert b"event: cancelled" in stream.read()
    host.process.send_signal(signal.SIGTERM)
    host.process.wait(20)
    assert "Traceback" not in host.text()


@pytest.mark.parametrize("processes", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_the_command_serves_beside_an_apps_own_folder_of_that_name(
    make_site: Callable[..., Site], processes: str
) -> None:
    site = make_site()
    (site.folder / "web").mkdir()
    (site.folder / "web" / "__init__.py").write_text("raise ImportError('the wrong one')")
    site.web = site.run("web", "--port", str(site.port), "--processes", processes, "--module", "tests.web.kit")
    client = site.of("ann")

    def answers() -> bool:
        assert site.web is not None
        assert site.web.process.poll() is None, site.web.text()
        with suppress(httpx.TransportError):
            return client.get("/jobs").status_code == 200
        return False

    until(answers, what="the web processes")
    assert site.web.terminate() == 0, site.web.text()


def test_the_command_says_why_it_cannot_serve(make_site: Callable[..., Site]) -> None:
    site = make_site(CALLKEEPER_WEB_JOB_TYPES="sum,no-such-type")
    refused = site.run("web", "--port", str(free_port()))
    assert refused.process.wait(60) == 2
    assert "job type 'no-such-type' is not registered" in refused.text()
