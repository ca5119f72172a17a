"""Accounts: two pools of whole credits. Granting is here; reserving is in submit, charging in the settlement."""

from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.tables import accounts

_ADDED = {
    f"{part}_{pool}": accounts.c[f"{part}_{pool}"] + sa.bindparam(pool, type_=sa.BigInteger)
    for part in ("granted", "balance")
    for pool in ("subscription", "topup")
}

GRANT = (
    pg.insert(accounts)
    .values(
        id=sa.bindparam("account_id"),
        granted_subscription=sa.bindparam("subscription", type_=sa.BigInteger),
        balance_subscription=sa.bindparam("subscription", type_=sa.BigInteger),
        granted_topup=sa.bindparam("topup", type_=sa.BigInteger),
        balance_topup=sa.bindparam("topup", type_=sa.BigInteger),
    )
    .on_conflict_do_update(index_elements=[accounts.c.id], set_=_ADDED)
)


class Balance(NamedTuple):
    """Whole credits of one account, both pools together."""

    granted: int
    available: int
    reserved: int
    committed: int


def grant(connection: sa.Connection, account_id: str, *, subscription: int = 0, topup: int = 0) -> None:
    """Add credits, opening the account if it is new. Raises ValueError for negative amounts."""
    if subscription < 0 or topup < 0:
        raise ValueError(f"a grant cannot be negative: subscription={subscription}, topup={topup}")
    connection.execute(GRANT, {"account_id": account_id, "subscription": subscription, "topup": topup})


BALANCE = sa.select(
    accounts.c.granted_subscription + accounts.c.granted_topup,
    accounts.c.balance_subscription + accounts.c.balance_topup,
    accounts.c.reserved_subscription + accounts.c.reserved_topup,
    accounts.c.committed_subscription + accounts.c.committed_topup,
).where(accounts.c.id == sa.bindparam("account_id"))


def balance(connection: sa.Connection, account_id: str) -> Balance | None:
    row = connection.execute(BALANCE, {"account_id": account_id}).one_or_none()
    return None if row is None else Balance(*row)
