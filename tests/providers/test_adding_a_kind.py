"""The page that adds a kind: its code, run as it stands there, against a server that plays its provider."""

import asyncio
import json
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType

import httpx
import pytest

from providers.contract import Account, Call, Failed, Missing, Running, Succeeded
from providers.errors import Fate, ProviderError
from providers.http import make_client
from providers.registry import check
from providers.webhooks import sign

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-kind.md"
(CODE,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ACCOUNT = Account("default", "https://api.acme.example", "key")
SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="


@pytest.fixture(scope="module")
def kind():
    module = ModuleType("acme")
    exec(compile(CODE, str(PAGE), "exec"), module.__dict__)
    (entry,) = module.KINDS
    return check(entry)


class Acme:
    """The provider that does not exist. `say` answers the next request instead of it."""

    def __init__(self):
        self.tasks, self.said = {}, []

    def say(self, status, body):
        self.said.append(httpx.Response(status, content=body if isinstance(body, bytes) else json.dumps(body).encode()))

    def __call__(self, request):
        assert request.headers["authorization"] == "Bearer key"
        if request.method == "POST":
            task_id = f"t{len(self.tasks)}"
            self.tasks[task_id] = {"id": task_id, "state": "working", **json.loads(request.content)}
        if self.said:
            return self.said.pop(0)
        if request.method == "POST":
            return httpx.Response(201, json=self.tasks[task_id])
        if "reference" in request.url.params:
            return httpx.Response(200, json={"tasks": list(self.tasks.values())})
        task = self.tasks.get(request.url.path.rpartition("/")[2])
        return httpx.Response(200, json=task) if task else httpx.Response(404, json={"error": "no such task"})


@pytest.fixture
def acme():
    return Acme()


def call(request, key="key-1"):
    return Call(request, {}, key, datetime.now(UTC), "https://app.example/hook")


def run(acme, step):
    async def main():
        async with make_client(transport=httpx.MockTransport(acme)) as client:
            return await step(client)

    return asyncio.run(main())


FOX = {"prompt": "a red fox"}


def test_it_is_made_polled_and_found(kind, acme):
    provider = kind.provider
    task_id = run(acme, lambda client: provider.create(client, ACCOUNT, call(FOX)))
    assert acme.tasks[task_id]["callback"] == "https://app.example/hook"

    def poll():
        return run(acme, lambda client: provider.poll(client, ACCOUNT, call({}), task_id))

    assert poll() == Running(word="working")
    acme.tasks[task_id] |= {"state": "dreaming"}
    assert poll() == Running(word="dreaming", known=False)
    acme.tasks[task_id] |= {"state": "done", "files": ["https://x.files.acme.example/1.png"]}
    assert isinstance(poll(), Succeeded)
    acme.tasks[task_id] |= {"state": "error", "reason": "out of paint"}
    assert poll() == Failed("task_failed", "out of paint")
    assert list(run(acme, lambda client: provider.find(client, ACCOUNT, call(FOX)))) == [task_id]
    assert list(run(acme, lambda client: provider.find(client, ACCOUNT, call(FOX, key="key-2")))) == []
    assert run(acme, lambda client: provider.poll(client, ACCOUNT, call({}), "nobody")) == Missing()


@pytest.mark.parametrize(
    ("status", "body", "code", "fate"),
    [
        (400, {"error": "no"}, "request_invalid", Fate.REJECTED),
        (429, {"error": "slow"}, "rate_limited", Fate.REJECTED),
        (400, b"<html>", "unexpected_response", Fate.AMBIGUOUS),
        (502, {"error": "x"}, "provider_unavailable", Fate.AMBIGUOUS),
        (201, b"ok", "accepted_without_id", Fate.AMBIGUOUS),
        (201, {"id": "../x"}, "accepted_without_id", Fate.AMBIGUOUS),
    ],
)
def test_only_its_own_word_proves_a_refusal(kind, acme, status, body, code, fate):
    acme.say(status, body)
    with pytest.raises(ProviderError) as caught:
        run(acme, lambda client: kind.provider.create(client, ACCOUNT, call(FOX)))
    assert (caught.value.code, caught.value.fate) == (code, fate)


@pytest.mark.parametrize(
    "body", [{}, [], {"id": "t0"}, {"id": "t1", "state": "done"}, {"id": "t0", "state": "done"}, {"id": "t0", "state": "done", "files": [7]}, b"<"]
)  # fmt: skip
def test_no_answer_breaks_a_poll_or_passes_for_a_result(kind, acme, body):
    acme.say(200, body)
    with pytest.raises(ProviderError):
        run(acme, lambda client: kind.provider.poll(client, ACCOUNT, call({}), "t0"))


def test_a_callback_is_verified(kind):
    now, body = datetime.now(UTC), b'{"id":"t0","state":"done"}'
    headers = sign(SECRET, "msg_1", int(now.timestamp()), body)
    parsed = kind.provider.parse_callback(headers, body, secrets=[SECRET], now=now)
    assert (parsed.delivery_id, parsed.task_id) == ("msg_1", "t0")
    with pytest.raises(ProviderError, match="callback_unverified"):
        kind.provider.parse_callback(headers, body, secrets=[SECRET], now=now + timedelta(minutes=6))


def test_the_page_keeps_our_own_rules(tmp_path):
    path = tmp_path / "acme.py"
    path.write_text(CODE)
    command = [
        str(Path(sys.executable).with_name("ruff")),
        "check",
        "--config",
        str(PAGE.parents[1] / "pyproject.toml"),
    ]
    if not Path(command[0]).exists():
        pytest.skip("ruff is not installed beside this interpreter")
    # A page may leave unsaid what a file must say: docstrings of overridden methods, numbers of well-known statuses.
    checked = subprocess.run(
        [*command, "--ignore", "INP001,ARG002,PLR2004", str(path)], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
