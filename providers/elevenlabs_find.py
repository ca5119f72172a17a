"""Finds a dubbing or a voice whose id was lost, by the mark that its create planted: in the name of a dubbing, in the
description of a voice.

Both are listed newest first by their time of creation (ElevenLabs's Python client: `dubbing.list`, `voices.search`).
The search parameter is not used: which texts it looks at, and how soon, is not promised; the list is.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from providers.contract import JSON
from providers.elevenlabs_results import is_id
from providers.errors import Fate, ProviderError, Remedy
from providers.replies import malformed

SKEW = timedelta(seconds=60)  # between their clock and the database's
MAX_PAGES = 50  # 10,000 dubbings or 5,000 voices
Page = Callable[[Mapping[str, str]], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Shelf:
    """A list of the API, by the names it gives to things."""

    path: str
    query: Mapping[str, str]
    items: str
    identity: str
    marked: str  # the field that holds the mark
    created: str
    cursor: str  # in the answer
    cursor_asked: str  # in the query


DUBBINGS = Shelf(
    "/v1/dubbing",
    {"page_size": "200", "order_by": "created_at", "order_direction": "DESCENDING"},
    items="dubs",
    identity="dubbing_id",
    marked="name",
    created="created_at",
    cursor="next_cursor",
    cursor_asked="cursor",
)
VOICES = Shelf(
    "/v2/voices",
    {"page_size": "100", "sort": "created_at_unix", "sort_direction": "desc"},
    items="voices",
    identity="voice_id",
    marked="description",
    created="created_at_unix",
    cursor="next_page_token",
    cursor_asked="next_page_token",
)


def mark(call_key: str) -> str:
    """What is planted: unique to one call, and to be understood by whoever reads it in the account."""
    return f"[callkeeper {call_key}]"


async def search(page: Page, shelf: Shelf, *, call_key: str, started_at: datetime) -> Sequence[str]:
    """Ids that carry the call's mark, oldest first. Empty only when everything since the call's start was shown.

    `page` fetches one page by its query. Raises ProviderError (AMBIGUOUS): `find_incomplete` when the list does not
    end within 50 pages or has no way on, `malformed_response` when it is not one.
    """
    first, planted = started_at - SKEW, mark(call_key)
    found: list[str] = []
    query: Mapping[str, str] | None = shelf.query
    for _ in range(MAX_PAGES):
        body = await page(query or {})
        items = body.get(shelf.items) if isinstance(body, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise malformed(f"a list without {shelf.items}")
        found += [_identity(item, shelf) for item in items if planted in str(item.get(shelf.marked))]
        query = None if _past(items, shelf, first) else _next(body, shelf)
        if query is None:
            return found[::-1]
    raise _unseen(f"more than {MAX_PAGES} pages")


def _identity(item: Mapping[str, JSON], shelf: Shelf) -> str:
    identity = item.get(shelf.identity)
    if not is_id(identity):
        raise malformed(f"a listed one without a {shelf.identity}")
    return str(identity)


def _next(body: Mapping[str, JSON], shelf: Shelf) -> Mapping[str, str] | None:
    if body.get("has_more") is False:
        return None
    cursor = body.get(shelf.cursor)
    if not isinstance(cursor, str) or not cursor:
        raise _unseen("there is more, and no way to it")
    return {**shelf.query, shelf.cursor_asked: cursor}


def _past(items: Sequence[Mapping[str, JSON]], shelf: Shelf, first: datetime) -> bool:
    """Whether all that follows is older than the call. Not believed of a page that is not itself newest first."""
    moments = [_moment(item.get(shelf.created)) for item in items]
    known = [moment for moment in moments if moment is not None]
    ordered = all(one >= other for one, other in pairwise(known))
    return bool(known) and len(known) == len(moments) and ordered and known[-1] < first


def _moment(value: JSON) -> datetime | None:
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return datetime.fromtimestamp(value, UTC)
        moment = datetime.fromisoformat(value) if isinstance(value, str) else None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment is None or moment.tzinfo else moment.replace(tzinfo=UTC)


def _unseen(message: str) -> ProviderError:
    return ProviderError("find_incomplete", message, fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY)
