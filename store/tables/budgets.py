"""Limits an operator sets, who changed them, and which jobs were started on a user's money."""

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables.base import TIMESTAMP, check, job_id, metadata, now

budgets = sa.Table(
    "budgets",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("measure", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False, server_default=sa.text("''")),
    sa.Column("at_most", sa.BigInteger, nullable=False),
    sa.Column("per", pg.INTERVAL),
    sa.Column("recent", pg.ARRAY(TIMESTAMP), nullable=False, server_default=sa.text("'{}'")),
    sa.Column("changed_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("changed_by", sa.Text, nullable=False, server_default=sa.text("''")),
    check("budgets_measure_known", "measure in ('concurrency', 'queued', 'rate', 'spend', 'weight')"),
    check(
        "budgets_scope_known",
        "(measure = 'concurrency' and scope in ('global', 'kind', 'account', 'user', 'app'))"
        " or (measure = 'queued' and scope in ('global', 'kind', 'user', 'app'))"
        " or (measure = 'rate' and scope in ('global', 'kind', 'account'))"
        " or (measure in ('spend', 'weight') and scope = 'user')",
    ),
    check("budgets_name_fits", "(scope = 'global') = (name = '') and octet_length(name) <= 256"),
    check(
        "budgets_limit_fits",
        "at_most >= 0 and (measure <> 'weight' or at_most between 1 and 1000)"
        " and (measure <> 'rate' or at_most <= 1000)",
    ),
    check(
        "budgets_window_fits",
        "(measure in ('rate', 'spend')) = (per is not null)"
        " and (per is null or per between interval '1 second' and interval '366 days')",
    ),
)
sa.Index("budgets_one_each", budgets.c.measure, budgets.c.scope, budgets.c.name, unique=True)

budget_changes = sa.Table(
    "budget_changes",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
    sa.Column("measure", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("was", sa.BigInteger),
    sa.Column("at_most", sa.BigInteger),
    sa.Column("per", pg.INTERVAL),
    sa.Column("changed_by", sa.Text, nullable=False),
    sa.Column("changed_at", TIMESTAMP, nullable=False, server_default=now()),
)

spending = sa.Table(
    "spending",
    metadata,
    job_id(primary_key=True, name="spending_job"),
    sa.Column("user_id", sa.Text, nullable=False),
    sa.Column("started_at", TIMESTAMP, nullable=False, server_default=now()),
)
sa.Index("spending_by_user", spending.c.user_id, spending.c.started_at)
