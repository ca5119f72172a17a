"""`callkeeper demo tour` as a user runs it: a film that plays to its end, books that agree, and nothing left behind."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_demo import leftovers, number


@pytest.mark.slow
def test_the_demo_renders_a_tour(start: Callable[..., Any], until: Callable[..., None], folder: Path) -> None:
    demo = start("demo", "tour")
    assert demo.wait(360) == 0, demo.output
    said = demo.output
    assert "not as it should be" not in said
    assert number(r"tour +(\d+) scenes, an avatar and a voice-over", said) >= 3
    assert number(r"workers killed +(\d+)", said) >= 3
    creates, operations = re.search(r"(\d+) for (\d+) operations", said).groups()  # type: ignore[union-attr]
    assert creates == operations
    assert "settled           1 time, as completed" in said
    assert "decodes to its end" in said
    assert number(r"sound and picture (\d+) ms apart", said) <= 45
    assert "audit: 0 violations" in said
    assert (folder / ".callkeeper" / "tour.mp4").stat().st_size > 100_000
    until(lambda: not leftovers(folder), lambda: str(leftovers(folder)), seconds=10)
    assert [path.name for path in (folder / ".callkeeper").iterdir()] == ["tour.mp4"]
