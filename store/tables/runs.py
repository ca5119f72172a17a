"""Runs: many jobs with one outcome, what they warn of, what they leave for a second try, and what is switched on."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, job_id, metadata, now, run_id

_QUALITIES = "'standard', 'repaired', 'degraded'"


runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", pg.UUID, primary_key=True, server_default=sa.text("gen_random_uuid()")),
    sa.Column("run_type", sa.Text, nullable=False),
    sa.Column("user_id", sa.Text),
    sa.Column("account_id", sa.Text, sa.ForeignKey("callkeeper.accounts.id", name="runs_account")),
    sa.Column("idempotency_key", sa.Text),
    sa.Column("request_fingerprint", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'running'")),
    sa.Column("ending", sa.Text),
    sa.Column("failure_code", sa.Text),
    sa.Column("failed_nodes", pg.ARRAY(sa.Text), nullable=False, server_default=sa.text("'{}'")),
    sa.Column("quality", sa.Text, nullable=False, server_default=sa.text("'standard'")),
    sa.Column("progress", sa.REAL, nullable=False, server_default=sa.text("0")),
    sa.Column("result_step", sa.Text, nullable=False),
    sa.Column("reuse", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("email", sa.Text),
    sa.Column("watermark", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("node_limit", pg.INTERVAL, nullable=False),
    sa.Column("run_limit", pg.INTERVAL, nullable=False),
    sa.Column("deadline_at", TIMESTAMP, nullable=False),
    sa.Column("next_check_at", TIMESTAMP),
    sa.Column("round", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("event_seq", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("finished_at", TIMESTAMP),
    check("runs_status_known", "status in ('running', 'completed', 'failed', 'timed_out', 'cancelled')"),
    check("runs_ending_known", "ending in ('failed', 'timed_out', 'cancelled')"),
    check("runs_quality_known", f"quality in ({_QUALITIES})"),
    check("runs_terminal_is_finished", "(status <> 'running') = (finished_at is not null)"),
    check("runs_open_is_watched", "(status = 'running') = (next_check_at is not null)"),
    check("runs_ending_is_explained", "(ending is not null) = (failure_code is not null)"),
    check("runs_unsuccess_was_decided", "status in ('running', 'completed') or ending is not distinct from status"),
    check("runs_completed_is_whole", "status <> 'completed' or (ending is null and progress = 1)"),
    check("runs_progress_is_share", "progress between 0 and 1"),
    check("runs_node_within_run", "node_limit > interval '0' and node_limit <= run_limit"),
    check(
        "runs_names_are_short",
        "octet_length(run_type) <= 128 and octet_length(user_id) <= 256"
        " and octet_length(idempotency_key) between 1 and 256 and octet_length(email) <= 320"
        " and octet_length(failure_code) <= 64",
    ),
)
sa.Index(
    "runs_one_per_key",
    sa.text("coalesce(user_id, '')"),
    runs.c.idempotency_key,
    unique=True,
    postgresql_where=sa.text("idempotency_key is not null and status in ('running', 'completed')"),
)
sa.Index("runs_check_due", runs.c.next_check_at, runs.c.id, postgresql_where=sa.text("status = 'running'"))
sa.Index("runs_newest", runs.c.created_at, runs.c.id)

run_events = sa.Table(
    "run_events",
    metadata,
    run_id(primary_key=True, name="run_events_run"),
    sa.Column("seq", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("data", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    check("run_events_seq_counts_from_one", "seq >= 1"),
)

run_warnings = sa.Table(
    "run_warnings",
    metadata,
    job_id(primary_key=True, name="run_warnings_job"),
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    run_id(name="run_warnings_run"),
    sa.Column("code", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("customer_visible", sa.Boolean, nullable=False),
    sa.Column("quality", sa.Text, nullable=False),
    sa.Column("details", pg.JSONB, nullable=False, server_default=sa.text("'{}'")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    check("run_warnings_severity_known", "severity in ('info', 'warning')"),
    check("run_warnings_quality_known", f"quality in ({_QUALITIES})"),
    check("run_warnings_code_is_short", "octet_length(code) between 1 and 64"),
)
sa.Index("run_warnings_by_run", run_warnings.c.run_id, run_warnings.c.job_id)

run_outcomes = sa.Table(
    "run_outcomes",
    metadata,
    run_id(primary_key=True, name="run_outcomes_run"),
    sa.Column("operation_key", sa.Text, primary_key=True),
    job_id(name="run_outcomes_job"),
    sa.Column("result", pg.JSONB, nullable=False),
    sa.Column("assets", pg.JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("warnings", pg.JSONB, nullable=False, server_default=sa.text("'[]'")),
    sa.Column("cost", sa.BigInteger),
    sa.Column("late", sa.Boolean, nullable=False, server_default=sa.text("false")),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
)

rollout_flags = sa.Table(
    "rollout_flags",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("percent", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("changed_at", TIMESTAMP, nullable=False, server_default=now()),
    check("rollout_flags_name_known", "name in ('provider_resume', 'classified_retries', 'salvage', 'plan_repair')"),
    check("rollout_flags_mode_known", "mode in ('off', 'shadow', 'canary', 'on')"),
    check("rollout_flags_percent_is_share", "percent between 0 and 100"),
)

rollout_decisions = sa.Table(
    "rollout_decisions",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("flag", sa.Text, nullable=False),
    run_id(name="rollout_decisions_run"),
    job_id(name="rollout_decisions_job"),
    sa.Column("did", sa.Boolean, nullable=False),
    sa.Column("decision", pg.JSONB, nullable=False),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
)
sa.Index("rollout_decisions_by_run", rollout_decisions.c.run_id, rollout_decisions.c.flag)
