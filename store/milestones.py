"""A job's own milestones: written by its holder, numbered and kept like every other event."""

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from store.errors import LeaseLost
from store.events import data_bind, with_event
from store.guards import HELD
from store.hygiene import clean_json, redacted
from store.models import Lease
from store.tables import jobs

PREFIX = "app."  # before the names that apps give, so that none of them ever means an end
MAX_BYTES = 16 * 1024

RECORD = with_event(
    sa.update(jobs).where(HELD),
    sa.cast(sa.bindparam("event_kind"), sa.Text),
    data=data_bind(),
    text=sa.cast(sa.bindparam("event_text"), sa.Text),
)[1]


def record(connection: sa.Connection, lease: Lease, name: str, data: Mapping[str, Any]) -> int:
    """Write `app.<name>`; its number. The frame keeps the order of `data` and its NULs; keys and signed URLs go.

    Raises ValueError for more than 16 KiB, LeaseLost.
    """
    shown = redacted(data)
    text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    size = len(text.encode())
    if size > MAX_BYTES:
        raise ValueError(f"a milestone's data has {size} bytes, more than {MAX_BYTES}: store it, and say where")
    binds = {**lease.binds, "event_kind": PREFIX + name, "event_data": clean_json(shown), "event_text": text}
    row = connection.execute(RECORD, binds).one_or_none()
    if row is None:
        raise LeaseLost(lease.job_id, "milestone", epoch=lease.epoch, owner=lease.owner)
    return int(row.event_seq)
