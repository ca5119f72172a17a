"""Making the one paid call: claim, commit the intent, send one request, keep what it brought, let go."""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from uuid import UUID

import dramatiq

from actors import job_types
from actors.admission import WORK
from actors.callbacks import callback_url
from actors.classify import Act, after_request_error
from actors.lease import Held, StopWanted
from actors.letting_go import cancel, carry_out, fail, give_back, patience
from actors.points import reached
from actors.recovery import completed_from_recovery
from actors.results import complete_with, import_now
from actors.runtime import NoCredentials, Runtime, runtime
from providers.contract import (
    Account,
    AsyncProvider,
    Call,
    Failed,
    Kind,
    Media,
    StreamingProvider,
    Succeeded,
    SyncProvider,
)
from providers.errors import DownloadError, ProviderError
from providers.registry import UnknownKind
from store import calls, jobs, passes, receipts
from store.errors import LeaseLost, TaskTaken
from store.models import CallState, ClaimedJob, NewAsset

log = logging.getLogger("callkeeper.call")

_MORE_TRIES = 2
# What a stream brought before one of these is of use to somebody; what a model refused to go on with is not.
_BROKEN_OFF = ("stream_cut", "output_truncated")


class Draining(Exception):
    """This process is going; the message goes back to the queue, the job was not touched."""


@dramatiq.actor(queue_name="calls", priority=10, throws=Draining)
def start_call(job_id: str) -> None:
    """Start an asynchronous provider call. The message is a wake-up; the row decides whether there is work."""
    rt = runtime()
    with_claim(rt, UUID(job_id))


@dramatiq.actor(queue_name="calls", priority=10, throws=Draining)
def run_sync_call(job_id: str) -> None:
    """Make a call whose response is its result, under a heartbeat, and settle it."""
    rt = runtime()
    with_claim(rt, UUID(job_id))


def with_claim(rt: Runtime, job_id: UUID) -> None:
    """Claim the next in line and do its work under a kept lease. Losing the lease is not an error."""
    if rt.draining.is_set():
        raise Draining
    job, claimed_at = rt.admission.claim(job_id)
    if job is None:
        if rt.draining.is_set():
            raise Draining  # the right to start one goes to somebody else
        rt.admission.pass_on(job_id)
        return
    reached("after_claim", job.lease.job_id)
    try:
        with rt.keeper.holding(job.lease, claimed_at=claimed_at) as held:
            if job.stopping:
                cancel(rt, job)
            elif not completed_from_recovery(rt, job):
                WORK[job.actor](rt, job, held)
    except LeaseLost as lost:
        log.warning("lease.lost job_id=%s verb=%s epoch=%s", lost.job_id, lost.verb, lost.epoch)
    finally:
        rt.admission.freed()


