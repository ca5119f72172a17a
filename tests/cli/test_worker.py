"""`callkeeper worker` and `sandbox` as real processes: what they check first, what they run, how they end."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.settings import VENDOR_KEYS
from providers.registry import KINDS
from providers.sandbox import Sandbox, files

Cli = Callable[..., Any]

MODULE = """
from pydantic import BaseModel
from actors import job_type

class Sum(BaseModel):
    numbers: list[int]

@job_type("cli-sum", request=Sum)
def add(context, request):
    context.progress(0.5)
    if not request.numbers:
        raise ValueError("nothing to add")
    return {"sum": sum(request.numbers)}
"""


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queues", "calls,typo"), "there is no queue 'typo'; there are calls, large, maintenance, results"),
        (("--queues", ","), "--queues is empty"),
        (("--processes", "0"), "--processes"),
        (("--module", "no.such.module"), "--module: module 'no.such.module' cannot be imported"),
    ],
)
def test_a_worker_that_cannot_start_says_why(cli: Cli, on_database: str, arguments: tuple[str, ...], said: str) -> None:
    result = cli("worker", *arguments)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_a_module_of_the_settings_is_named_too(cli: Cli, on_database: str, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("CALLKEEPER_MODULES", "no_such_module")
    assert "CALLKEEPER_MODULES: module 'no_such_module'" in cli("worker").stderr


def test_an_apps_own_jobs_run_and_the_worker_ends_on_sigterm(
    start: Callable[..., Any], folder: Path, database_url: str
) -> None:
    (folder / "clisums.py").write_text(MODULE)
    worker = start("worker", "--module", "clisums", "--threads", "2", DATABASE_URL=database_url)
    done = start(
        "submit", "cli-sum", "--module", "clisums", "--input", '{"numbers": [20, 22]}', "--follow",
        DATABASE_URL=database_url,
    )  # fmt: skip
    assert done.wait() == 0, done.output + worker.output
    job_id = done.output.split()[1]
    shown = start("job", job_id, "--json", DATABASE_URL=database_url)
    assert shown.wait() == 0
    assert json.loads(shown.output)["result"] == {"sum": 42}

    broken = start(
        "submit", "cli-sum", "--module", "clisums", "--input", '{"numbers": []}', "--follow", DATABASE_URL=database_url
    )
    assert broken.wait() == 1, broken.output
    assert "failed (handler_error: ValueError: nothing to add)" in broken.output

    worker.process.send_signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.output
    assert "threads=2" in worker.output


def test_a_providers_own_call_from_the_command_line(
    start: Callable[..., Any], database_url: str, sandbox: Sandbox, folder: Path
) -> None:
    kinds = {"replicate-prediction": {"base_url": sandbox.replicate_url, "first_poll": 0.1, "poll_every": 0.2}}
    environment = {
        "DATABASE_URL": database_url,
        "REPLICATE_API_TOKEN": "r8_" + "x" * 37,
        "CALLKEEPER_KINDS": json.dumps(kinds),
        "CALLKEEPER_INSECURE_MEDIA_HOSTS": sandbox.netloc,
    }
    worker = start("worker", **environment)
    request = json.dumps({"model": "acme/draw", "input": {"prompt": "a red fox"}})
    done = start("submit", "replicate-prediction", "--input", request, "--follow", **environment)
    assert done.wait() == 0, done.output + worker.output
    kinds_seen = [line.split()[2] for line in done.output.splitlines() if re.match(r" *\d+  ", line)]
    assert kinds_seen[0] == "queued"
    assert "call_accepted" in kinds_seen
    assert kinds_seen[-1] == "completed"
    assert sandbox.totals()["replicate"] == 1
    assert list((folder / ".callkeeper" / "media").rglob("*png"))
    assert "r8_" not in done.output + worker.output


VIDEOS = {
    "openrouter-video": (
        {"model": "acme/film-1", "prompt": "a red fox"},
        [
            {"when": {"route": "download", "nth": [2]}, "do": {"download": "short", "fraction": 0.95}}
        ],  # behind a redirect
        "result_truncated",
    ),
    "heygen-video": (
        {"avatar_id": "anna", "script": "Hello", "voice_id": "v1"},
        [{"when": {"route": "create"}, "do": {"accept_then": "drop"}}],
        "call_adopted",
    ),
}


@pytest.mark.parametrize("kind", list(VIDEOS))
def test_a_video_comes_home_whole_and_is_billed_once(
    start: Callable[..., Any], database_url: str, sandbox: Sandbox, folder: Path, kind: str
) -> None:
    """One file arrives cut, without a word from HTTP; one create is never answered, and found by its title."""
    request, rules, seen = VIDEOS[kind]
    sandbox.reset()
    sandbox.script({"rules": rules, "defaults": {"content": "redirect"}})
    base_url = sandbox.openrouter_url if kind == "openrouter-video" else sandbox.heygen_url
    quick = {"base_url": base_url, "first_poll": 0.1, "poll_every": 0.2}
    environment = {
        "DATABASE_URL": database_url,
        "OPENROUTER_API_KEY": "or-key",
        "HEYGEN_API_KEY": "hg-key",
        "CALLKEEPER_KINDS": json.dumps({kind: quick}),
        "CALLKEEPER_INSECURE_MEDIA_HOSTS": f"{sandbox.netloc},localhost:{sandbox.port}",
        "CALLKEEPER_RETRY_BASE": "0.2",
    }
    worker = start("worker", **environment)
    done = start("submit", kind, "--input", json.dumps(request), "--follow", **environment)
    assert done.wait() == 0, done.output + worker.output
    assert seen in done.output + worker.output
    assert len(sandbox.bill()) == 1
    (kept,) = (folder / ".callkeeper" / "media").rglob("*mp4")
    assert kept.read_bytes() == files.mp4(sandbox.bill()[0]["task_id"])


def test_the_sandbox_serves_and_says_how_to_use_it(start: Callable[..., Any], until: Callable[..., None]) -> None:
    running = start("sandbox", "--port", "0")
    until(lambda: "HEYGEN_API_KEY=" in running.output, lambda: running.output)
    exported = dict(line.strip().removeprefix("export ").split("=", 1) for line in running.output.splitlines()[1:])
    assert set(exported) == {
        "CALLKEEPER_KINDS", "CALLKEEPER_INSECURE_MEDIA_HOSTS", *VENDOR_KEYS.values(),
    }  # fmt: skip
    assert set(json.loads(exported["CALLKEEPER_KINDS"].strip("'"))) == set(KINDS)
    totals = f"http://{exported['CALLKEEPER_INSECURE_MEDIA_HOSTS'].split(',')[0]}/_sandbox/bill?totals=1"
    until(lambda: _answers(totals), lambda: running.output)
    running.process.send_signal(signal.SIGTERM)
    assert running.wait() == 0, running.output


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(json.load(response)["totals"]["all"] == 0)
    except OSError:
        return False


def test_a_sandbox_that_cannot_start_says_why(cli: Cli, tmp_path: Path, sandbox: Sandbox) -> None:
    (tmp_path / "script.json").write_text('{"defaults": {"latencyy": 1}}')
    wrong = cli("sandbox", "--script", tmp_path / "script.json")
    assert (wrong.exit_code, "latencyy" in wrong.stderr) == (2, True), wrong.stderr
    assert "cannot be used" in cli("sandbox", "--script", tmp_path / "none.json").stderr
    taken = cli("sandbox", "--port", sandbox.port)
    assert (taken.exit_code, f"--port {sandbox.port} cannot be used" in taken.stderr) == (2, True), taken.stderr
