"""Bearer tokens: whom a request speaks for.

Nobody learns whether a token was never made, has expired, or was revoked.
"""

from dataclasses import dataclass
from typing import NoReturn

from starlette.requests import Request

from store.tokens import PREFIX, Bearer, hash_of
from web.desk import Desk
from web.problems import Problem

_LONGEST = 128  # characters; ours have 46


@dataclass(frozen=True, slots=True)
class User:
    """Who asks. `account_id` pays for what is submitted; None: the user's own account."""

    user_id: str
    account_id: str | None
    token_hash: bytes


async def user_of(desk: Desk, request: Request) -> User:
    """Raises Problem: 401 without a good token, 403 for an operator's, who has no jobs."""
    token_hash, bearer = await _bearer(desk, request)
    if bearer.user_id is None:
        raise Problem(403, "wrong_scope", "this is an operator's token: jobs are asked for with a user's")
    return User(bearer.user_id, bearer.account_id, token_hash)


async def require_operator(desk: Desk, request: Request) -> None:
    """Raises Problem: 401 without a good token, 403 for a user's."""
    _, bearer = await _bearer(desk, request)
    if bearer.scope != "operator":
        raise Problem(403, "wrong_scope", "this takes an operator's token: `callkeeper token create --operator`")


async def _bearer(desk: Desk, request: Request) -> tuple[bytes, Bearer]:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token.startswith(PREFIX) or len(token) > _LONGEST:
        _refuse()
    token_hash = hash_of(token)
    bearer = await desk.identify(token_hash)
    if bearer is None:
        _refuse()
    return token_hash, bearer


def _refuse() -> NoReturn:
    raise Problem(
        401,
        "unauthorized",
        "send a good token as `Authorization: Bearer ck_...`; `callkeeper token create` makes one",
        headers={"WWW-Authenticate": "Bearer"},
    )