def _start(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    ready = prepare(rt, job, held)
    if ready is None:
        return
    kind, account, call, state = ready
    provider = kind.provider
    assert isinstance(provider, AsyncProvider)  # noqa: S101  # the registry checked it at import
    try:
        # Never aborted for a lost lease: the request has left, and its answer names what was bought.
        answer = rt.call(lambda client: provider.create(client, account, call), deadline=kind.send_deadline)
    except ProviderError as error:
        decide(rt, job, kind, account, error)
        return
    reached("after_accept", job.lease.job_id)
    # Nothing stands between the answer and the row; what it says about the account comes after.
    if isinstance(answer, str):
        keep_task(rt, job, state, answer, kind)
    else:
        finish(rt, replace(job, call=state), held, kind, account, answer)
    rt.gates.answered(kind.name, account.name)


def keep_task(rt: Runtime, job: ClaimedJob, state: CallState, task_id: str, kind: Kind) -> None:
    """Put the id onto the row and let go; if the row is no longer ours, keep the id in the receipts."""
    lease = job.lease
    try:
        rt.db.once(calls.checkpoint_call, lease, task_id, first_poll=kind.first_poll)
    except LeaseLost:
        rt.db.once(receipts.keep_receipt, lease.job_id, state, task_id)
        raise
    except TaskTaken:
        # A twin with the same input adopted our task while we waited for its answer. Ours is then the twin's.
        log.warning("call.task_taken job_id=%s kind=%s", lease.job_id, kind.name)
        rt.db.once(calls.mark_ambiguous, lease, look_in=kind.poll_every, why="task_taken")
        return
    reached("after_checkpoint", lease.job_id)
    rt.on_waiting()
    log.debug("call.accepted job_id=%s kind=%s task_id=%s", lease.job_id, kind.name, task_id)


def _run(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    ready = prepare(rt, job, held)
    if ready is None:
        return
    kind, account, call, state = ready
    provider = kind.provider
    assert isinstance(provider, SyncProvider)  # noqa: S101  # the registry checked it at import
    with rt.announcer.words(job.lease) as words:
        if isinstance(provider, StreamingProvider) and call.request.get("stream"):
            request = partial(provider.stream, account=account, call=call, hear=words.add)
        else:
            request = partial(provider.run, account=account, call=call)
        try:
            answer: Succeeded | Failed | ProviderError | StopWanted = rt.call_held(
                request, held, deadline=kind.send_deadline
            )
        except (ProviderError, StopWanted) as error:
            answer = error
    # What the stream said has been passed on by now: the end comes after it.
    if isinstance(answer, ProviderError):
        decide(rt, replace(job, call=state), kind, account, answer, heard=words.text)
        return
    if isinstance(answer, StopWanted):
        cancel(rt, job)
        return
    reached("after_accept", job.lease.job_id)
    finish(rt, replace(job, call=state), held, kind, account, answer, heard=words.text)
    rt.gates.answered(kind.name, account.name)


def finish(
    rt: Runtime,
    job: ClaimedJob,
    held: Held,
    kind: Kind,
    account: Account,
    answer: Succeeded | Failed,
    *,
    heard: str = "",
) -> None:
    """Settle by an outcome that came with the answer to `job`'s call, of which `heard` was said. Raises LeaseLost."""
    reached("after_result", job.lease.job_id)
    if isinstance(answer, Failed):
        fail(rt, job, answer.code, answer.message, heard=heard if answer.code in _BROKEN_OFF else "")
        return
    try:
        assets = _import_here(rt, job, held, kind, account, answer.media)
    except DownloadError as error:
        fail(rt, job, error.code, error.message, may_be_paid=True)
        rt.db.once(passes.raise_alert, f"import_refused:{error.code}", {"job_id": str(job.lease.job_id)})
        return
    except StopWanted:
        cancel(rt, job)
        return
    reached("after_upload", job.lease.job_id)
    complete_with(rt, job, answer, assets=assets)


def _import_here(
    rt: Runtime, job: ClaimedJob, held: Held, kind: Kind, account: Account, media: Sequence[Media]
) -> Sequence[NewAsset]:
    """What came with the answer is nowhere else: a decoder that died of this machine's troubles gets two more tries."""
    for _ in range(_MORE_TRIES):
        try:
            return import_now(rt, job, held, kind, account, media)
        except DownloadError as error:
            if not error.retryable:
                raise
    return import_now(rt, job, held, kind, account, media)


Ready = tuple[Kind, Account, Call, CallState]


def may_call(rt: Runtime, job: ClaimedJob, held: Held, kind_name: str) -> tuple[Kind, Account] | None:
    """Whom to call, and as whom. None when the job was given back or ended instead. Raises UnknownKind, LeaseLost."""
    kind = rt.kind(kind_name)
    try:
        account = rt.account(kind)
    except NoCredentials as error:
        give_back(rt, job, "provider_auth_missing", str(error))
        return None
    if held.stopping.is_set():
        cancel(rt, job)
        return None
    gate = rt.gates.closed(kind.name, account.name)
    if gate is not None:
        delay = timedelta(seconds=rt.gates.pause(gate))
        rt.db.once(jobs.requeue, job.lease, delay=delay, why=gate.reason)
        return None
    return kind, account


def prepare(rt: Runtime, job: ClaimedJob, held: Held) -> Ready | None:
    """Everything up to the committed intent. None when the job was given back or ended instead."""
    try:
        whom = may_call(rt, job, held, job_types.get(job.job_type).kind or "")
    except (job_types.UnknownJobType, UnknownKind) as error:
        give_back(rt, job, "unknown_job_type", str(error))
        return None
    if whom is None:
        return None
    kind, account = whom
    state = rt.db.once(
        calls.mark_call_started,
        job.lease,
        kind=kind.name,
        handle=handle_of(kind, account, job.request),
        quiet=kind.send_deadline + kind.visibility_lag,
    )
    reached("after_intent", job.lease.job_id)
    held.check("send")
    return kind, account, as_call(state, job.request, callback_url=callback_url(rt.options, job, state)), state


def handle_of(kind: Kind, account: Account, request: Mapping[str, object]) -> dict[str, object]:
    """What is frozen with the intent, so that nothing that changes later can redirect the call."""
    return {**kind.provider.handle(request), "account": account.name, "cancels": kind.cancels}


def as_call(state: CallState, request: object, *, callback_url: str | None = None) -> Call:
    """The call in the provider's words."""
    assert state.started_at is not None  # noqa: S101  # a started call has its time, by CHECK
    return Call(
        request=request if isinstance(request, dict) else {},
        handle=state.handle or {},
        call_key=str(state.key),
        started_at=state.started_at,
        callback_url=callback_url,
    )


def decide(
    rt: Runtime,
    job: ClaimedJob,
    kind: Kind,
    account: Account,
    error: ProviderError,
    *,
    heard: str = "",
    counted: bool = False,
) -> None:
    """The request gave no result: do what the error proves is safe. `counted`: another try costs an attempt."""
    decision = after_request_error(
        error,
        mode=kind.mode,
        attempt=job.attempt,
        attempts_left=job.attempt < job.max_attempts,
        retry_safe=job.retry_safe,
        patience=patience(rt, job),
        jitter=random.random(),  # noqa: S311  # spreads retries, nothing more
        claims=job.lease.epoch,
    )
    if counted and decision.act is Act.REQUEUE:
        decision = replace(decision, act=Act.RETRY)
    log.info(
        "call.error job_id=%s kind=%s code=%s fate=%s act=%s",
        job.lease.job_id, kind.name, error.code, error.fate, decision.act,
    )  # fmt: skip
    carry_out(rt, job, kind, decision, heard=heard)
    rt.gates.failed(kind.name, account.name, error)


WORK["start_call"] = _start
WORK["run_sync_call"] = _run
