"""Every operation of every kind through everything that can happen to a call.

Each case runs a real job through the real actors, on Postgres and over HTTP, and then asks for all of it: the end
state, the creates on the provider's own bill, the credits, the row and its files to the byte, and an audit without a
violation. Whichever way a job comes home, what is asked is the same.

The short run takes, for each kind, every way home, and of each other family of scenarios those that fewest other kinds
have taken; the long run takes all.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from providers.contract import Mode
from providers.elevenlabs_requests import AsyncOperation, SyncOperation
from providers.registry import KINDS
from tests.kinds.operations import OPERATIONS, Operation
from tests.kinds.play import Play
from tests.kinds.scenarios import FAMILIES, Scenario, scenarios_of
from tests.kinds.world import World

EACH = 2  # cases of the short run for each kind and family; of the ways home, all

Case = tuple[Operation, Scenario]
CASES: list[Case] = [(operation, scenario) for operation in OPERATIONS for scenario in scenarios_of(operation)]


def _short_run() -> set[int]:
    """The places in CASES of those to run every time."""
    chosen: set[int] = set()
    seen: Counter[Any] = Counter()
    for kind in KINDS:
        for family in FAMILIES:
            offered = [n for n, (one, what) in enumerate(CASES) if (one.kind, what.family) == (kind, family)]
            ways = len({CASES[n][1].name for n in offered})
            own: Counter[str] = Counter()
            for _ in range(ways if family == "home" else min(EACH, len(offered))):
                place = min(
                    set(offered) - chosen,
                    key=lambda n: (own[CASES[n][1].name], seen[CASES[n][1].name], seen[CASES[n][0]], n),
                )
                own[CASES[place][1].name] += 1
                chosen.add(place)
                seen.update((CASES[place][1].name, CASES[place][0]))
    for place, (operation, scenario) in enumerate(CASES):
        if not (seen[operation] and seen[scenario.name]):
            chosen.add(place)
            seen.update((scenario.name, operation))
    return chosen


def _parameters() -> Iterator[Any]:
    short = _short_run()
    for number, (operation, scenario) in enumerate(CASES):
        marks = () if number in short else (pytest.mark.slow,)
        yield pytest.param(operation, scenario, id=f"{operation}-{scenario}", marks=marks)


@pytest.mark.parametrize(("operation", "scenario"), [*_parameters()])
def test_every_kind(world: World, operation: Operation, scenario: Scenario) -> None:
    scenario.act(Play(world, operation))


def test_nothing_is_left_out() -> None:
    """No kind and no operation of one is missing, and the short run leaves out no scenario."""
    assert {operation.kind for operation in OPERATIONS} == set(KINDS)
    spoken = {operation.request["operation"] for operation in OPERATIONS if operation.vendor == "elevenlabs"}
    known = get_args(AsyncOperation) + get_args(SyncOperation)
    assert spoken == {get_args(model.model_fields["operation"].annotation)[0] for model in known}
    short = [CASES[n] for n in _short_run()]
    assert {operation for operation, _ in short} == set(OPERATIONS)
    assert {scenario.name for _, scenario in short} == {scenario.name for _, scenario in CASES}
    for kind in KINDS:
        ways = {scenario.name for operation, scenario in CASES if (operation.kind, scenario.family) == (kind, "home")}
        assert {what.name for one, what in short if (one.kind, what.family) == (kind, "home")} == ways
        offered = {scenario.family for operation, scenario in CASES if operation.kind == kind}
        assert {scenario.family for operation, scenario in short if operation.kind == kind} == offered


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_home_by_every_way_it_has(kind: str) -> None:
    """And what each way has to bring home is the same: `ends_well` asks for the whole row, the files and the charge."""
    ways = {scenario.name for operation, scenario in CASES if (operation.kind, scenario.family) == (kind, "home")}
    expected = {"by polls", "every message twice", "every message lost"}
    if KINDS[kind].mode is Mode.ASYNC:
        expected |= {"by an importer", "by the pass"}
    if any(operation.calls_back for operation in OPERATIONS if operation.kind == kind):
        expected.add("by its callback")
    assert ways == expected
    assert KINDS[kind].signs_callbacks <= ("by its callback" in expected)
