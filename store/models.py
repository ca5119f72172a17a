"""What travels between the store and its callers: frozen, typed, without behaviour."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from store.states import State


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write to one running job: valid while the row carries the same epoch and token."""

    job_id: UUID
    epoch: int
    token: UUID
    owner: str

    @property
    def binds(self) -> dict[str, Any]:
        return {"held_id": self.job_id, "held_epoch": self.epoch, "held_token": self.token}


@dataclass(frozen=True, slots=True)
class PollLease:
    """The right to say what a poll of one waiting job found."""

    job_id: UUID
    epoch: int
    token: UUID
    owner: str

    @property
    def binds(self) -> dict[str, Any]:
        return {"held_id": self.job_id, "held_epoch": self.epoch, "held_token": self.token}


@dataclass(frozen=True, slots=True)
class CallState:
    """The call as the row knows it; all None and generation 0 before the first intent."""

    kind: str | None
    task_id: str | None
    key: UUID | None
    generation: int
    handle: Mapping[str, Any] | None
    started_at: datetime | None
    resolve_by: datetime | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A job's place in a run: `depends_on` names other steps; `round` grows each time the run is resumed."""

    run_id: UUID
    step: str
    stage: str
    operation_key: str
    depends_on: Sequence[str] = ()
    optional: bool = False
    round: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedJob:
    """A job that was just claimed, or whose result was just taken, with all that running it needs."""

    lease: Lease
    user_id: str | None
    job_type: str
    actor: str
    mode: str
    queue: str
    attempt: int
    max_attempts: int
    retry_safe: bool
    price: int
    deadline_at: datetime
    request: Mapping[str, Any]
    call: CallState
    stopping: bool = False  # a stop came while nobody held it
    place: Place | None = None
    misses: int = 0  # looks in a row that brought no result home
    import_failures: int = 0  # how often this call's result could not be fetched whole
    watermark: bool = False  # decided at submit: what is kept carries a mark


@dataclass(frozen=True, slots=True)
class DuePoll:
    """A waiting job whose poll lease we hold. `request` is there only while the call is ambiguous."""

    lease: PollLease
    job_type: str
    call: CallState
    misses: int
    age: float  # seconds since the intent, by the database's clock
    overdue: bool  # the quiet period is over: an empty find is final
    stopping: bool  # a stop waits to be honoured
    queue: str
    request: Mapping[str, Any] | None
    stale: bool = False  # past the kind's threshold: nobody else will bring it home any more
    run_id: UUID | None = None
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class PollNote:
    """What one poll learned about work that goes on."""

    lease: PollLease
    next_in: timedelta
    progress: float | None = None
    missed: bool | None = False  # None: this look proves nothing, the count stays


@dataclass(frozen=True, slots=True)
class NewAsset:
    """A file that is whole in the object store, not yet anybody's. `partial`: only a part of what was to come."""

    object_key: str
    content_type: str
    size_bytes: int
    sha256: str
    partial: bool = False


@dataclass(frozen=True, slots=True)
class StepWarning:
    """What a step's result is not quite. `severity` info or warning; `quality` standard, repaired or degraded."""

    code: str
    severity: str = "warning"
    customer_visible: bool = True
    quality: str = "standard"
    details: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settlement:
    """How a job ends. `cost` in whole credits, None for the whole reservation; `error_code` iff not completed.

    `warnings` and `steps` (jobs to add to the run) are for a completed step of a run; with `steps_first`, what depends
    on this step waits for the added ones, too.
    """

    status: State
    result: Mapping[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    cost: int | None = None
    assets: Sequence[NewAsset] = ()
    provider_id: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    may_be_paid: bool = False  # the call may cost us although it brought nothing
    warnings: Sequence[StepWarning] = ()
    steps: Sequence["NewJob"] = ()
    steps_first: bool = False


@dataclass(frozen=True, slots=True)
class NewRun:
    """Everything `submit_run` writes of the run itself, already validated."""

    run_type: str
    fingerprint: str
    result_step: str
    node_limit: timedelta
    run_limit: timedelta
    user_id: str | None = None
    account_id: str | None = None
    idempotency_key: str | None = None
    reuse: bool = False
    email: str | None = None
    watermark: bool = False


@dataclass(frozen=True, slots=True)
class NewJob:
    """Everything `submit` writes, already validated. Durations are from now on the database's clock."""

    job_type: str
    mode: str
    queue: str
    actor: str
    request: Mapping[str, Any]
    fingerprint: str
    price: int
    max_attempts: int
    retry_safe: bool
    queue_limit: timedelta
    run_limit: timedelta
    attempt_limit: timedelta | None = None
    provider_kind: str = "local"
    user_id: str | None = None
    account_id: str | None = None
    idempotency_key: str | None = None
    delay: timedelta = timedelta(0)
    stale_after: timedelta = timedelta(minutes=30)
    visibility: str | None = None  # public, private; None: the paying account's baseline
    watermark: bool = False
    effects: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by outcome, in order
    heavy: bool = False
    place: Place | None = None
    app: str | None = None
    priority: int = 0


@dataclass(frozen=True, slots=True)
class SubmittedRun:
    """`created` is false when the key was already used for the same plan; `jobs` has the job of each step."""

    run_id: UUID
    status: str
    created: bool
    jobs: Mapping[str, UUID]


@dataclass(frozen=True, slots=True)
class Submitted:
    """`created` is false when the key was already used for the same request; `status` is the job's status now."""

    job_id: UUID
    status: State
    created: bool
