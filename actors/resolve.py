"""An unknown create, resolved: adopted from a receipt, found at the provider, or, after the quiet period, given up.

It is never created again, and it is given up only after a whole look at the provider that began when every possible
sender was past its deadline and the provider's list could no longer lag; or when no later look could tell more.
"""

import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

from actors.call import as_call
from actors.classify import Act, Decision
from actors.runtime import Runtime, within
from providers.contract import Account, AsyncProvider, Kind
from providers.errors import ProviderError, Remedy
from store import calls, looks, receipts, settle
from store.errors import TaskTaken
from store.looks import Look
from store.models import DuePoll, Settlement
from store.states import State

log = logging.getLogger("callkeeper.resolve")

Run = Callable[..., Awaitable[Any]]


async def resolve(rt: Runtime, run: Run, due: DuePoll, kind: Kind, account: Account) -> Decision | None:
    """One look for a lost call. None when it is decided; otherwise when to look again."""
    known = await run(rt.db.once, receipts.receipts_of, due.lease.job_id, generation=due.call.generation)
    if await _adopt(rt, run, due, known):
        return None
    if kind.finds_lost:
        try:
            found = await _find(rt, due, kind, account)
        except ProviderError as error:
            log.info("call.find_failed job_id=%s code=%s", due.lease.job_id, error.code)
            if error.remedy is Remedy.NOBODY and _quiet_is_over(rt, due, kind):
                await run(_give_up, rt, due, error.message)
                return None
            return Decision(Act.POLL_AGAIN, error.code, error.message, error.retry_after, missed=None)
        unowned = await run(rt.db.once, receipts.unowned, kind.name, found)
        if await _adopt(rt, run, due, unowned):
            return None
    if _quiet_is_over(rt, due, kind):
        how = "it is not among the provider's tasks" if kind.finds_lost else "this provider offers no way to look"
        await run(_give_up, rt, due, how)
        return None
    return Decision(Act.POLL_AGAIN, missed=None)


def _quiet_is_over(rt: Runtime, due: DuePoll, kind: Kind) -> bool:
    return due.overdue and (due.stale or not _may_call_back(rt, kind))


def _may_call_back(rt: Runtime, kind: Kind) -> bool:
    """A task that can be named only by its callback is waited for until the call is stale. A list tells at once."""
    return not kind.finds_lost and kind.signs_callbacks and rt.options.callback_url is not None


async def _find(rt: Runtime, due: DuePoll, kind: Kind, account: Account) -> Sequence[str]:
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous jobs wait, by CHECK
    work = provider.find(rt.looking, account, as_call(due.call, due.request))
    return await within(work, timedelta(seconds=rt.options.poll_lease / 2))


async def _adopt(rt: Runtime, run: Run, due: DuePoll, task_ids: Sequence[str]) -> bool:
    for task_id in task_ids:
        try:
            await run(rt.db.once, calls.adopt_call, due.lease, task_id)
        except TaskTaken:
            continue
        log.info("call.adopted job_id=%s task_id=%s", due.lease.job_id, task_id)
        return True
    return False


def _give_up(rt: Runtime, due: DuePoll, how: str) -> None:
    if due.stopping:
        outcome = Settlement(
            status=State.CANCELLED, error_code="cancelled", error_message="stopped on request", may_be_paid=True
        )
    else:
        outcome = Settlement(
            status=State.FAILED,
            error_code="reconcile_no_recovery",
            error_message=f"the create was sent and never answered; {how}",
        )
    look = Look(due.lease.job_id, "missing", str(outcome.status), outcome.error_code or "")
    rt.db.transact(looks.decided, settle.end_polled, due.lease, outcome, upstream_ended=True, look=look)
    log.info("job.given_up job_id=%s", due.lease.job_id)
