"""Running an AI task: ask the pinned model, check its answer, ask again at most twice, settle.

Each question is a call of its own: its intent and its row in the ledger are committed before it leaves.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

import dramatiq
from pydantic import ValidationError

from actors import job_types, spending
from actors.admission import WORK
from actors.ai import prompts
from actors.ai.profiles import ModelChanged, unchanged
from actors.ai.requests import Task
from actors.ai.schemas import Malformed, Misfit, Output, read
from actors.ai.tasks import ACTOR, StoredTask
from actors.call import Draining, as_call, decide, handle_of, may_call, with_claim
from actors.classify import Act, Decision
from actors.lease import Held, StopWanted
from actors.letting_go import cancel, carry_out, fail, give_back, patience
from actors.points import reached
from actors.pricing import cost_of, tokens_in
from actors.results import metered, settle_completed
from actors.runtime import Runtime, runtime
from actors.settings import AiProfile
from providers.contract import Account, Failed, Kind, Succeeded, SyncProvider
from providers.errors import ProviderError
from providers.registry import UnknownKind
from store import call_ledger
from store.call_ledger import Spend
from store.errors import SpendingRefused
from store.models import ClaimedJob, Settlement
from store.states import State

log = logging.getLogger("callkeeper.ai")

REPAIRS = 2
# Answers that are no answer yet; any other end without a result is the provider's last word.
_MALFORMED = {
    "output_truncated": ("the answer was cut off: keep it shorter", "cut off"),
    "output_missing": ("the answer is empty", "empty"),
}


@dramatiq.actor(queue_name="calls", priority=10, throws=Draining, actor_name=ACTOR)
def run_ai_task(job_id: str) -> None:
    """Run an AI task under a kept lease. The message is a wake-up; the row decides whether there is work."""
    rt = runtime()
    with_claim(rt, UUID(job_id))


@dataclass(frozen=True, slots=True)
class _Talk:
    """One attempt at a task: who asks whom for what."""

    job: ClaimedJob
    held: Held
    stored: StoredTask
    profile: AiProfile
    kind: Kind
    account: Account

    @property
    def task(self) -> Task:
        return self.stored.task

    @property
    def price(self) -> Mapping[str, int]:
        return {"input": self.profile.price_in, "output": self.profile.price_out}


def _run(rt: Runtime, job: ClaimedJob, held: Held) -> None:
    try:
        job_types.get(job.job_type)
        stored = StoredTask.model_validate(job.request)
        profile = unchanged(stored.pinned)
        whom = may_call(rt, job, held, stored.pinned.kind)
    except (job_types.UnknownJobType, UnknownKind, ValidationError) as error:
        give_back(rt, job, "unknown_job_type", str(error))
        return
    except ModelChanged as changed:
        fail(rt, job, "model_changed", str(changed))
        return
    if whom is not None:
        _talk(rt, _Talk(job, held, stored, profile, *whom))


def _talk(rt: Runtime, talk: _Talk) -> None:
    question, asked, misfit = prompts.first(talk.task, talk.profile), 0, None
    try:
        # Of the calls before this attempt; read now, for an answer in hand is settled before anything else.
        usage = rt.db.once(call_ledger.totals, talk.job.lease.job_id)
        while True:
            answer = _ask(rt, talk, question, again=asked > 0)
            asked += 1
            _add(usage, answer, talk.price)
            found = _reading(talk.task, answer)
            misfit = found if isinstance(found, Misfit) else misfit
            if asked > REPAIRS or not isinstance(found, Malformed | Misfit):
                break
            log.info("ai.asked_again job_id=%s question=%s", talk.job.lease.job_id, asked)
            text = (answer.text or "") if isinstance(answer, Succeeded) else ""
            question = prompts.repair(talk.task, talk.profile, answer=text, problem=found.problem)
    except ProviderError as error:
        # What was paid for in this attempt is lost with it, so it counts.
        decide(rt, talk.job, talk.kind, talk.account, error, counted=asked > 0)
    except StopWanted:
        cancel(rt, talk.job)
    except SpendingRefused as refused:
        if asked and refused.retryable:
            _again(rt, talk, refused.code, str(refused))
        else:
            spending.refused(rt, talk.job, refused)
    else:
        # One answer of another shape says that the model can write JSON, and not what it is asked for.
        _end(rt, talk, answer, misfit if misfit and isinstance(found, Malformed) else found, usage)


def _ask(rt: Runtime, talk: _Talk, question: dict[str, object], *, again: bool) -> Succeeded | Failed:
    """One call: intent, request, booking. Raises ProviderError, StopWanted, SpendingRefused or LeaseLost."""
    job, kind, account, provider = talk.job, talk.kind, talk.account, talk.kind.provider
    assert isinstance(provider, SyncProvider)  # noqa: S101  # profiles are of such kinds only
    spend = _spend(talk, question)
    state = spending.begin(
        rt,
        job,
        kind=kind.name,
        handle=handle_of(kind, account, question),
        quiet=kind.send_deadline + kind.visibility_lag,
        spend=spend,
        next_call=again,
    )
    reached("after_intent", job.lease.job_id)
    talk.held.check("send")
    call = as_call(state, question)
    answer = spending.make(
        rt,
        job,
        talk.held,
        state,
        spend,
        lambda client: provider.run(client, account, call),
        deadline=kind.send_deadline,
    )
    reached("after_accept", job.lease.job_id)
    rt.gates.answered(kind.name, account.name)
    return answer


def _spend(talk: _Talk, question: dict[str, object]) -> Spend:
    read_at_most = len(json.dumps(question, ensure_ascii=False).encode())  # no token is shorter than a byte
    written_at_most = prompts.most_tokens(talk.task, talk.profile)
    return Spend(
        account=talk.account.name,
        provider_model=talk.stored.pinned.model,
        price=talk.price,
        reserved=cost_of(talk.price, input_tokens=read_at_most, output_tokens=written_at_most),
        may_run=talk.kind.send_deadline,
        profile=talk.stored.pinned.profile,
    )


def _reading(task: Task, answer: Succeeded | Failed) -> Output | Malformed | Misfit | Failed:
    if isinstance(answer, Succeeded):
        return read(task, answer.text or "")
    return Malformed(*_MALFORMED[answer.code]) if answer.code in _MALFORMED else answer


def _add(usage: dict[str, int], answer: Succeeded | Failed, price: Mapping[str, int]) -> None:
    read_and_written = tokens_in(answer.usage)
    usage["calls"] += 1
    if read_and_written is not None:
        usage["input_tokens"] += read_and_written[0]
        usage["output_tokens"] += read_and_written[1]
        usage["cost_micro_usd"] += cost_of(price, input_tokens=read_and_written[0], output_tokens=read_and_written[1])


def _end(
    rt: Runtime,
    talk: _Talk,
    answer: Succeeded | Failed,
    found: Output | Malformed | Misfit | Failed,
    usage: dict[str, int],
) -> None:
    reached("after_result", talk.job.lease.job_id)
    match found:
        case Malformed(where=where):
            _again(rt, talk, "loop_failed", f"after {REPAIRS} repairs the answer is still of no use: {where}")
        case Misfit(where=where):
            fail(rt, talk.job, "invalid_output", f"after {REPAIRS} repairs the answer does not fit: {where}")
        case Failed(code=code, message=message):
            fail(rt, talk.job, code, message)
        case _:
            _complete(rt, talk, answer, found, usage)


def _again(rt: Runtime, talk: _Talk, code: str, message: str) -> None:
    """Another attempt after its pause, while one is left; otherwise the end."""
    pause = patience(rt, talk.job).before_next(talk.job.attempt, jitter=0.5)
    carry_out(rt, talk.job, talk.kind, Decision(Act.RETRY, code, message, pause))


def _complete(rt: Runtime, talk: _Talk, answer: Succeeded | Failed, output: Output, usage: dict[str, int]) -> None:
    job, pinned, made = talk.job, talk.stored.pinned, usage.pop("calls")
    outcome = Settlement(
        status=State.COMPLETED,
        result={
            "output": dict(output),
            "usage": usage,
            "model": pinned.model,
            "profile": pinned.profile,
            "calls": made,
        },
        cost=metered(rt, job_types.get(job.job_type), usage),
        provider_id=answer.provider_id,
    )
    settle_completed(rt, job, outcome)


WORK[ACTOR] = _run
