"""Accounts and reservations; the CHECKs keep credits conserved at every statement."""

import sqlalchemy as sa

from store.tables.base import TIMESTAMP, check, job_id, metadata, now


def _pool_columns() -> list[sa.Column[int]]:
    return [
        sa.Column(f"{part}_{pool}", sa.BigInteger, nullable=False, server_default=sa.text("0"))
        for part in ("granted", "balance", "reserved", "committed")
        for pool in ("subscription", "topup")
    ]


def _conserved(pool: str) -> sa.CheckConstraint:
    parts = " + ".join(f"{part}_{pool}" for part in ("balance", "reserved", "committed"))
    return check(f"accounts_{pool}_conserved", f"granted_{pool} = {parts}")


def _never_negative(pool: str) -> sa.CheckConstraint:
    names = ", ".join(f"{part}_{pool}" for part in ("balance", "reserved", "committed"))
    return check(f"accounts_{pool}_never_negative", f"least({names}) >= 0")


accounts = sa.Table(
    "accounts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    *_pool_columns(),
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("visibility_baseline", sa.Text, nullable=False, server_default=sa.text("'public'")),
    check("accounts_visibility_known", "visibility_baseline in ('public', 'private')"),
    _conserved("subscription"),
    _conserved("topup"),
    _never_negative("subscription"),
    _never_negative("topup"),
)


usage_logs = sa.Table(
    "usage_logs",
    metadata,
    job_id(primary_key=True, name="usage_logs_job"),
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
    sa.Column("created_at", TIMESTAMP, nullable=False, server_default=now()),
    sa.Column("settled_at", TIMESTAMP),
    check("usage_logs_status_known", "status in ('reserved', 'committed', 'refunded')"),
    check("usage_logs_settled_once", "(status = 'reserved') = (settled_at is null)"),
    check(
        "usage_logs_commit_within_reservation",
        "committed_subscription between 0 and reserved_subscription and committed_topup between 0 and reserved_topup",
    ),
    check(
        "usage_logs_only_committed_charges",
        "status = 'committed' or committed_subscription + committed_topup = 0",
    ),
)
sa.Index(
    "usage_logs_reserved",
    usage_logs.c.account_id,
    postgresql_where=sa.text("status = 'reserved'"),
)
