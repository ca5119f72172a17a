"""The sandbox's own book of what it accepted: the oracle that "never a second bill" is checked against.

One SQLite file, written before any response leaves, so that whatever happens to a caller the bill is right.
It is not synced to disk at every write: it outlives any process, this one included, but not a power cut.
"""

import json
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = """
create table if not exists creates (
  seq integer primary key autoincrement,
  kind text not null,
  task_id text not null unique,
  account text not null,
  created_at real not null,
  path text not null,
  request_hash text not null,
  input text not null,
  webhook text,
  detail text not null,
  cancelled_at real,
  finished_at real
);
create table if not exists clock (seconds real not null);
"""
INSERT = """
insert into creates (kind, task_id, account, created_at, path, request_hash, input, webhook, detail)
values (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SELECT = """
select kind, task_id, account, created_at, path, request_hash, input, webhook, detail, cancelled_at,
  finished_at
from creates where (?1 is null or instr(input, ?1) > 0) and (?2 is null or kind = ?2) order by seq
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One accepted create. Times are seconds since 1970; `account` is a hash of the key."""

    kind: str
    task_id: str
    account: str
    created_at: float
    path: str
    request_hash: str
    input: str  # JSON, sorted keys
    webhook: str | None
    detail: dict[str, Any]  # what the route needs to answer for the task after a restart
    cancelled_at: float | None = None
    finished_at: float | None = None


class Bill:
    """Entries in the order they were accepted. All methods are short and blocking: microseconds, not a
    network.
    """

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.row_factory = sqlite3.Row
        self._db.execute("pragma journal_mode = wal")
        self._db.execute("pragma synchronous = off")
        self._db.executescript(SCHEMA)

    def add(self, entry: Entry) -> None:
        self._db.execute(
            INSERT,
            (
                entry.kind,
                entry.task_id,
                entry.account,
                entry.created_at,
                entry.path,
                entry.request_hash,
                entry.input,
                entry.webhook,
                json.dumps(entry.detail),
            ),
        )

    def ended(self, task_id: str, *, cancelled_at: float | None, finished_at: float | None) -> None:
        """Note an end that was decided after the create (a cancel, or a hand on the control route)."""
        self._db.execute(
            "update creates set cancelled_at = ?, finished_at = ? where task_id = ?",
            (cancelled_at, finished_at, task_id),
        )

    def entries(self, *, containing: str | None = None, kind: str | None = None) -> list[Entry]:
        """All entries, or those of a kind, or those whose input contains a text; oldest first."""
        rows = self._db.execute(
            SELECT,
            (containing, kind),
        )
        return [_entry(row) for row in rows]

    def totals(self, *, containing: str | None = None) -> dict[str, int]:
        """How many creates of each kind, and of all under `all`."""
        rows = self._db.execute(
            "select kind, count(*) from creates where ?1 is null or instr(input, ?1) > 0 group by kind",
            (containing,),
        )
        totals = {"replicate": 0, "anthropic": 0, **dict(rows)}
        return {**totals, "all": sum(totals.values())}

    def clear(self) -> None:
        """Forget everything, the clock's advance included."""
        self._db.execute("delete from creates")
        self._db.execute("delete from clock")

    @property
    def advance(self) -> float:
        """By how many seconds the clock was advanced, over all runs on this bill."""
        return float(self._db.execute("select coalesce(sum(seconds), 0) from clock").fetchone()[0])

    def note_advance(self, seconds: float) -> None:
        self._db.execute("insert into clock (seconds) values (?)", (seconds,))

    def close(self) -> None:
        self._db.close()


def _entry(row: sqlite3.Row) -> Entry:
    return Entry(**{**dict(row), "detail": json.loads(row["detail"])})
