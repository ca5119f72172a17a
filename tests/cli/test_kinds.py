"""`callkeeper providers`: the registry, without a database."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from providers.registry import KINDS
from providers.table import COLUMNS, span

Cli = Callable[..., Any]


def test_every_kind_has_a_row(cli: Cli) -> None:
    lines = cli("providers").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == sorted(KINDS)
    assert all(column in lines[0] for column in COLUMNS)
    heygen = next(line for line in lines if line.startswith("heygen-video"))
    assert (
        " ".join(heygen.split())
        == "heygen-video async video, file 30 min 20 s 2 h 7 d yes no no signed seconds of video"
    )


def test_programs_get_seconds(cli: Cli) -> None:
    told = {one["kind"]: one for one in json.loads(cli("providers", "--json").stdout)}
    assert set(told) == set(KINDS)
    assert told["openrouter-video"]["poll_every"] == 15
    assert told["openrouter-video"]["finds_lost"] is False
    assert told["anthropic-sync"]["poll_every"] is None
    assert told["replicate-prediction"]["result_life"] == 3600


@pytest.mark.parametrize(
    ("time", "text"),
    [
        (timedelta(seconds=2.5), "2.5 s"),
        (timedelta(seconds=90), "90 s"),
        (timedelta(minutes=2), "2 min"),
        (timedelta(hours=1), "1 h"),
        (timedelta(hours=36), "36 h"),
        (timedelta(days=7), "7 d"),
    ],
)
def test_times_are_whole_numbers_where_they_can_be(time: timedelta, text: str) -> None:
    assert span(time) == text
