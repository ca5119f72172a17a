"""What travels over HTTP: requests are checked against these models, answers and OpenAPI are made of them."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from store.states import State

LONGEST_DELAY = 30 * 86_400  # seconds
MOST_ON_A_PAGE = 100


class SubmitJob(BaseModel):
    """What to run. `delay_seconds`: not before that many seconds from now."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job_type: Annotated[str, Field(min_length=1, max_length=128)]
    request: dict[str, Any]
    delay_seconds: Annotated[float, Field(ge=0, le=LONGEST_DELAY)] = 0


class Submitted(BaseModel):
    """`created` is false when the key was already used for the same request; `status` is the job's status now."""

    job_id: UUID
    status: State
    created: bool


class JobError(BaseModel):
    """Why a job did not complete. docs/failure-codes.md explains each code."""

    code: str
    message: str | None


class JobSummary(BaseModel):
    """A job without what it brought. `last_event` is the number of its newest milestone."""

    id: UUID
    job_type: str
    status: State
    attempt: int
    max_attempts: int
    progress: float | None
    price: int
    error: JobError | None
    last_event: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Asset(BaseModel):
    """A file of a result, in the object store under its key."""

    object_key: str
    content_type: str
    size_bytes: int
    sha256: str


class Job(JobSummary):
    """A job with its outcome: a result or an error, never both. `charged` is in whole credits."""

    credits: str | None
    charged: int | None
    result: dict[str, Any] | None
    assets: list[Asset]


class JobPage(BaseModel):
    """Newest first. `next`: send it as `cursor` for the page after this one; null on the last page."""

    jobs: list[JobSummary]
    next: str | None


class JobQuery(BaseModel):
    """Which page of whose jobs. Values are those of a query string."""

    model_config = ConfigDict(extra="forbid")

    status: State | None = None
    job_type: Annotated[str | None, Field(min_length=1, max_length=128)] = None
    limit: Annotated[int, Field(ge=1, le=MOST_ON_A_PAGE)] = 20
    cursor: Annotated[str | None, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")] = None


class EventQuery(BaseModel):
    """`tokens=false` leaves out what is never stored."""

    model_config = ConfigDict(extra="forbid")

    tokens: bool = True


class Event(BaseModel):
    """The data of one event. A milestone has a number of its own in `seq`; what is never stored has that of the last
    milestone before it, and no `at`.
    """

    seq: int
    kind: str
    attempt: int
    epoch: int
    at: datetime | None = None
    data: dict[str, Any]


class Stopped(BaseModel):
    """The state the job is in now: cancelled, another end that was there first, or open until its holder hears it."""

    job_id: UUID
    status: State


class Kept(BaseModel):
    """A callback is stored. `kept` is false when the same delivery had come before."""

    kept: bool


class FieldProblem(BaseModel):
    """`field`: a path in the body, as in `request.images[2]`, or the name of a header or a query parameter."""

    field: str
    problem: str


class Refusal(BaseModel):
    """Why not, for programs (`code`) and people (`message`)."""

    code: str
    message: str
    fields: list[FieldProblem] = []


class Refused(BaseModel):
    """The body of every answer that is not a success."""

    error: Refusal


class Alive(BaseModel):
    """This process answers."""

    status: str


class CheckResult(BaseModel):
    """One check. `said` names what is wrong and the remedy."""

    name: str
    ok: bool
    said: str


class Readiness(BaseModel):
    """Whether the whole system does its work, check by check."""

    ready: bool
    checks: list[CheckResult]
