"""Bringing a known result home: take it, ask once more for a fresh address, import, settle."""

import logging
from datetime import timedelta
from uuid import UUID

import dramatiq

from actors import job_types
from actors.call import Draining, as_call, cancel, fail
from actors.classify import Act, after_poll
from actors.lease import Held, StopWanted
from actors.points import reached
from actors.results import DOWNLOAD_DEADLINE, complete_with, import_media
from actors.runtime import NoCredentials, Runtime, now, runtime
from providers.contract import Account, AsyncProvider, Kind, Succeeded
from providers.errors import DownloadError, ProviderError
from store import calls, passes, polls
from store.errors import LeaseLost
from store.models import ClaimedJob

log = logging.getLogger("callkeeper.results")


@dramatiq.actor(queue_name="results", priority=5)
def import_result(job_id: str) -> None:
    """Import and settle one job whose provider has its result. A stray message finds nothing to take."""
    rt = runtime()
    if rt.draining.is_set():
        raise Draining
    taken_at = now()
    job = rt.db.once(polls.take_result, UUID(job_id), owner=rt.owner, term=rt.options.lease_term)
    if job is None:
        return
    try:
        with rt.keeper.holding(job.lease, claimed_at=taken_at) as held:
            _bring_home(rt, job, held)
    except LeaseLost as lost:
        log.warning("lease.lost job_id=%s verb=%s epoch=%s", lost.job_id, lost.verb, lost.epoch)


def _bring_home(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    try:
        job_types.get(job.job_type)
        kind = rt.kind(job.call.kind or "")
        account = rt.account(kind, (job.call.handle or {}).get("account"))
    except (job_types.UnknownJobType, NoCredentials) as error:
        rt.db.once(passes.raise_alert, f"cannot_import:{job.job_type}", {"message": str(error)})
        _put_back(rt, job, "cannot_import", rt.options.operator_wait)
        return
    try:
        answer = _ask(rt, job, held, kind, account)
        if answer is None:
            return
        reached("after_result", job.lease.job_id)
        # Signed addresses live in memory only: they are asked for here, used here, and never written down.
        work = import_media(rt, job, kind, account, answer.media)
        assets = rt.call_held(work, held, deadline=DOWNLOAD_DEADLINE)
    except StopWanted:
        cancel(rt, job, upstream_ended=True)
        return
    except DownloadError as error:
        _after_download_error(rt, job, error)
        return
    reached("after_upload", job.lease.job_id)
    held.check("complete")
    complete_with(rt, job, answer, assets=assets)


def _ask(rt: Runtime, job: ClaimedJob, held: Held, kind: Kind, account: Account) -> Succeeded | None:
    """The fresh result, or None when the provider's answer decided otherwise."""
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # only asynchronous results are taken, by CHECK
    work = provider.poll(rt.client, account, as_call(job.call, job.request), job.call.task_id or "")
    try:
        answer = rt.call_held(work, held, deadline=kind.poll_deadline)
    except ProviderError as error:
        _put_back(rt, job, error.code, error.retry_after or kind.poll_every.total_seconds())
        return None
    if isinstance(answer, Succeeded):
        return answer
    decision = after_poll(answer, misses=0)
    if decision.act is Act.FAIL:
        fail(rt, job, decision.code, decision.message)
    else:
        _put_back(rt, job, decision.code or "not_there_yet", kind.poll_every.total_seconds())
    return None


def _after_download_error(rt: Runtime, job: ClaimedJob, error: DownloadError) -> None:
    """A fresh look brings a fresh address, or the provider's word that the result is gone; policy refusals are final."""
    if error.retryable or error.gone:
        _put_back(rt, job, error.code, rt.options.retry_base * 2)
        return
    rt.db.once(passes.raise_alert, f"import_refused:{error.code}", {"job_id": str(job.lease.job_id)})
    fail(rt, job, error.code, error.message)


def _put_back(rt: Runtime, job: ClaimedJob, why: str, seconds: float) -> None:
    rt.db.once(calls.return_result, job.lease, look_in=timedelta(seconds=seconds), why=why)
    log.info("result.returned job_id=%s why=%s", job.lease.job_id, why)
