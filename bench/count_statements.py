"""A module for measured workers: counts what this process sends to Postgres and writes it to a file now and then.

Loaded with CALLKEEPER_MODULES; the file's folder is CALLKEEPER_BENCH_COUNTS.
"""

import os
import threading
from pathlib import Path

import psycopg

_count = 0
_plain = psycopg.Cursor.execute


def _counted(self, *args, **kwargs):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN002, ANN003, ANN202
    global _count  # noqa: PLW0603
    _count += 1  # a lost update among threads is far below what a figure per call shows
    return _plain(self, *args, **kwargs)


def _write() -> None:
    place = Path(os.environ["CALLKEEPER_BENCH_COUNTS"]) / str(os.getpid())
    while not threading.Event().wait(0.2):
        place.write_text(str(_count))


psycopg.Cursor.execute = _counted  # type: ignore[method-assign]
threading.Thread(target=_write, daemon=True, name="bench-counts").start()
