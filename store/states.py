"""The state machine as data: tests, the diagram in the docs and the CHECK constraints are made from it."""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


OPEN = (State.QUEUED, State.RUNNING, State.WAITING)
TERMINAL = (State.COMPLETED, State.FAILED, State.TIMED_OUT, State.CANCELLED)


class Transition(NamedTuple):
    """`sources` empty means: the row is created. `target` None means: the state stays."""

    sources: tuple[State, ...]
    target: State | None
    guard: str


TRANSITIONS: dict[str, Transition] = {
    "submit": Transition((), State.QUEUED, "key free, credits available"),
    "claim_queued": Transition((State.QUEUED,), State.RUNNING, "due, before its queue deadline"),
    "mark_call_started": Transition((State.RUNNING,), None, "holder, no call started"),
    "checkpoint_call": Transition((State.RUNNING,), State.WAITING, "holder, call started, no task id yet"),
    "mark_ambiguous": Transition((State.RUNNING,), State.WAITING, "holder, call started, no task id yet"),
    "claim_due_polls": Transition((State.WAITING,), None, "next_poll_at passed"),
    "record_poll": Transition((State.WAITING,), None, "poll holder"),
    "adopt_call": Transition((State.WAITING,), None, "poll holder, no task id yet"),
    "mark_result_known": Transition((State.WAITING,), None, "poll holder, task id known"),
    "take_result": Transition((State.WAITING,), State.RUNNING, "result known"),
    "take_polled": Transition((State.WAITING,), State.RUNNING, "poll holder, task id known"),
    "return_result": Transition((State.RUNNING,), State.WAITING, "holder, task id known"),
    "requeue": Transition((State.RUNNING,), State.QUEUED, "holder, last call known ended or never sent"),
    "requeue_lost": Transition((State.RUNNING,), State.QUEUED, "lease lapsed, safe to run again"),
    "resume_lost": Transition((State.RUNNING,), State.WAITING, "lease lapsed, asynchronous call started"),
    "complete": Transition((State.RUNNING,), State.COMPLETED, "holder"),
    "fail": Transition(OPEN, State.FAILED, "holder, poll holder, or lapsed lease"),
    "time_out": Transition(OPEN, State.TIMED_OUT, "its deadline passed"),
    "cancel": Transition(OPEN, State.CANCELLED, "holder, poll holder, or nobody working"),
}
