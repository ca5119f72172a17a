"""Writes that were refused since their holder was superseded: counted, for whoever asks how often it happens."""

import sqlalchemy as sa

from store.errors import LeaseLost
from store.tables import stale_writes

_COUNT_STALE_WRITE = sa.insert(stale_writes).values(
    job_id=sa.bindparam("job_id"),
    verb=sa.bindparam("verb"),
    epoch=sa.bindparam("epoch"),
    lease_owner=sa.bindparam("owner"),
)


def count_stale_write(connection: sa.Connection, lost: LeaseLost) -> None:
    connection.execute(
        _COUNT_STALE_WRITE,
        {"job_id": lost.job_id, "verb": lost.verb, "epoch": lost.epoch, "owner": lost.owner},
    )
