"""What FFmpeg is told: numbers in our own words, and nothing that anybody wrote."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.tour.plan import Frame
from actors.tour.timeline import filters
from actors.tour.timeline.filters import Loudness
from actors.tour.timeline.words import Act, Edit

PLAIN = re.compile(r"[A-Za-z0-9_.,:=*/()+-]+")
EDITS = st.lists(st.builds(Edit, st.sampled_from(list(Act)), st.floats(0.001, 600)), max_size=4)
FRAME = Frame(width=160, height=90, rate=24)


@given(EDITS, st.floats(0.1, 600))
def test_filters_are_made_of_plain_words_and_numbers(edits: list[Edit], seconds: float) -> None:
    for chain in (filters.picture(edits, FRAME, seconds), filters.sound(edits, seconds=seconds)):
        assert PLAIN.fullmatch(chain)
        assert "e-" not in chain
        assert "nan" not in chain


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e9])
def test_what_is_no_number_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="is no length or factor"):
        filters.picture([Edit(Act.SLOW, value)], FRAME, 4.0)
    with pytest.raises(ValueError):
        filters.levelled(Loudness(value, 0, 0, 0, 0))


def test_numbers_are_written_out() -> None:
    assert [filters.number(value) for value in (0.000001, 1.5, 2.0, 0.0, -3.25)] == [
        "0.000001",
        "1.5",
        "2",
        "0",
        "-3.25",
    ]


def test_a_presenter_stands_in_the_asked_corner() -> None:
    _, laid = filters.overlay("top-left", FRAME, 2.0)
    assert laid.startswith("overlay=x=4:y=4")
    _, laid = filters.overlay("bottom-right", FRAME, 2.0)
    assert laid.startswith("overlay=x=W-w-4:y=H-h-4")
