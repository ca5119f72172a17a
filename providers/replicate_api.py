"""What predictions and trainings at Replicate have in common: the same verbs on two collections.

Source: Replicate's HTTP API reference. A collection is `predictions` or `trainings`.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx

from providers.contract import JSON, Account, Callback
from providers.errors import Fate, ProviderError, Remedy
from providers.http import Reply, request
from providers.replicate_words import own_words, refusal, task_id_in
from providers.replies import is_success, malformed
from providers.webhooks import unverified, verify

SEND_DEADLINE = timedelta(seconds=30)
POLL_DEADLINE = timedelta(seconds=10)
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}/[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
HASH = r"[0-9a-f]{64}"

_NOT_FOUND = frozenset({404, 410})


async def create(
    client: httpx.AsyncClient, account: Account, path: str, body: Mapping[str, JSON], callback_url: str | None
) -> str:
    """POST one task and return its id. AMBIGUOUS with `accepted_without_id` when it was taken and not named."""
    hook = {} if callback_url is None else {"webhook": callback_url, "webhook_events_filter": ["completed"]}
    reply = await _ask(client, account, "POST", path, deadline=SEND_DEADLINE, json={**body, **hook})
    if not is_success(reply):
        raise refusal(reply)
    task_id = task_id_in(reply.json())
    if task_id is None:
        raise ProviderError(
            "accepted_without_id",
            f"HTTP {reply.status} without an id",
            fate=Fate.AMBIGUOUS,
            remedy=Remedy.RETRY,
            status=reply.status,
        )
    return task_id


async def look(client: httpx.AsyncClient, account: Account, collection: str, task_id: str) -> Mapping[str, JSON] | None:
    """GET one task; None when Replicate says it has none. Raises ProviderError when the answer is about another."""
    reply = await _ask(client, account, "GET", f"/{collection}/{_checked(task_id)}")
    if _unknown(reply):
        return None
    if not is_success(reply):
        raise refusal(reply)
    body = reply.json()
    if task_id_in(body) != task_id:
        raise malformed(f"the answer is not about the one of the {collection} asked for", reply.status)
    shown: Mapping[str, JSON] = body
    return shown


async def cancel(client: httpx.AsyncClient, account: Account, collection: str, task_id: str) -> bool:
    """POST the cancel; a task that has ended stays as it is. False when Replicate does not know it."""
    reply = await _ask(client, account, "POST", f"/{collection}/{_checked(task_id)}/cancel")
    if _unknown(reply):
        return False
    if not is_success(reply):
        raise refusal(reply)
    return True


def pages(
    client: httpx.AsyncClient, account: Account, collection: str
) -> Callable[[Mapping[str, str]], Awaitable[Any]]:
    """What fetches one page of the list by its query, for `providers.replicate_find.search`."""

    async def page(params: Mapping[str, str]) -> Any:
        reply = await _ask(client, account, "GET", f"/{collection}", params=params)
        if not is_success(reply):
            raise refusal(reply)
        return reply.json()

    return page


def callback(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: datetime) -> Callback:
    """Verify by Standard Webhooks, then read the task's id. The rest of the body is not believed."""
    delivery_id = verify(headers, body, secrets=secrets, now=now)
    task_id = task_id_in(Reply(200, httpx.Headers(), body).json())
    if task_id is None:
        raise unverified("it names no task")
    return Callback(delivery_id, task_id)


def _unknown(reply: Reply) -> bool:
    return reply.status in _NOT_FOUND and own_words(reply) is not None


async def _ask(
    client: httpx.AsyncClient,
    account: Account,
    method: str,
    path: str,
    *,
    deadline: timedelta = POLL_DEADLINE,
    json: JSON = None,
    params: Mapping[str, str] | None = None,
) -> Reply:
    return await request(
        client,
        method,
        account.base_url.rstrip("/") + path,
        deadline=deadline,
        headers={"authorization": f"Bearer {account.api_key}"},
        json=json,
        params=params,
    )


def _checked(task_id: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", task_id):
        raise ProviderError("request_unsendable", "not an id of Replicate", fate=Fate.NOT_SENT, remedy=Remedy.OPERATOR)
    return task_id
