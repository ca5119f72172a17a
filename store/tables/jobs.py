"""The job row and its request. `lease_until` stands in no index, so a heartbeat is a heap-only update."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.states import OPEN, State
from store.tables.base import IS_OPEN, IS_TERMINAL, TIMESTAMP, check, job_id, metadata, now, run_id, words

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
    sa.Column("attempt_limit", pg.INTERVAL),
    sa.Column("available_at", TIMESTAMP, nullable=False),
    sa.Column("queue_deadline_at", TIMESTAMP, nullable=False),
    sa.Column("deadline_at", TIMESTAMP, nullable=False),
    sa.Column("attempt_deadline_at", TIMESTAMP),
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
    sa.Column("import_failures", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("progress", sa.REAL),
    sa.Column("event_seq", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("result", pg.JSONB(none_as_null=True)),
    sa.Column("error_code", sa.Text),
    sa.Column("error_message", sa.Text),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("started_at", TIMESTAMP),
    sa.Column("finished_at", TIMESTAMP),
    sa.Column("stale_after", pg.INTERVAL, nullable=False, server_default=sa.text("'30 minutes'")),
    sa.Column("visibility", sa.Text, nullable=False, server_default=sa.text("'public'")),
    sa.Column("watermark", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("effects", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("reconcile_attempts", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("reconcile_deferrals", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("reconcile_last_error", sa.Text),
    run_id(nullable=True, name="jobs_run"),
    sa.Column("step", sa.Text),
    sa.Column("stage", sa.Text),
    sa.Column("operation_key", sa.Text),
    sa.Column("depends_on", pg.ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'")),
    sa.Column("optional", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("blocked", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("round", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("heavy", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("recreates", sa.Integer, nullable=False, server_default=sa.text("0")),
    check("jobs_step_is_whole", "num_nulls(run_id, step, stage, operation_key) in (0, 4)"),
    check(
        "jobs_blocked_never_started",
        "not blocked or (run_id is not null and started_at is null"
        " and status not in ('running', 'waiting', 'completed'))",
    ),
    check("jobs_recreates_within_budget", "recreates between 0 and 2"),
    sa.Column("app", sa.Text),
    sa.Column("priority", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("turn", sa.Double),  # the place in its queue's line; null while it does not stand there
    sa.Column("parked_on", sa.Text),  # the full budget it waits for, as id/subject
    check("jobs_parked_is_queued", "parked_on is null or status = 'queued'"),
    check("jobs_status_known", f"status in ({words(list(State))})"),
    check("jobs_mode_known", "mode in ('async', 'sync', 'local')"),
    check("jobs_running_is_leased", "(status = 'running') = (lease_token is not null)"),
    check("jobs_lease_is_whole", "num_nulls(lease_owner, lease_token, lease_until) in (0, 3)"),
    check("jobs_waiting_is_polled", "(status = 'waiting') = (next_poll_at is not null)"),
    check("jobs_poll_lease_waits", "poll_token is null or status = 'waiting'"),
    check(
        "jobs_waiting_has_call",
        "status <> 'waiting' or (mode = 'async' and provider_call_started_at is not null)",
    ),
    check("jobs_queued_has_no_call", "status <> 'queued' or provider_call_started_at is null"),
    check(
        "jobs_call_is_whole",
        "num_nulls(provider_call_started_at, call_key, call_handle) in (0, 3)"
        " and (provider_call_started_at is null or provider_kind is not null)",
    ),
    check(
        "jobs_task_has_call",
        "provider_task_id is null or (provider_call_started_at is not null and call_generation > 0)",
    ),
    check(
        "jobs_ambiguity_is_bounded",
        "status <> 'waiting' or provider_task_id is not null or resolve_by is not null",
    ),
    check("jobs_result_has_task", "result_known_at is null or provider_task_id is not null"),
    check("jobs_import_failures_are_counted", "import_failures >= 0"),
    check("jobs_terminal_is_finished", f"({IS_TERMINAL}) = (finished_at is not null)"),
    check("jobs_open_is_watched", f"({IS_OPEN}) = (next_check_at is not null)"),
    check("jobs_completed_has_result", "(status = 'completed') = (result is not null)"),
    check(
        "jobs_unsuccess_has_error",
        "(status in ('failed', 'timed_out', 'cancelled')) = (error_code is not null)",
    ),
    check("jobs_error_is_capped", "octet_length(error_message) <= 4096 and octet_length(error_code) <= 64"),
    check("jobs_attempt_within_limit", "attempt between 1 and max_attempts"),
    check("jobs_price_is_payable", "price >= 0 and (price = 0 or account_id is not null)"),
    check("jobs_visibility_known", "visibility in ('public', 'private')"),
    check(
        "jobs_looks_counted",
        "reconcile_attempts >= 0 and reconcile_deferrals >= 0 and octet_length(reconcile_last_error) <= 1024",
    ),
    check("jobs_progress_is_share", "progress between 0 and 1"),
    check(
        "jobs_names_are_short",
        "octet_length(job_type) <= 128 and octet_length(queue) <= 128 and octet_length(user_id) <= 256"
        " and octet_length(idempotency_key) between 1 and 256",
    ),
)

_OPEN_OR_COMPLETED = f"status in ({words([*OPEN, State.COMPLETED])})"
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
sa.Index("jobs_newest", jobs.c.created_at, jobs.c.id)
sa.Index(
    "jobs_newest_of_user",
    jobs.c.user_id,
    jobs.c.created_at,
    jobs.c.id,
    postgresql_where=sa.text("user_id is not null"),
)
sa.Index("jobs_running", jobs.c.id, postgresql_where=sa.text("status = 'running'"))
sa.Index("jobs_poll_due", jobs.c.next_poll_at, jobs.c.id, postgresql_where=sa.text("status = 'waiting'"))
sa.Index("jobs_check_due", jobs.c.next_check_at, jobs.c.id, postgresql_where=sa.text(IS_OPEN))

sa.Index(
    "jobs_one_per_operation",
    jobs.c.run_id,
    jobs.c.operation_key,
    unique=True,
    postgresql_where=sa.text(f"run_id is not null and {_OPEN_OR_COMPLETED}"),
)
sa.Index("jobs_by_run", jobs.c.run_id, jobs.c.step, jobs.c.round, postgresql_where=sa.text("run_id is not null"))
sa.Index(
    "jobs_reusable",
    jobs.c.request_fingerprint,
    postgresql_where=sa.text("run_id is not null and status = 'completed'"),
)
_IN_LINE = "status = 'queued' and turn is not null"
sa.Index("jobs_in_line", jobs.c.queue, jobs.c.parked_on, jobs.c.turn, postgresql_where=sa.text(_IN_LINE))
sa.Index(
    "jobs_in_line_by_user",
    jobs.c.queue,
    sa.text("coalesce(user_id, '')"),
    jobs.c.turn,
    postgresql_where=sa.text(_IN_LINE),
)
sa.Index("jobs_out_of_line", jobs.c.available_at, postgresql_where=sa.text("status = 'queued' and turn is null"))


job_requests = sa.Table(
    "job_requests",
    metadata,
    job_id(primary_key=True, name="job_requests_job"),
    sa.Column("request", pg.JSONB, nullable=False),
)
