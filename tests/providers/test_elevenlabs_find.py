"""Finding a lost dubbing or voice by the mark that its create planted."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from providers.elevenlabs_find import DUBBINGS, VOICES, mark, search
from providers.errors import Fate, ProviderError

T0 = datetime(2026, 1, 1, 12, tzinfo=UTC)


def look(pages, shelf=DUBBINGS, key="k1"):
    """What is found in these pages, and how many of them were asked for."""
    asked = []

    async def page(query):
        asked.append(query)
        return pages[len(asked) - 1]

    return asyncio.run(search(page, shelf, call_key=key, started_at=T0)), asked


def dub(name, at=0, **more):
    return {"dubbing_id": f"d{at}", "name": name, "created_at": (T0 + timedelta(seconds=at)).isoformat(), **more}


def voice(description, at=0):
    return {"voice_id": f"v{at}", "description": description, "created_at_unix": int(T0.timestamp()) + at}


def shown(*dubs, more=False, cursor=None):
    return {"dubs": list(dubs), "has_more": more, "next_cursor": cursor}


def test_it_is_found_by_its_name():
    found, asked = look([shown(dub("other", 9), dub(mark("k1"), 5), dub(mark("k2"), 4))])
    assert found == ["d5"]
    assert asked == [DUBBINGS.query]


def test_a_voice_is_found_by_its_description():
    page = {"voices": [voice(f"deep and calm {mark('k1')}", 5), voice(None, 4)], "has_more": False}
    assert look([page], VOICES)[0] == ["v5"]


def test_pages_are_followed_to_the_end():
    pages = [shown(dub("x", 9), more=True, cursor="c1"), shown(dub(mark("k1"), 5), more=True, cursor="c2"), shown()]
    found, asked = look(pages)
    assert found == ["d5"]
    assert [query.get("cursor") for query in asked] == [None, "c1", "c2"]


def test_nothing_older_than_the_call_is_looked_at():
    found, asked = look([shown(dub("x", 9), dub("y", -120), more=True, cursor="c1")])
    assert (found, len(asked)) == ([], 1)


@pytest.mark.parametrize(
    "page",
    [
        [dub("y", -120), dub("x", 9), dub("z", -130)],  # not newest first
        [dub("x", 9, created_at=None), dub("y", -120)],
        [dub("x", 9, created_at="yesterday"), dub("y", -120)],
        [dub("y", 0), dub("x", -59)],  # within the clocks' difference
        [],
    ],
)
def test_an_end_is_not_assumed(page):
    found, asked = look([shown(*page, more=True, cursor="c1"), shown(dub(mark("k1"), 1))])
    assert (found, len(asked)) == (["d1"], 2)


def test_twins_come_oldest_first():
    assert look([shown(dub(mark("k1"), 9), dub(mark("k1"), 5))])[0] == ["d5", "d9"]


@pytest.mark.parametrize(
    ("page", "code"),
    [
        ({"dubs": [], "has_more": True}, "find_incomplete"),
        ({"dubs": [], "has_more": True, "next_cursor": ""}, "find_incomplete"),
        ({"dubs": []}, "find_incomplete"),
        ({"dubs": None, "has_more": False}, "malformed_response"),
        ({"dubs": ["x"], "has_more": False}, "malformed_response"),
        ({"has_more": False}, "malformed_response"),
        ([], "malformed_response"),
        (None, "malformed_response"),
        (shown(dub(mark("k1"), dubbing_id=None)), "malformed_response"),
        (shown(dub(mark("k1"), dubbing_id="../x")), "malformed_response"),
    ],
)
def test_what_cannot_be_seen_whole_says_so(page, code):
    with pytest.raises(ProviderError) as caught:
        look([page])
    assert (caught.value.code, caught.value.fate) == (code, Fate.AMBIGUOUS)


def test_a_list_without_end_is_given_up():
    with pytest.raises(ProviderError, match="find_incomplete"):
        look([shown(dub("x", 9), more=True, cursor="c")] * 60)
