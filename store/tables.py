"""Every table as SQLAlchemy Core, with its CHECKs and indexes; a test holds it equal to the migrated database.

`jobs` is narrow: what beats (lease, poll, progress) is rewritten often, so the request lives apart in `job_requests`.
`lease_until` stands in no index, so a heartbeat is a heap-only update; lapsed leases are found through the small
partial index over running rows.
"""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.states import OPEN, TERMINAL, State

SCHEMA = "callkeeper"
metadata = sa.MetaData(schema=SCHEMA)

TIMESTAMP = sa.DateTime(timezone=True)


def _words(states: tuple[State, ...] | list[State]) -> str:
    return ", ".join(f"'{state}'" for state in states)


def _now() -> sa.TextClause:
    return sa.text("clock_timestamp()")


_IS_OPEN = f"status in ({_words(OPEN)})"
_IS_TERMINAL = f"status in ({_words(TERMINAL)})"


def _check(name: str, rule: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(sa.text(rule), name=name)


def _pool_columns() -> list[sa.Column[int]]:
    return [
        sa.Column(f"{part}_{pool}", sa.BigInteger, nullable=False, server_default=sa.text("0"))
        for part in ("granted", "balance", "reserved", "committed")
        for pool in ("subscription", "topup")
    ]


def _conserved(pool: str) -> sa.CheckConstraint:
    parts = " + ".join(f"{part}_{pool}" for part in ("balance", "reserved", "committed"))
    return _check(f"accounts_{pool}_conserved", f"granted_{pool} = {parts}")


def _never_negative(pool: str) -> sa.CheckConstraint:
    names = ", ".join(f"{part}_{pool}" for part in ("balance", "reserved", "committed"))
    return _check(f"accounts_{pool}_never_negative", f"least({names}) >= 0")


accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *_pool_columns(),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    _conserved("subscription"),
    _conserved("topup"),
    _never_negative("subscription"),
    _never_negative("topup"),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", pg.UUID, primary_key=True, server_default=sa.text("gen_random_uuid()")),
    sa.Column("user_id", sa.Text),
    sa.Column("account_id", sa.Text, sa.ForeignKey("callkeeper.accounts.id", name="jobs_account")),
    sa.Column("job_type", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("retry_safe", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_fingerprint", sa.Text, nullable=False),
    sa.Column("price", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'queued'")),
    sa.Column("attempt", sa.Integer, nullable=False, server_default=sa.text("1")),
    sa.Column("max_attempts", sa.Integer, nullable=False),
    sa.Column("queue_limit", pg.INTERVAL, nullable=False),
    sa.Column("run_limit", pg.INTERVAL, nullable=False),
    sa.Column("available_at", TIMESTAMP, nullable=False),
    sa.Column("queue_deadline_at", TIMESTAMP, nullable=False),
    sa.Column("deadline_at", TIMESTAMP, nullable=False),
    sa.Column("next_check_at", TIMESTAMP),
    sa.Column("epoch", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("lease_owner", sa.Text),
    sa.Column("lease_token", pg.UUID),
    sa.Column("lease_until", TIMESTAMP),
    sa.Column("provider_kind", sa.Text),
    sa.Column("provider_task_id", sa.Text),
    sa.Column("provider_call_started_at", TIMESTAMP),
    sa.Column("call_key", pg.UUID),
    sa.Column("call_generation", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("call_handle", pg.JSONB),
    sa.Column("resolve_by", TIMESTAMP),
    sa.Column("next_poll_at", TIMESTAMP),
    sa.Column("poll_token", pg.UUID),
    sa.Column("poll_misses", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("result_known_at", TIMESTAMP),
    sa.Column("progress", sa.REAL),
    sa.Column("event_seq", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("result", pg.JSONB(none_as_null=True)),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    sa.Column("started_at", TIMESTAMP),
    sa.Column("finished_at", TIMESTAMP),
    _check("jobs_status_known", f"status in ({_words(list(State))})"),
    _check("jobs_mode_known", "mode in ('async', 'sync', 'local')"),
    _check("jobs_running_is_leased", "(status = 'running') = (lease_token is not null)"),
    _check("jobs_lease_is_whole", "num_nulls(lease_owner, lease_token, lease_until) in (0, 3)"),
    _check("jobs_waiting_is_polled", "(status = 'waiting') = (next_poll_at is not null)"),
    _check("jobs_poll_lease_waits", "poll_token is null or status = 'waiting'"),
    _check(
        "jobs_waiting_has_call",
        "status <> 'waiting' or (mode = 'async' and provider_call_started_at is not null)",
    ),
    _check("jobs_queued_has_no_call", "status <> 'queued' or provider_call_started_at is null"),
    _check(
        "jobs_call_is_whole",
        "num_nulls(provider_kind, provider_call_started_at, call_key, call_handle) in (0, 4)",
    ),
    _check(
        "jobs_task_has_call",
        "provider_task_id is null or (provider_call_started_at is not null and call_generation > 0)",
    ),
    _check(
        "jobs_ambiguity_is_bounded",
        "status <> 'waiting' or provider_task_id is not null or resolve_by is not null",
    ),
    _check("jobs_result_has_task", "result_known_at is null or provider_task_id is not null"),
    _check("jobs_terminal_is_finished", f"({_IS_TERMINAL}) = (finished_at is not null)"),
    _check("jobs_open_is_watched", f"({_IS_OPEN}) = (next_check_at is not null)"),
    _check("jobs_completed_has_result", "(status = 'completed') = (result is not null)"),
    _check(
        "jobs_unsuccess_has_error",
        "(status in ('failed', 'timed_out', 'cancelled')) = (error_code is not null)",
    ),
    _check("jobs_error_is_capped", "octet_length(error_message) <= 4096 and octet_length(error_code) <= 64"),
    _check("jobs_attempt_within_limit", "attempt between 1 and max_attempts"),
    _check("jobs_price_is_payable", "price >= 0 and (price = 0 or account_id is not null)"),
    _check("jobs_progress_is_share", "progress between 0 and 1"),
    _check(
        "jobs_names_are_short",
        "octet_length(job_type) <= 128 and octet_length(queue) <= 128 and octet_length(user_id) <= 256"
        " and octet_length(idempotency_key) between 1 and 256",
    ),
)

_OPEN_OR_COMPLETED = f"status in ({_words([*OPEN, State.COMPLETED])})"
sa.Index(
    "jobs_one_per_key",
    sa.text("coalesce(user_id, '')"),
    jobs.c.idempotency_key,
    unique=True,
    postgresql_where=sa.text(f"idempotency_key is not null and {_OPEN_OR_COMPLETED}"),
)
sa.Index(
    "jobs_one_per_task",
    jobs.c.provider_kind,
    jobs.c.provider_task_id,
    unique=True,
    postgresql_where=sa.text("provider_task_id is not null"),
)
sa.Index("jobs_running", jobs.c.id, postgresql_where=sa.text("status = 'running'"))
sa.Index("jobs_poll_due", jobs.c.next_poll_at, jobs.c.id, postgresql_where=sa.text("status = 'waiting'"))
sa.Index("jobs_check_due", jobs.c.next_check_at, jobs.c.id, postgresql_where=sa.text(_IS_OPEN))


def _job_id(*, primary_key: bool = False, nullable: bool = False, name: str) -> sa.Column[str]:
    key = sa.ForeignKey("callkeeper.jobs.id", ondelete="CASCADE", name=name)
    return sa.Column("job_id", pg.UUID, key, primary_key=primary_key, nullable=nullable)


job_requests = sa.Table(
    "job_requests",
    metadata,
    _job_id(primary_key=True, name="job_requests_job"),
    sa.Column("request", pg.JSONB, nullable=False),
)

usage_logs = sa.Table(
    "usage_logs",
    metadata,
    _job_id(primary_key=True, name="usage_logs_job"),
    sa.Column(
        "account_id",
        sa.Text,
        sa.ForeignKey("callkeeper.accounts.id", name="usage_logs_account"),
        nullable=False,
    ),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'reserved'")),
    *[
        sa.Column(name, sa.BigInteger, nullable=False, server_default=sa.text("0"))
        for name in ("reserved_subscription", "reserved_topup", "committed_subscription", "committed_topup")
    ],
    sa.Column("cost", sa.BigInteger),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    sa.Column("settled_at", TIMESTAMP),
    _check("usage_logs_status_known", "status in ('reserved', 'committed', 'refunded')"),
    _check("usage_logs_settled_once", "(status = 'reserved') = (settled_at is null)"),
    _check(
        "usage_logs_commit_within_reservation",
        "committed_subscription between 0 and reserved_subscription and committed_topup between 0 and reserved_topup",
    ),
    _check(
        "usage_logs_only_committed_charges",
        "status = 'committed' or committed_subscription + committed_topup = 0",
    ),
)
sa.Index(
    "usage_logs_reserved",
    usage_logs.c.account_id,
    postgresql_where=sa.text("status = 'reserved'"),
)

job_events = sa.Table(
    "job_events",
    metadata,
    _job_id(primary_key=True, name="job_events_job"),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("data", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    _check("job_events_seq_counts_from_one", "seq >= 1"),
)
sa.Index(
    "job_events_one_terminal",
    job_events.c.job_id,
    unique=True,
    postgresql_where=sa.text(f"kind in ({_words(TERMINAL)})"),
)

job_signals = sa.Table(
    "job_signals",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _job_id(name="job_signals_job"),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    sa.Column("consumed_at", TIMESTAMP),
    _check("job_signals_kind_known", "kind in ('stop')"),
)
sa.Index(
    "job_signals_one_pending",
    job_signals.c.job_id,
    job_signals.c.kind,
    unique=True,
    postgresql_where=sa.text("consumed_at is null"),
)

call_receipts = sa.Table(
    "call_receipts",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _job_id(name="call_receipts_job"),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("provider_task_id", sa.Text, nullable=False),
    sa.Column("call_generation", sa.Integer, nullable=False),
    sa.Column("call_key", pg.UUID, nullable=False),
    sa.Column("source", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    _check("call_receipts_source_known", "source in ('create', 'late_create', 'find', 'callback', 'response')"),
)
sa.Index(
    "call_receipts_once",
    call_receipts.c.job_id,
    call_receipts.c.provider_kind,
    call_receipts.c.provider_task_id,
    unique=True,
)
sa.Index("call_receipts_by_task", call_receipts.c.provider_kind, call_receipts.c.provider_task_id)

assets = sa.Table(
    "assets",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _job_id(name="assets_job"),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("object_key", sa.Text, nullable=False),
    sa.Column("content_type", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
    _check("assets_are_whole", "size_bytes > 0 and sha256 ~ '^[0-9a-f]{64}$'"),
)
sa.Index("assets_one_per_position", assets.c.job_id, assets.c.position, unique=True)
sa.Index("assets_one_per_object", assets.c.object_key, unique=True)


def _outbox(name: str, *columns: sa.Column[str]) -> sa.Table:
    """Rows owed to the outside, claimed by pushing `available_at` forward under a token, delivered or dead once."""
    table = sa.Table(
        name,
        metadata,
        sa.Column("key", sa.Text, primary_key=True),
        _job_id(name=f"{name}_job"),
        *columns,
        sa.Column("body", pg.JSONB, nullable=False),
        sa.Column("available_at", TIMESTAMP, nullable=False, server_default=_now()),
        sa.Column("attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
        sa.Column("claim_token", pg.UUID),
        sa.Column("last_error", sa.Text),
        sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
        sa.Column("delivered_at", TIMESTAMP),
        sa.Column("dead_at", TIMESTAMP),
        _check(f"{name}_end_once", "delivered_at is null or dead_at is null"),
    )
    sa.Index(
        f"{name}_due",
        table.c.available_at,
        table.c.key,
        postgresql_where=sa.text("delivered_at is null and dead_at is null"),
    )
    return table


notices = _outbox("notices", sa.Column("user_id", sa.Text))
consequences = _outbox("consequences", sa.Column("effect", sa.Text, nullable=False))

alerts = sa.Table(
    "alerts",
    metadata,
    sa.Column("subject", sa.Text, primary_key=True),
    sa.Column("details", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("times", sa.BigInteger, nullable=False, server_default=sa.text("1")),
    sa.Column("first_at", TIMESTAMP, nullable=False, server_default=_now()),
    sa.Column("last_at", TIMESTAMP, nullable=False, server_default=_now()),
    sa.Column("resolved_at", TIMESTAMP),
)

stale_writes = sa.Table(
    "stale_writes",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    _job_id(name="stale_writes_job"),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("lease_owner", sa.Text, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
)

ticks = sa.Table(
    "ticks",
    metadata,
    sa.Column("schedule", sa.Text, primary_key=True),
    sa.Column("due_at", TIMESTAMP, primary_key=True),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=_now()),
)

passes = sa.Table(
    "passes",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("last_started_at", TIMESTAMP, nullable=False),
    sa.Column("last_success_at", TIMESTAMP),
    sa.Column("last_error", sa.Text),
    sa.Column("scanned", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("acted", sa.BigInteger, nullable=False, server_default=sa.text("0")),
    sa.Column("took_ms", sa.BigInteger, nullable=False, server_default=sa.text("0")),
)
