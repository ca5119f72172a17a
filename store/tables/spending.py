"""What each priced call cost, what an hour did, and the stop over all of them; in millionths of a dollar."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, metadata, now

call_ledger = sa.Table(
    "call_ledger",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("job_id", pg.UUID, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("epoch", sa.Integer, nullable=False),
    sa.Column("user_id", sa.Text),
    sa.Column("app", sa.Text),
    sa.Column("run_id", pg.UUID),
    sa.Column("provider_kind", sa.Text, nullable=False),
    sa.Column("account", sa.Text, nullable=False),
    sa.Column("profile", sa.Text),
    sa.Column("provider_model", sa.Text, nullable=False),
    sa.Column("price", pg.JSONB, nullable=False),
    sa.Column("reserved", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default=sa.text("'open'")),
    sa.Column("cost", sa.BigInteger),
    sa.Column("input_tokens", sa.BigInteger),
    sa.Column("output_tokens", sa.BigInteger),
    sa.Column("estimated", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("error", sa.Text),
    sa.Column("started_at", TIMESTAMP, nullable=False),
    sa.Column("until", TIMESTAMP, nullable=False),
    sa.Column("finished_at", TIMESTAMP),
    check("call_ledger_status_known", "status in ('open', 'ok', 'failed', 'aborted', 'unknown')"),
    check("call_ledger_open_has_no_end", "(status = 'open') = (finished_at is null)"),
    check("call_ledger_open_has_no_cost", "(status = 'open') = (cost is null)"),
    check("call_ledger_unknown_is_estimated", "status <> 'unknown' or estimated"),
    check(
        "call_ledger_amounts_fit",
        "reserved >= 0 and coalesce(cost, 0) >= 0 and coalesce(input_tokens, 0) >= 0"
        " and coalesce(output_tokens, 0) >= 0",
    ),
    check(
        "call_ledger_price_is_two_integers",
        r"coalesce((price ->> 'input') ~ '^\d{1,18}$' and (price ->> 'output') ~ '^\d{1,18}$', false)",
    ),
    check("call_ledger_error_is_short", "octet_length(error) <= 500"),
    check("call_ledger_may_run_a_while", "until >= started_at"),
)
sa.Index("call_ledger_one_a_generation", call_ledger.c.job_id, call_ledger.c.generation, unique=True)
sa.Index("call_ledger_open", call_ledger.c.until, postgresql_where=sa.text("status = 'open'"))

spending_hours = sa.Table(
    "spending_hours",
    metadata,
    sa.Column("hour", TIMESTAMP, primary_key=True),
    sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("cost", sa.BigInteger, nullable=False),
    sa.Column("calls", sa.BigInteger, nullable=False),
)

emergency_stop = sa.Table(
    "emergency_stop",
    metadata,
    sa.Column("id", sa.Boolean, primary_key=True, server_default=sa.true()),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("per", pg.INTERVAL, nullable=False),
    sa.Column("warn_at", sa.Integer, nullable=False, server_default=sa.text("80")),
    sa.Column("warned_at", TIMESTAMP),
    sa.Column("latched_at", TIMESTAMP),
    sa.Column("changed_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("changed_by", sa.Text, nullable=False),
    check("emergency_stop_is_one", "id"),
    check("emergency_stop_amount_fits", "amount between 1 and 4611686018427387904"),
    check("emergency_stop_window_fits", "per between interval '1 hour' and interval '31 days'"),
    check("emergency_stop_warns_in_percent", "warn_at between 1 and 100"),
)

emergency_stop_history = sa.Table(
    "emergency_stop_history",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("per", pg.INTERVAL, nullable=False),
    sa.Column("used", sa.BigInteger),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False, server_default=sa.text("''")),
    check("emergency_stop_history_what_known", "what in ('set', 'removed', 'warned', 'stopped', 'released')"),
)
