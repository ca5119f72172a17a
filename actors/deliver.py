"""Bringing a known result home: import the media, settle. One path, whoever learned that the result is there.

Signed addresses live in memory only: asked for here, used here, never written down. A poller with room brings home what
it has just learned; otherwise a message wakes an importer, which asks the provider once more.
"""

import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import dramatiq

from actors import job_types
from actors.call import Draining, as_call
from actors.classify import Act, after_download_error, after_poll
from actors.lease import Held, StopWanted
from actors.letting_go import cancel, fail, patience
from actors.points import reached
from actors.results import complete_with, import_held
from actors.runtime import NoCredentials, Runtime, now, runtime
from actors.second_try import import_larger, recreated
from providers.contract import Account, AsyncProvider, Kind, Succeeded
from providers.errors import DownloadError, ProviderError
from store import calls, passes, polls
from store.errors import LeaseLost
from store.media import NOT_KEPT
from store.models import ClaimedJob

log = logging.getLogger("callkeeper.results")

Run = Callable[..., Awaitable[Any]]


@dramatiq.actor(queue_name="results", priority=5, throws=Draining)
def import_result(job_id: str) -> None:
    """Import and settle one job whose provider has its result. A stray message finds nothing to take."""
    rt = runtime()
    if rt.draining.is_set():
        raise Draining
    taken_at = now()
    job = rt.db.once(polls.take_result, UUID(job_id), owner=rt.owner, term=rt.options.lease_term)
    if job is not None:
        rt.submit(bring_home(rt, rt.on_thread, job, taken_at=taken_at)).result()


async def bring_home(
    rt: Runtime, run: Run, job: ClaimedJob, *, taken_at: float, answer: Succeeded | None = None
) -> str | None:
    """Import and settle a job that was just taken; why it was put back to wait instead, or None.

    Losing the lease is not an error: somebody else decides now.
    """
    try:
        with rt.keeper.holding(job.lease, claimed_at=taken_at) as held:
            return await _bring_home(rt, run, job, held, answer)
    except LeaseLost as lost:
        log.warning("lease.lost job_id=%s verb=%s epoch=%s", lost.job_id, lost.verb, lost.epoch)
    finally:
        rt.admission.freed()
    return None


async def _bring_home(rt: Runtime, run: Run, job: ClaimedJob, held: Held, answer: Succeeded | None) -> str | None:
    try:
        job_types.get(job.job_type)
        kind = rt.kind(job.call.kind or "")
        account = rt.account(kind, (job.call.handle or {}).get("account"))
    except (job_types.UnknownJobType, NoCredentials) as error:
        await run(rt.db.once, passes.raise_alert, f"cannot_import:{job.job_type}", {"message": str(error)})
        return await _put_back(rt, run, job, "cannot_import", rt.options.operator_wait)
    try:
        asked = answer or await _ask(rt, run, job, held, kind, account)
        if not isinstance(asked, Succeeded):
            return asked
        reached("after_result", job.lease.job_id)
        assets = await import_held(rt, job, held, kind, account, asked.media)
    except StopWanted:
        await run(cancel, rt, job)
        return None
    except DownloadError as error:
        return await _after_download_error(rt, run, job, kind, error)
    except MemoryError:
        if not await run(import_larger, rt, job, "MemoryError"):
            raise
        return "import_larger"
    except NOT_KEPT as error:
        # The place where files are kept is away or full. The provider still has it.
        log.warning("result.not_kept job_id=%s error=%s", job.lease.job_id, type(error).__name__)
        return await _put_back(rt, run, job, "media_store_failed", rt.options.retry_base * 2)
    reached("after_upload", job.lease.job_id)
    held.check("complete")
    await run(complete_with, rt, job, asked, assets=assets)
    return None


async def _ask(
    rt: Runtime, run: Run, job: ClaimedJob, held: Held, kind: Kind, account: Account
) -> Succeeded | str | None:
    """The fresh result; when the provider's answer decided otherwise, why it was put back, or None once it ended."""
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous results are taken, by CHECK
    work = provider.poll(rt.looking, account, as_call(job.call, job.request), job.call.task_id or "")
    try:
        answer = await rt.held(work, held, deadline=kind.poll_deadline)
    except ProviderError as error:
        return await _put_back(rt, run, job, error.code, error.retry_after or kind.poll_every.total_seconds())
    if isinstance(answer, Succeeded):
        return answer
    decision = after_poll(answer, misses=0)
    if decision.act is Act.FAIL:
        await run(_ended, rt, job, decision.code, decision.message)
        return None
    return await _put_back(rt, run, job, decision.code or "not_there_yet", kind.poll_every.total_seconds())


def _ended(rt: Runtime, job: ClaimedJob, code: str, message: str) -> None:
    run_id = None if job.place is None else job.place.run_id
    if not recreated(rt, job.lease, run_id=run_id, attempt=job.attempt, code=code):
        fail(rt, job, code, message)


async def _after_download_error(rt: Runtime, run: Run, job: ClaimedJob, kind: Kind, error: DownloadError) -> str | None:
    if error.code == "verify_crashed" and await run(import_larger, rt, job, error.message):
        return "import_larger"
    most = rt.options.import_attempts
    decision = after_download_error(
        error, misses=job.misses, failures=job.import_failures, at_most=most, patience=patience(rt, job)
    )
    if decision.act is not Act.FAIL:
        if error.gone:
            # It is given the time between two looks, in case the file is only late.
            return await _put_back(rt, run, job, error.code, kind.poll_every.total_seconds(), missed=True)
        budget = {"at_most": most, "look_in": timedelta(seconds=decision.delay or 0), "why": decision.code}
        if await run(rt.db.once, calls.return_result_counted, job.lease, **budget):
            log.info("result.returned job_id=%s why=%s", job.lease.job_id, decision.code)
            return decision.code
    await run(fail, rt, job, decision.code, decision.message, may_be_paid=True)
    if decision.alert:
        await run(rt.db.once, passes.raise_alert, decision.alert, {"job_id": str(job.lease.job_id)})
    return None


async def _put_back(rt: Runtime, run: Run, job: ClaimedJob, why: str, seconds: float, *, missed: bool = False) -> str:
    look_in = timedelta(seconds=seconds)
    await run(rt.db.once, calls.return_result, job.lease, look_in=look_in, why=why, missed=missed)
    log.info("result.returned job_id=%s why=%s", job.lease.job_id, why)
    return why
