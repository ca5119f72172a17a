"""Connections: one engine a process, short statements, a few patient retries where a retry cannot do harm.

Every verb is one guarded statement, so running it again after a lost answer is safe: the guard refuses the second time.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from store.errors import LeaseLost

P = ParamSpec("P")
R = TypeVar("R")

# Serialization, deadlock, lock timeout, admin shutdown, crash, start-up, connection classes, read-only standby.
_TRANSIENT = {"40001", "40P01", "55P03", "57P01", "57P02", "57P03", "25006", "53300"}


def sqlalchemy_url(url: str) -> str:
    """`postgres://` and `postgresql://` mean psycopg 3 here."""
    for prefix in ("postgres://", "postgresql://"):
        if url.startswith(prefix):
            return "postgresql+psycopg://" + url.removeprefix(prefix)
    return url


def libpq_url(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def make_engine(
    url: str,
    *,
    name: str,
    pool_size: int = 10,
    statement_timeout_ms: int = 5_000,
    lock_timeout_ms: int = 2_000,
) -> sa.Engine:
    """An engine for worker processes. `name` becomes application_name. Nothing connects before the first use."""
    engine = sa.create_engine(
        sqlalchemy_url(url),
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_timeout=10,
        connect_args={
            "application_name": name[:63],
            "connect_timeout": 5,
            "keepalives_idle": 5,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
        },
    )
    timeouts = (
        f"set statement_timeout = {int(statement_timeout_ms)};"
        f"set lock_timeout = {int(lock_timeout_ms)};"
        "set idle_in_transaction_session_timeout = 10000"
    )

    @event.listens_for(engine, "connect")
    def set_timeouts(connection: Any, _record: object) -> None:
        autocommit = connection.autocommit
        connection.autocommit = True
        connection.execute(timeouts)
        connection.autocommit = autocommit

    return engine


def is_transient(error: BaseException) -> bool:
    """Whether the same statement may pass on a fresh connection or a moment later."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, sa.exc.TimeoutError)
    state = getattr(error.orig, "sqlstate", None)
    if state is None:
        # The driver's own word, not the server's: a broken connection, or a value that cannot be written or read.
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return error.connection_invalidated or state in _TRANSIENT or state.startswith("08")


class Database:
    """Runs store functions: `once` for a single statement, `transact` for a settlement.

    `patience` is how long, in seconds, transient failures are retried before the last one is raised.
    A refused write (LeaseLost) is counted in `stale_writes` and raised.
    """

    def __init__(self, engine: sa.Engine, *, patience: float = 15.0) -> None:
        self.engine = engine
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
        self.patience = patience

    def once(self, verb: Callable[Concatenate[sa.Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        def attempt() -> R:
            with self._autocommit.connect() as connection:
                return verb(connection, *args, **kwargs)

        return self._patiently(attempt)

    def transact(self, verb: Callable[Concatenate[sa.Connection, P], R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        def attempt() -> R:
            with self.engine.begin() as connection:
                return verb(connection, *args, **kwargs)

        return self._patiently(attempt)

    def dispose(self) -> None:
        self.engine.dispose()

    def _patiently(self, attempt: Callable[[], R]) -> R:
        give_up_at = time.monotonic() + self.patience
        pause = 0.02
        while True:
            try:
                return attempt()
            except LeaseLost as lost:
                self._count(lost)
                raise
            except (DBAPIError, sa.exc.TimeoutError) as error:
                if not is_transient(error) or time.monotonic() + pause > give_up_at:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.5))  # noqa: S311  # jitter, not cryptography
            pause = min(pause * 2, 1.0)

    def _count(self, lost: LeaseLost) -> None:
        from store.stale import count_stale_write

        try:
            with self._autocommit.connect() as connection:
                count_stale_write(connection, lost)
        except DBAPIError:
            return  # the refusal itself stands; only its count is lost
