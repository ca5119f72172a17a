"""What the store refuses, and why. Every class is a fact; its message names the field, the value and the remedy."""

from collections.abc import Sequence


class StoreError(Exception):
    """Root of everything the store raises on purpose."""


class SchemaBehind(StoreError):
    """The database is older than this code; run `callkeeper migrate` first."""

    def __init__(self, *, database: str | None, code: str) -> None:
        super().__init__(
            f"the database is at revision {database or 'none'}, this code needs {code}: run `callkeeper migrate`"
        )
        self.database = database
        self.code = code


class SchemaAhead(StoreError):
    """The database was migrated by newer code; this code must not migrate it."""

    def __init__(self, *, database: str, code: str) -> None:
        super().__init__(
            f"the database is at revision {database}, which this code (at {code}) does not know:"
            " migrate with the newer release"
        )
        self.database = database
        self.code = code


class LeaseLost(StoreError):
    """Somebody else decided about this job. Stop, discard, touch nothing."""

    def __init__(self, job_id: object, verb: str, *, epoch: int, owner: str) -> None:
        super().__init__(f"{verb} refused: job {job_id} is no longer held under epoch {epoch}")
        self.job_id = job_id
        self.verb = verb
        self.epoch = epoch
        self.owner = owner


class TaskTaken(StoreError):
    """Another job already owns this upstream task; it is the winner."""

    def __init__(self, kind: str, task_id: str) -> None:
        super().__init__(f"{kind} task {task_id} belongs to another job")
        self.kind = kind
        self.task_id = task_id


class JobNotFound(StoreError):
    def __init__(self, job_id: object) -> None:
        super().__init__(f"there is no job {job_id}: check the id")
        self.job_id = job_id


class RunNotFound(StoreError):
    def __init__(self, run_id: object) -> None:
        super().__init__(f"there is no run {run_id}: check the id")
        self.run_id = run_id


class SubmitRefused(StoreError):
    """Nothing was written: no row, no hold. The caller's transaction is still usable.

    `code` is a word for programs; `retryable`: the same submit may pass later; `retry_after`: in so many seconds.
    """

    code = "refused"
    retryable = False
    retry_after: float | None = None


class IdempotencyConflict(SubmitRefused):
    code = "idempotency_conflict"

    def __init__(self, key: str, job_id: object, *, what: str = "job") -> None:
        super().__init__(
            f"idempotency_key {key!r} was already used for another request ({what} {job_id}):"
            " use a new key for a new request"
        )
        self.key = key
        self.job_id = job_id


class InsufficientCredits(SubmitRefused):
    code = "insufficient_credits"

    def __init__(self, account_id: str, *, needed: int, available: int) -> None:
        super().__init__(
            f"account_id {account_id!r} has {available} credits available, this job reserves {needed}:"
            " grant credits or lower the price"
        )
        self.account_id = account_id
        self.needed = needed
        self.available = available


class PlanRefused(SubmitRefused):
    """The plan of a run cannot work; the message names the step, what is wrong, and the remedy."""

    code = "plan_refused"

    def __init__(self, step: str, why: str) -> None:
        super().__init__(f"steps.{step}: {why}")
        self.step = step


class AccountNotFound(SubmitRefused):
    code = "account_not_found"

    def __init__(self, account_id: str) -> None:
        super().__init__(f"account_id {account_id!r} does not exist: open it with a grant first")
        self.account_id = account_id


class QueueFull(SubmitRefused):
    """As many jobs are queued as a budget lets queue."""

    code = "queue_full"
    retryable = True

    def __init__(self, budget: str, *, limit: int, retry_after: float) -> None:
        super().__init__(
            f"budget {budget} lets {limit} jobs queue, and they do: try again in {retry_after:g} s,"
            " or have an operator raise it (`callkeeper budgets set`)"
        )
        self.budget = budget
        self.limit = limit
        self.retry_after = retry_after


class NeverFits(SubmitRefused):
    """A budget has no room for this job, however long it waits."""

    code = "budget_never_fits"

    def __init__(self, budget: str, *, limit: int, needed: int) -> None:
        super().__init__(
            f"budget {budget} is {limit} and this job needs {needed}: it would wait for ever;"
            " have an operator raise the budget, or lower the job's price"
        )
        self.budget = budget
        self.limit = limit
        self.needed = needed


