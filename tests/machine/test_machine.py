"""Every verb in any order against real Postgres: after each step the database equals the model and nothing is violated.

CALLKEEPER_MACHINE_EXAMPLES changes how many examples the shorter run tries; the mutants use it.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from store.engine import Database, make_engine
from tests.conftest import Server, scratch_database
from tests.machine.rules import Verbs
from tests.store.steps import relaxed

EXAMPLES = int(os.environ.get("CALLKEEPER_MACHINE_EXAMPLES", "40"))
# Mutants only need to know that it fails, not how little it takes.
PHASES = [Phase.generate] if "CALLKEEPER_MACHINE_EXAMPLES" in os.environ else list(settings().phases)


@pytest.fixture
def machine(server: Server, template: str) -> Iterator[type[Verbs]]:
    with scratch_database(server, template) as url:
        # Nothing here survives a crash, or needs to.
        db = Database(make_engine(relaxed(url), name="machine", pool_size=2))
        yield type("Machine", (Verbs,), {"db": db})
        db.dispose()


def run(machine: type[Verbs], *, examples: int, steps: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=PHASES,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_the_database_equals_the_model_whatever_happens(machine: type[Verbs]) -> None:
    run(machine, examples=EXAMPLES, steps=40)


@pytest.mark.slow
def test_for_longer(machine: type[Verbs]) -> None:
    run(machine, examples=1_500, steps=60)
