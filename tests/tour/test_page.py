"""docs/tours.md agrees with the code: its failure codes exist and have words, and the tests that it names are there."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from actors.copy import COPY
from actors.tour.jobs import _CUSTOMERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tours.md").read_text()


def codes() -> Iterator[str]:
    """What the tour's own steps fail with."""
    yield from _CUSTOMERS.values()
    for name in ("jobs.py", "make.py"):
        for node in ast.walk(ast.parse((ROOT / "actors" / "tour" / name).read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "WorkFailed":
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    yield str(code.value)
    yield "plan_unfixable"


def test_every_code_of_a_tour_is_on_the_page_and_has_words_for_customers() -> None:
    section = PAGE.split("## How a tour can fail")[1].split("## ")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))
    assert told == set(codes())
    assert told <= set(COPY)


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
    assert named
    for path, function in named:
        tree = ast.parse((ROOT / path).read_text())
        assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}, (path, function)