class BudgetInvalid(StoreError):
    """An operator's budget cannot be set as asked. The message names the field."""


class EmergencyStopInvalid(StoreError):
    """The emergency stop cannot be set or released as asked. The message names the field."""


class SpendingRefused(StoreError):
    """The emergency stop does not let this call begin; nothing was sent or written for it.

    `code` is a word for programs; `retryable`: the same call may begin later; `retry_after`: in so many seconds.
    """

    code = "spending_refused"
    retryable = False
    retry_after: float | None = None


class SpendingStopped(SpendingRefused):
    """The stop has latched: nothing that has a price begins until somebody releases it."""

    code = "emergency_stop"

    def __init__(self, *, amount: int, used: int) -> None:
        super().__init__(
            f"the emergency stop of {amount} has latched, {used} micro-USD are spent in its window:"
            " an operator looks into it and releases it (`callkeeper emergency-stop release`)"
        )
        self.amount = amount
        self.used = used


class SpendingReserved(SpendingRefused):
    """What is left is set aside for calls under way. What they do not use is free when they end."""

    code = "spending_reserved"
    retryable = True

    def __init__(self, *, amount: int, used: int, reserved: int, needed: int, retry_after: float) -> None:
        super().__init__(
            f"this call may cost {needed} micro-USD; of the emergency stop's {amount}, {used} are spent and {reserved}"
            f" set aside for calls under way: try again in {retry_after:g} s"
        )
        self.needed = needed
        self.retry_after = retry_after


class SpendingInsufficient(SpendingRefused):
    """The call may cost more than what is left, whatever the calls under way give back."""

    code = "spending_insufficient"

    def __init__(self, *, amount: int, used: int, needed: int) -> None:
        super().__init__(
            f"this call may cost {needed} micro-USD; of the emergency stop's {amount}, {used} are spent: lower what it"
            " may write or its model's price, or have an operator raise the stop (`callkeeper emergency-stop set`)"
        )
        self.needed = needed


class InvalidRequest(SubmitRefused):
    """The request cannot be stored. `path` says where in it, as in `input.images[2]`."""

    code = "invalid_request"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"request field {path}: {problem}")
        self.path = path
        self.problem = problem


class RequestHasNul(InvalidRequest):
    def __init__(self, path: str) -> None:
        super().__init__(path, "holds a NUL character, which Postgres cannot store: remove it")


class RequestHasLoneSurrogate(InvalidRequest):
    def __init__(self, path: str) -> None:
        super().__init__(path, "holds half of a surrogate pair, which is not text: decode it properly first")


class RequestHasNonFiniteNumber(InvalidRequest):
    def __init__(self, path: str, value: float) -> None:
        super().__init__(path, f"is {value}, which JSON does not have: send a finite number or null")


class RequestHasHugeInteger(InvalidRequest):
    def __init__(self, path: str, limit: int) -> None:
        super().__init__(path, f"is an integer of more than {limit} bits: send it as text")


class RequestHasWrongType(InvalidRequest):
    def __init__(self, path: str, value: object) -> None:
        super().__init__(path, f"is of type {type(value).__name__}, which JSON does not have: convert it first")


class RequestTooDeep(InvalidRequest):
    def __init__(self, path: str, limit: int) -> None:
        super().__init__(path, f"is nested deeper than {limit} levels: flatten it")


class RequestTooLarge(InvalidRequest):
    def __init__(self, size: int, limit: int) -> None:
        super().__init__("(all)", f"is {size} bytes of JSON, the limit is {limit}: pass large inputs by URL")


class InlineSecret(InvalidRequest):
    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            path,
            f"{why}; secrets are never stored: put it in the workers' environment as CALLKEEPER_SECRET_<NAME>"
            ' and send {"$secret": "<name>"} instead',
        )


class MessageRefused(StoreError):
    def __init__(self, fields: Sequence[str]) -> None:
        super().__init__(f"queue message refused: {', '.join(fields)}")
