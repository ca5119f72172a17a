"""What an app may submit: one decorator a job type, one registry, and the checks before anything is stored."""

import hashlib
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from pydantic import BaseModel

from actors.asked import check_choices, check_words, validated
from actors.effects import owed_by
from providers.contract import Mode
from providers.registry import KINDS, get_kind
from store.errors import SubmitRefused
from store.hygiene import check_request
from store.models import NewJob

F = TypeVar("F", bound=Callable[..., Any])
Price = int | Callable[[Any], int]
Cost = Callable[[Mapping[str, Any]], int]

QUEUES = ("calls", "large")
_MAX_NAME = 128  # bytes, as the table's own check says
_STALE_AFTER = timedelta(minutes=30)  # local handlers


class UnknownJobType(SubmitRefused):
    code = "unknown_job_type"

    def __init__(self, name: str) -> None:
        known = ", ".join(sorted(REGISTRY)) or "none"
        super().__init__(
            f"job type {name!r} is not registered: known are {known};"
            " import the module that registers it, here and in the workers (CALLKEEPER_MODULES)"
        )
        self.name = name


@dataclass(frozen=True, slots=True)
class Plan:
    """What one request comes to: the actor that does the work, the provider kind it calls, what is stored for it."""

    actor: str
    kind: str | None
    request: Mapping[str, Any]

    @property
    def mode(self) -> str:
        return _mode(self.kind)

    @property
    def stale_after(self) -> timedelta:
        return get_kind(self.kind).stale_after if self.kind else _STALE_AFTER


@dataclass(frozen=True, slots=True)
class JobType:
    """A registered job type. `kind` names a provider kind, or is None for a local handler.

    A type with `plan` decides by each request. `pauses`: seconds before each further attempt, the last one again and
    again; by default they grow (CALLKEEPER_RETRY_BASE). `plain`: it came with Callkeeper and has no price.
    """

    name: str
    request: type[BaseModel]
    kind: str | None
    function: Callable[..., Any] | None
    price: Price
    cost: Cost | None
    retry_safe: bool
    max_attempts: int
    queue_deadline: timedelta
    deadline: timedelta
    queue: str
    heavy: bool = False
    may_abandon: bool = False
    attempt_deadline: timedelta | None = None
    plan: Callable[[Any], Plan] | None = None
    pauses: Sequence[float] = ()
    plain: bool = False

    @property
    def actor(self) -> str:
        """Who does the work of a type that does not decide by its request."""
        return {"local": "run_handler", Mode.SYNC: "run_sync_call", Mode.ASYNC: "start_call"}[_mode(self.kind)]

    def price_of(self, asked: BaseModel) -> int:
        """What a job with this request reserves, in credits."""
        return self.price(asked) if callable(self.price) else self.price

    def planned(self, asked: BaseModel, body: Mapping[str, Any]) -> Plan:
        """What `asked`, which is `body` as JSON, comes to. Raises InvalidRequest."""
        if self.plan is None:
            return Plan(self.actor, self.kind, _provider_request(self, asked, body))
        check_request((plan := self.plan(asked)).request)
        return plan


def _mode(kind: str | None) -> str:
    return "local" if kind is None else str(get_kind(kind).mode)


REGISTRY: dict[str, JobType] = {}


