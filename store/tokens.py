"""Bearer tokens of the web API: made once, shown once, kept as a hash, revoked by number."""

import hashlib
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from store.guards import CLOCK, NOW
from store.tables import api_tokens

Scope = Literal["user", "operator"]
PREFIX = "ck_"


@dataclass(frozen=True, slots=True)
class Bearer:
    """Whom a token speaks for. `account_id` pays for what is submitted with it; None: the user's own account."""

    token_id: int
    scope: Scope
    user_id: str | None
    account_id: str | None


def new_token() -> str:
    """256 random bits as text that secret scanners, ours included, recognise."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


CREATE = (
    sa.insert(api_tokens)
    .values(
        token_hash=sa.bindparam("hash"),
        scope=sa.bindparam("scope"),
        user_id=sa.bindparam("user_id", type_=sa.Text),
        account_id=sa.bindparam("account_id", type_=sa.Text),
        label=sa.bindparam("label"),
        expires_at=CLOCK + sa.bindparam("life", type_=pg.INTERVAL),
    )
    .returning(api_tokens.c.id)
)

IDENTIFY = sa.select(api_tokens.c.id, api_tokens.c.scope, api_tokens.c.user_id, api_tokens.c.account_id).where(
    api_tokens.c.token_hash == sa.bindparam("hash"),
    api_tokens.c.revoked_at.is_(None),
    sa.or_(api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > NOW),
)

REVOKE = (
    sa.update(api_tokens)
    .where(api_tokens.c.id == sa.bindparam("token_id"), api_tokens.c.revoked_at.is_(None))
    .values(revoked_at=CLOCK)
    .returning(api_tokens.c.id)
)

EXISTS = sa.select(api_tokens.c.id).where(api_tokens.c.id == sa.bindparam("token_id"))

LISTED = sa.select(
    *[
        api_tokens.c[name]
        for name in ("id", "scope", "user_id", "account_id", "label", "created_at", "expires_at", "revoked_at")
    ]
).order_by(api_tokens.c.id)


def create(
    connection: sa.Connection,
    *,
    scope: Scope,
    user_id: str | None = None,
    account_id: str | None = None,
    label: str = "",
    life: timedelta | None = None,
) -> tuple[int, str]:
    """A new token's number and the token itself, which nobody can read again. `life`: it expires after that."""
    token = new_token()
    binds = {
        "hash": hash_of(token),
        "scope": scope,
        "user_id": user_id,
        "account_id": account_id,
        "label": label,
        "life": life,
    }
    return int(connection.execute(CREATE, binds).scalar_one()), token


def identify(connection: sa.Connection, token_hash: bytes) -> Bearer | None:
    """Whom the token speaks for; None where it is unknown, revoked or expired."""
    row = connection.execute(IDENTIFY, {"hash": token_hash}).one_or_none()
    return None if row is None else Bearer(*row)


def revoke(connection: sa.Connection, token_id: int) -> bool | None:
    """True when it was good until now, False when it had been revoked before, None when there is no such token."""
    if connection.execute(REVOKE, {"token_id": token_id}).one_or_none() is not None:
        return True
    return None if connection.execute(EXISTS, {"token_id": token_id}).one_or_none() is None else False


def listed(connection: sa.Connection) -> list[Mapping[str, Any]]:
    """Every token that was ever made, without what it was."""
    return [dict(row) for row in connection.execute(LISTED).mappings()]
