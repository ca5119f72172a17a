"""Finds a prediction or training whose id was lost, in Replicate's list: newest first, 100 a page; predictions
are filtered by time of creation.

What identifies it is what was asked: the same target, the same input, created in the call's window. The
webhook URL is not part of the listed object, so it cannot help. Input is blanked about an hour after the
end (data removal).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from providers.contract import JSON
from providers.errors import Fate, ProviderError, Remedy
from providers.replicate_words import task_id_in
from providers.replies import malformed
from providers.text import tidy

SKEW = timedelta(seconds=60)  # between their clock and the database's
MAX_PAGES = 50  # 5,000 predictions; at 600 creates a minute a window of 2.5 minutes holds 1,500
Page = Callable[[Mapping[str, str]], Awaitable[Any]]
Belongs = Callable[[Mapping[str, JSON]], bool | None]


def _yes(_listed: Mapping[str, JSON]) -> bool | None:
    return True


async def search(
    page: Page,
    *,
    handle: Mapping[str, JSON],
    wanted: Mapping[str, JSON],
    base_url: str,
    started_at: datetime,
    send_deadline: timedelta,
    collection: str = "predictions",
    belongs: Belongs = _yes,
) -> Sequence[str]:
    """Ids that match, oldest first; an ended, failed or cancelled one is ours to learn of as well.

    `page` fetches one page of the list by its query parameters. `belongs` may know better than target and input do
    whether a listed one is ours; None is "cannot tell", and counts as blanked. Empty only when the whole window was
    shown and every prediction in it is readably another one. Raises ProviderError (AMBIGUOUS) with
    `find_incomplete` when the window could not be seen whole, `find_inconclusive` when nothing matches but
    blanked ones might (remedy NOBODY: a later look would tell no more).
    """
    first, last = started_at - SKEW, started_at + send_deadline + SKEW
    matches: list[tuple[datetime, str]] = []
    blanked = 0
    async for listed in _window(page, first, last, base_url, collection):
        created = _created(listed)
        if not (first <= created <= last) or not _same_target(listed, handle):
            continue
        if listed.get("data_removed") is True and not listed.get("input"):
            blanked += 1
        elif (task_id := task_id_in(listed)) is not None and same_input(tidy(dict(wanted)), listed.get("input")):
            is_ours = belongs(listed)
            blanked += is_ours is None
            matches += [(created, task_id)] if is_ours else []
    if blanked and not matches:
        # Blanked is an hour old, and stays blanked: no later look will tell.
        why = f"{blanked} of that target in the window do not show whose they are"
        raise ProviderError("find_inconclusive", why, fate=Fate.AMBIGUOUS, remedy=Remedy.NOBODY)
    return [task_id for _, task_id in sorted(matches)]


def same_input(ours: JSON, theirs: JSON) -> bool:
    """Whether two inputs are the same JSON; a file we sent inline may come back as a URL where it was put."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same_input(ours[name], theirs[name]) for name in ours)
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same_input, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str) and ours[:5].lower() == "data:":
        return ours == theirs or theirs.startswith(("https://", "http://"))
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    return bool(ours == theirs)


async def _window(page: Page, first: datetime, last: datetime, base_url: str, collection: str) -> Any:
    query: Mapping[str, str] | None = {}
    if collection == "predictions":  # the reference gives these filters to no other list
        query = {"created_after": _stamp(first), "created_before": _stamp(last)}
    for _ in range(MAX_PAGES):
        body = await page(query or {})
        results = body.get("results") if isinstance(body, dict) else None
        if not isinstance(results, list) or not all(isinstance(listed, dict) for listed in results):
            raise malformed("a list without results")
        for listed in results:
            yield listed
        # Newest first: once one is older than the window, so is all that follows, whether or not filters were obeyed.
        past = bool(results) and _created(results[-1]) < first
        query = None if past else _next(body.get("next"), f"{base_url.rstrip('/')}/{collection}")
        if query is None:
            return
    raise _unseen("find_incomplete", f"more than {MAX_PAGES} pages in the window")


def _next(url: JSON, list_url: str) -> Mapping[str, str] | None:
    """The query of the next page. Only its query: where it is asked of is our account's own address."""
    if url is None or url == "":
        return None
    try:
        there, api = urlsplit(str(url)), urlsplit(list_url)
        same = (there.hostname, there.port, there.path.rstrip("/")) == (api.hostname, api.port, api.path)
        query = dict(parse_qsl(there.query))
    except ValueError:
        same, query = False, {}
    if not same or not query:
        raise _unseen("find_incomplete", "the next page is at another address")
    return query


def _same_target(listed: Mapping[str, JSON], handle: Mapping[str, JSON]) -> bool:
    target = str(handle["target"])
    if handle["endpoint"] == "deployments":
        return bool(listed.get("deployment", target) == target)
    if listed.get("deployment"):
        return False
    if handle["endpoint"] == "models":
        return bool(listed.get("model") == target)
    model, _, version = target.partition(":") if "/" in target else ("", "", target)
    # An official model shows the word `hidden` in place of its version.
    known = listed.get("version") in (version, "hidden") if version else True
    return known and (not model or listed.get("model") == model)


def _created(listed: Mapping[str, JSON]) -> datetime:
    try:
        moment = datetime.fromisoformat(str(listed.get("created_at")))
    except ValueError:
        raise malformed("a listed prediction without a time of creation") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _unseen(code: str, message: str) -> ProviderError:
    return ProviderError(code, message, fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY)
