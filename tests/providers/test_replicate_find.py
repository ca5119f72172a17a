"""The search itself, over pages as a provider might send them."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from providers.errors import Fate, ProviderError
from providers.replicate_find import MAX_PAGES, same_input, search

AT = datetime(2026, 1, 1, 12, tzinfo=UTC)
BASE = "https://api.replicate.com/v1"


def listed(task_id, **changes):
    return {
        "id": task_id,
        "model": "a/b",
        "version": "hidden",
        "input": {"p": 1},
        "created_at": "2026-01-01T12:00:01.5Z",
        **changes,
    }


def look(pages, *, endpoint="models", target="a/b", wanted=None):
    asked = []

    async def page(params):
        asked.append(dict(params))
        return pages[min(len(asked), len(pages)) - 1]

    found = asyncio.run(
        search(
            page,
            handle={"endpoint": endpoint, "target": target},
            wanted={"p": 1} if wanted is None else wanted,
            base_url=BASE,
            started_at=AT,
            send_deadline=timedelta(seconds=30),
        )
    )
    return list(found), asked


def unseen(pages, code, **more):
    with pytest.raises(ProviderError) as caught:
        look(pages, **more)
    assert (caught.value.code, caught.value.fate) == (code, Fate.AMBIGUOUS)


def test_the_window_is_asked_for_in_utc():
    _, asked = look([{"next": None, "results": []}])
    assert asked == [{"created_after": "2026-01-01T11:59:00Z", "created_before": "2026-01-01T12:01:30Z"}]


def test_next_pages_keep_the_cursor_and_order_is_oldest_first():
    pages = [
        {"next": f"{BASE}/predictions?cursor=abc%3D", "results": [listed("new", created_at="2026-01-01T12:00:09Z")]},
        {"next": None, "results": [listed("old")]},
    ]
    found, asked = look(pages)
    assert found == ["old", "new"]
    assert asked[1] == {"cursor": "abc="}


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/v1/predictions?cursor=a",
        f"{BASE}/trainings?cursor=a",
        f"{BASE}/predictions",
        7,
        "https://[::1",
    ],
)
def test_a_next_page_elsewhere_is_not_followed(url):
    unseen([{"next": url, "results": []}, {"next": None, "results": []}], "find_incomplete")


def test_endless_pages_are_not_an_empty_window():
    unseen([{"next": f"{BASE}/predictions?cursor=a", "results": [listed("x", input={})]}], "find_incomplete")
    assert MAX_PAGES * 100 >= 1500


def test_a_list_that_ignores_filters_is_read_until_it_is_older():
    pages = [
        {"next": f"{BASE}/predictions?cursor=a", "results": [listed("late", created_at="2026-01-01T13:00:00Z")]},
        {
            "next": f"{BASE}/predictions?cursor=b",
            "results": [listed("mine"), listed("early", created_at="2026-01-01T11:00:00Z")],
        },
        {"next": None, "results": [listed("never seen")]},
    ]
    assert look(pages)[0] == ["mine"]


@pytest.mark.parametrize(
    "body", [None, [], {}, {"results": None}, {"results": ["x"]}, {"results": [listed("a", created_at="soon")]}]
)
def test_a_list_that_cannot_be_read_is_not_an_empty_one(body):
    unseen([body], "malformed_response")


def test_blanked_inputs_leave_it_open_unless_another_matches():
    blank = listed("gone", input={}, data_removed=True)
    unseen([{"next": None, "results": [blank]}], "find_inconclusive")
    assert look([{"next": None, "results": [blank, listed("mine")]}])[0] == ["mine"]
    assert look([{"next": None, "results": [{**blank, "model": "a/other"}]}])[0] == []


@pytest.mark.parametrize(
    ("endpoint", "target", "changes", "matches"),
    [
        ("models", "a/b", {}, True),
        ("models", "a/b", {"model": "a/c"}, False),
        ("models", "a/b", {"deployment": "a/b"}, False),
        ("predictions", "f" * 64, {"version": "f" * 64, "deployment": "a/b"}, False),
        ("deployments", "a/d", {"deployment": "a/d"}, True),
        ("deployments", "a/d", {"deployment": "a/e"}, False),
        ("deployments", "a/d", {"deployment": None}, False),
        ("deployments", "a/d", {}, True),
        ("predictions", "a/b", {"version": "f" * 64}, True),
        ("predictions", "a/b:" + "f" * 64, {"version": "f" * 64}, True),
        ("predictions", "a/b:" + "f" * 64, {"version": "e" * 64}, False),
        ("predictions", "a/b:" + "f" * 64, {"version": "hidden"}, True),
        ("predictions", "a/c:" + "f" * 64, {"version": "f" * 64}, False),
        ("predictions", "f" * 64, {"version": "f" * 64, "model": "any/one"}, True),
        ("predictions", "f" * 64, {"version": "e" * 64}, False),
    ],
)
def test_the_target_must_be_the_same(endpoint, target, changes, matches):
    found, _ = look([{"next": None, "results": [listed("x", **changes)]}], endpoint=endpoint, target=target)
    assert found == (["x"] if matches else [])


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({}, {}, True),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": False}, {"a": 0}, False),
        ({"a": None}, {}, False),
        ({"a": [1, {"b": "x"}]}, {"a": [1, {"b": "x"}]}, True),
        ({"a": [1, 2]}, {"a": [2, 1]}, False),
        ({"a": "data:image/png;base64,AA"}, {"a": "data:image/png;base64,AA"}, True),
        ({"a": "data:image/png;base64,AA"}, {"a": "https://replicate.delivery/x.png"}, True),
        ({"a": "data:image/png;base64,AA"}, {"a": "data:image/png;base64,BB"}, False),
        ({"a": "https://x/1"}, {"a": "https://x/2"}, False),
        ({"a": "1"}, {"a": 1}, False),
        ({"a": {}}, {"a": []}, False),
        ({"a": 1}, None, False),
    ],
)
def test_inputs_are_compared_as_json(ours, theirs, same):
    assert same_input(ours, theirs) is same
