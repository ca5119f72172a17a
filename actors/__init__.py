"""Dramatiq actors and what they decide; the only place that knows both others. Apps import from here.

from actors import job_type, submit, stop, follow
"""

from actors.broker import broker  # before all actors

# isort: split
from actors.ai.profiles import register_profile
from actors.ai.tasks import register_ai_task
from actors.ai.work import run_ai_task
from actors.asked import BadRequest
from actors.call import run_sync_call, start_call
from actors.callbacks import CallbackRefused, apply_callback
from actors.context import Context, RetryLater, SecretMissing
from actors.deliver import import_result
from actors.effects import Ended, on_cancelled, on_completed, on_failed
from actors.follow import Followers, Frame, followers
from actors.handler import run_handler
from actors.job_types import UnknownJobType, job_type
from actors.lease import StopWanted
from actors.outbox import deliver
from actors.passes import book_lost_calls, sweep, watch_runs, watchdog
from actors.poll import poll_due
from actors.public import follow, follow_async, job, stop, submit
from actors.repairs import repair
from store.errors import (
    AccountNotFound,
    IdempotencyConflict,
    InsufficientCredits,
    InvalidRequest,
    JobNotFound,
    LeaseLost,
    NeverFits,
    QueueFull,
    SubmitRefused,
)
from store.ledger import balance, grant
from store.models import Submitted
from store.states import State

__all__ = [
    "AccountNotFound",
    "BadRequest",
    "CallbackRefused",
    "Context",
    "Ended",
    "Followers",
    "Frame",
    "IdempotencyConflict",
    "InsufficientCredits",
    "InvalidRequest",
    "JobNotFound",
    "LeaseLost",
    "NeverFits",
    "QueueFull",
    "RetryLater",
    "SecretMissing",
    "State",
    "StopWanted",
    "SubmitRefused",
    "Submitted",
    "UnknownJobType",
    "apply_callback",
    "balance",
    "book_lost_calls",
    "broker",
    "deliver",
    "follow",
    "follow_async",
    "followers",
    "grant",
    "import_result",
    "job",
    "job_type",
    "on_cancelled",
    "on_completed",
    "on_failed",
    "poll_due",
    "register_ai_task",
    "register_profile",
    "repair",
    "run_ai_task",
    "run_handler",
    "run_sync_call",
    "start_call",
    "stop",
    "submit",
    "sweep",
    "watch_runs",
    "watchdog",
]
