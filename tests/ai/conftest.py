"""Workers that know the models of tests.ai.kit, on a database and a sandbox of their own."""

import json
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest

from providers.sandbox import Sandbox
from tests.ai import kit  # noqa: F401  # registers the profiles
from tests.chaos.conftest import (  # noqa: F401  # fixtures
    MakeFleet,
    _one_sandbox,
    make_fleet,
    pytest_runtest_makereport,
    sandbox,
)
from tests.chaos.harness import Fleet, Worker, database

MODULES = ("tests.chaos.kit", "tests.ai.kit")
CHOICES = ["praise", "complaint", "question"]


class Tasks:
    """A fleet, and short ways to ask its models and to see what came of it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def work(self, **changes: Any) -> Worker:
        return self.fleet.spawn(modules=MODULES, **changes)

    def classify(self, text: str, *, job_type: str = "priced", model: str = "small", key: str | None = None) -> UUID:
        return self.fleet.submit(job_type, key=key, task="classify", text=text, choices=CHOICES, model=model)

    def result(self, job_id: UUID) -> Mapping[str, Any]:
        result: Mapping[str, Any] = self.fleet.job(job_id)["result"]
        return result

    def calls(self, job_id: UUID) -> list[Mapping[str, Any]]:
        return self.fleet.rows("select * from callkeeper.call_ledger where job_id = :id order by generation", id=job_id)

    def script(self, *rules: Mapping[str, Any]) -> None:
        """Each rule is what happens to the next questions: so many `times`, by default one."""
        told: list[Any] = []
        # A rule counts the questions that reach it, which are those that no rule before it took.
        for rule in rules:
            do = {name: value for name, value in rule.items() if name != "times"}
            when = {"route": "message", "nth": list(range(1, rule.get("times", 1) + 1))}
            told.append({"when": when, "do": do})
        self.fleet.sandbox.script({"rules": told})


@pytest.fixture(scope="module")
def _crew(
    server: Any,
    template: str,
    _one_sandbox: Sandbox,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Tasks]:
    with (
        database(server.url, server.url_of, template) as url,
        Fleet(url, _one_sandbox, tmp_path_factory.mktemp("crew")) as fleet,
    ):
        tasks = _with_kie(fleet)
        tasks.work(threads=8)
        yield tasks


@pytest.fixture
def crew(_crew: Tasks, sandbox: Sandbox, request: Any) -> Iterator[Tasks]:  # noqa: F811
    """With a worker at work already, shared by a module's tests that leave it as they found it."""
    _crew.fleet.clear()
    _crew.fleet.do("delete from callkeeper.provider_gates")
    yield _crew
    if getattr(request.node, "failed_here", False):
        print(_crew.fleet.tail())


@pytest.fixture
def tasks(make_fleet: MakeFleet) -> Tasks:  # noqa: F811
    return _with_kie(make_fleet())


def _with_kie(fleet: Fleet) -> Tasks:
    kinds = json.loads(fleet.env["CALLKEEPER_KINDS"])
    kinds["kie-llm"] = {"base_url": fleet.sandbox.url, "send_deadline": 20}
    fleet.env |= {"CALLKEEPER_KINDS": json.dumps(kinds), "KIE_API_KEY": "good"}
    return Tasks(fleet)
