"""Every table as SQLAlchemy Core, with its CHECKs and indexes; a test holds it equal to the migrated database.

`jobs` is narrow: what beats (lease, poll, progress) is rewritten often, so the request lives apart in `job_requests`.
`lease_until` stands in no index, so a heartbeat is a heap-only update; lapsed leases are found through the small
partial index over running rows.
"""

from store.tables.access import api_tokens
from store.tables.base import SCHEMA, metadata
from store.tables.budgets import budget_changes, budgets, spending
from store.tables.inbox import provider_gates, webhook_deliveries
from store.tables.jobs import job_requests, jobs
from store.tables.log import assets, call_receipts, followed, job_events, job_signals
from store.tables.money import accounts, usage_logs
from store.tables.operations import alerts, passes, stale_writes, ticks
from store.tables.outbox import alert_notices, consequences, notices
from store.tables.reconciliation import job_looks, standalone_assets, unexplained_spend, upstream_watches
from store.tables.runs import rollout_decisions, rollout_flags, run_events, run_outcomes, run_warnings, runs
from store.tables.spending import call_ledger, emergency_stop, emergency_stop_history, spending_hours

__all__ = [
    "SCHEMA",
    "accounts",
    "alert_notices",
    "alerts",
    "api_tokens",
    "assets",
    "budget_changes",
    "budgets",
    "call_ledger",
    "call_receipts",
    "consequences",
    "emergency_stop",
    "emergency_stop_history",
    "followed",
    "job_events",
    "job_looks",
    "job_requests",
    "job_signals",
    "jobs",
    "metadata",
    "notices",
    "passes",
    "provider_gates",
    "rollout_decisions",
    "rollout_flags",
    "run_events",
    "run_outcomes",
    "run_warnings",
    "runs",
    "spending",
    "spending_hours",
    "stale_writes",
    "standalone_assets",
    "ticks",
    "unexplained_spend",
    "upstream_watches",
    "usage_logs",
    "webhook_deliveries",
]
