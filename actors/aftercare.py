"""Jobs that have ended although their tasks run on: one alert each, a cancel owed where there is one, late files kept.

The job's outcome stands, whatever is found. What comes late is the user's, and nobody pays for it.
"""

import asyncio
import logging
import time
from collections import Counter
from functools import partial

from actors.probe import Found, verdict_of
from actors.results import OfCall, import_files, result_of
from actors.run_watch import came_home_late
from actors.runtime import NoCredentials, Runtime, within
from providers.contract import Account, AsyncProvider, Call, Failed, Kind, Succeeded
from providers.errors import DownloadError, ProviderError
from providers.registry import UnknownKind
from store import watches
from store.media import NOT_KEPT
from store.watches import Watch

log = logging.getLogger("callkeeper.aftercare")


async def look_after(rt: Runtime, until: float) -> Counter[str]:
    """Look at every task that is due, until all are done or the time has come."""
    counts: Counter[str] = Counter()
    while time.monotonic() < until and not rt.draining.is_set():
        due = await rt.on_thread(rt.db.once, watches.claim)
        if not due:
            break
        counts["scanned"] += len(due)
        await asyncio.gather(*(_look(rt, one, counts) for one in due))
    return counts


async def _look(rt: Runtime, watch: Watch, counts: "Counter[str]") -> None:
    """One question. Nothing learned: the next look has been set. At the end of its day the watch ends as it is."""
    try:
        kind = rt.kind(watch.kind)
        account = rt.account(kind, watch.handle.get("account"))
        if await rt.on_thread(rt.gates.closed, kind.name, account.name) is None:
            await _ask(rt, watch, kind, account, counts)
        else:
            counts["deferred"] += 1
    except (ProviderError, DownloadError, NoCredentials, UnknownKind, *NOT_KEPT) as error:
        counts["deferred"] += 1
        log.info("aftercare.deferred job_id=%s error=%s", watch.job_id, type(error).__name__)
    except Exception as error:
        counts["errors"] += 1
        log.exception("aftercare.failed job_id=%s error=%s", watch.job_id, type(error).__name__)
    if watch.over:
        await rt.on_thread(rt.db.once, watches.end, watch, "unknown")


async def _ask(rt: Runtime, watch: Watch, kind: Kind, account: Account, counts: "Counter[str]") -> None:
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous calls leave a watch
    call = Call(request={}, handle=watch.handle, call_key="", started_at=watch.started_at)
    answer = await within(provider.poll(rt.looking, account, call, watch.task_id), kind.poll_deadline)
    match verdict_of(answer).found:
        case Found.RUNNING:
            counts["alerted"] += await rt.on_thread(rt.db.once, watches.alert_once, watch)
            if kind.cancels:
                await rt.on_thread(rt.db.once, watches.owe_cancel, watch)
        case Found.FAILED:
            assert isinstance(answer, Failed)  # noqa: S101  # nothing else is found so
            confirmed = "the provider confirms that it was cancelled" if answer.cancelled else None
            outcome = "cancelled" if answer.cancelled else "failed"
            await rt.on_thread(rt.db.once, watches.end, watch, outcome, resolution=confirmed)
        case Found.SUCCEEDED:
            assert isinstance(answer, Succeeded)  # noqa: S101  # nothing else is found so
            await _keep(rt, watch, kind, account, answer)
            counts["recovered"] += 1
        case _:
            pass


async def _keep(rt: Runtime, watch: Watch, kind: Kind, account: Account, answer: Succeeded) -> None:
    if not answer.media:
        keep = partial(watches.end, watch=watch, outcome="succeeded_without_files")
        await rt.on_thread(came_home_late, rt, watch.job_id, result=result_of(answer, ()), assets=(), keep=keep)
        return
    try:
        call = OfCall(watch.job_id, watch.generation, watermark=watch.watermark)
        assets = await import_files(rt, call, kind, account, answer.media)
    except DownloadError as error:
        if error.retryable:
            raise
        await rt.on_thread(rt.db.once, watches.end, watch, error.code)
        return
    # The run that failed for want of it goes on in the same transaction.
    keep = partial(watches.keep_standalone, watch=watch, assets=assets)
    await rt.on_thread(came_home_late, rt, watch.job_id, result=result_of(answer, assets), assets=assets, keep=keep)
    log.info("aftercare.kept job_id=%s files=%s", watch.job_id, len(assets))