def register(job_type: JobType) -> None:
    """Add to the registry. Raises ValueError naming the field that cannot be right."""
    problems = {
        "name": not 0 < len(job_type.name.encode()) <= _MAX_NAME,
        "max_attempts": job_type.max_attempts < 1,
        "queue_deadline": job_type.queue_deadline <= timedelta(0),
        "deadline": job_type.deadline <= timedelta(0),
        "attempt_deadline": job_type.attempt_deadline is not None and job_type.attempt_deadline <= timedelta(0),
        f"queue (one of {', '.join(QUEUES)})": job_type.queue not in QUEUES,
        "price": isinstance(job_type.price, int) and job_type.price < 0,
    }
    wrong = [name for name, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise ValueError(f"job type {job_type.name!r}: {', '.join(wrong)} out of range")
    longest = longest_run(job_type)
    shortest = min(job_type.deadline, job_type.attempt_deadline or job_type.deadline)
    if shortest < longest:
        raise ValueError(
            f"job type {job_type.name!r}: its deadline {shortest} is shorter than {job_type.kind} may run"
            f" ({longest}), so paid work would be given up: choose a longer one, or say may_abandon=True"
        )
    known = REGISTRY.get(job_type.name)
    if known is not None and _identity(known) != _identity(job_type):
        raise ValueError(f"job type {job_type.name!r} is already registered: choose another name")
    REGISTRY[job_type.name] = job_type


def longest_run(job_type: JobType) -> timedelta:
    """How long its paid work may take, and so what a deadline may not be shorter than."""
    return get_kind(job_type.kind).max_run if job_type.kind and not job_type.may_abandon else timedelta(0)


def _identity(job_type: JobType) -> object:
    function = job_type.function or job_type.plan
    return None if function is None else (function.__module__, function.__qualname__)


def job_type(
    name: str,
    *,
    request: type[BaseModel],
    kind: str | None = None,
    price: Price = 0,
    cost: Cost | None = None,
    retry_safe: bool = False,
    max_attempts: int = 3,
    queue_deadline: timedelta = timedelta(hours=6),
    deadline: timedelta | None = None,
    may_abandon: bool = False,
    attempt_deadline: timedelta | None = None,
    queue: str = "calls",
    heavy: bool = False,
) -> Callable[[F], F]:
    """Register the decorated function as a job type.

    With `kind`, the function turns the app's request into the provider's (`function(request)`); it runs at submit, so
    what is called later is what was submitted. Without, it is a local handler (`function(context, request)`) and
    returns the job's result. `price` is what a job reserves, in whole credits, or a function of the request; `cost`
    maps the provider's usage to whole credits, by default the price. `retry_safe` says that running again after an
    unknown outcome does no harm. `queue_deadline` bounds waiting for a start, `deadline` the time from the first start,
    `attempt_deadline` each attempt: what may run again then does while an attempt is left, anything else times out. One
    that is shorter than the kind may run needs `may_abandon`, for it gives up work that is paid for.
    `heavy`: a worker lost while it runs this handler or imports this type's results was perhaps out of memory, so a
    step of a run goes on in the queue `large`.
    """

    def decorate(function: F) -> F:
        limit = deadline or (get_kind(kind).max_run + timedelta(minutes=30) if kind else timedelta(hours=1))
        register(
            JobType(
                name=name,
                request=request,
                kind=kind,
                function=function,
                price=price,
                cost=cost,
                retry_safe=retry_safe,
                max_attempts=max_attempts,
                queue_deadline=queue_deadline,
                deadline=limit,
                attempt_deadline=attempt_deadline,
                queue=queue,
                heavy=heavy,
                may_abandon=may_abandon,
            )
        )
        return function

    return decorate


def get(name: str) -> JobType:
    """The registered job type. Raises UnknownJobType."""
    try:
        return REGISTRY[name]
    except KeyError:
        raise UnknownJobType(name) from None


def prepare(
    name: str,
    request: BaseModel | Mapping[str, Any],
    *,
    user_id: str | None,
    account_id: str | None,
    idempotency_key: str | None,
    delay: timedelta,
    visibility: str | None = None,
    watermark: bool = False,
    app: str | None = None,
    priority: int = 0,
) -> NewJob:
    """Everything submit will write, checked. Raises UnknownJobType, BadRequest and the other InvalidRequest classes."""
    asked = validated(name, (kind_of_job := get(name)).request, request)
    check_request(body := asked.model_dump(mode="json"))
    payer = account_id if (price := kind_of_job.price_of(asked)) == 0 or account_id is not None else user_id
    check_words({"idempotency_key": idempotency_key, "user_id": user_id, "account_id": payer, "app": app})
    check_choices(visibility, priority, price, payer, name)
    plan = kind_of_job.planned(asked, body)
    return NewJob(
        job_type=name,
        mode=plan.mode,
        queue=kind_of_job.queue,
        actor=plan.actor,
        request=plan.request,
        fingerprint=hashlib.sha256(json.dumps([name, body], sort_keys=True).encode()).hexdigest(),
        price=price,
        max_attempts=kind_of_job.max_attempts,
        retry_safe=kind_of_job.retry_safe,
        provider_kind=plan.kind or "local",
        queue_limit=kind_of_job.queue_deadline,
        run_limit=kind_of_job.deadline,
        attempt_limit=kind_of_job.attempt_deadline,
        user_id=user_id,
        account_id=payer,
        idempotency_key=idempotency_key,
        delay=delay,
        stale_after=plan.stale_after,
        visibility=visibility,
        watermark=watermark,
        effects=owed_by(name),
        heavy=kind_of_job.heavy,
        app=app,
        priority=priority,
    )


def offered(chosen: Collection[str]) -> dict[str, JobType]:
    """The job types that strangers may submit: those chosen, or all that the app itself registered.

    A plain one (`ai-task`, a provider kind's own name) is offered only if chosen: it has no price, and takes any
    request to the provider.
    Raises UnknownJobType for a chosen one that nobody registered.
    """
    if not chosen:
        return {name: one for name, one in sorted(REGISTRY.items()) if not one.plain}
    return {name: get(name) for name in sorted(chosen)}


def _provider_request(kind_of_job: JobType, asked: BaseModel, body: Mapping[str, Any]) -> Mapping[str, Any]:
    if kind_of_job.kind is None:
        return body
    built = kind_of_job.function(asked) if kind_of_job.function else body
    provider_model = get_kind(kind_of_job.kind).provider.request_model
    stored = validated(f"{kind_of_job.name} ({kind_of_job.kind})", provider_model, built).model_dump(mode="json")
    check_request(stored)
    return stored


def _register_plain_kinds() -> None:
    """Each provider kind is a job type by its own name, without a price: what `callkeeper submit KIND` uses."""
    for kind in KINDS.values():
        register(
            JobType(
                name=kind.name,
                request=kind.provider.request_model,
                kind=kind.name,
                function=None,
                price=0,
                cost=None,
                retry_safe=False,
                max_attempts=3,
                queue_deadline=timedelta(hours=6),
                deadline=kind.max_run + timedelta(minutes=30),
                queue="calls",
                plain=True,
            )
        )


_register_plain_kinds()
