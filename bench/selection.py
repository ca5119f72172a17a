"""What a pass's selection costs: 1,000 rows due among few and among many that ended long ago."""

import statistics
import time
from typing import Any

import sqlalchemy as sa

from bench.rig import Rig, rig
from store import looks, passes

DUE, BATCH, LOOKS = 1_000, 200, 15
SMALL, LARGE, FULL = 20_000, 500_000, 5_000_000

_COLUMNS = """
insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, status, max_attempts,
  queue_limit, run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, epoch, finished_at, result,
  provider_kind,
  provider_task_id, provider_call_started_at, call_key, call_handle, call_generation, next_poll_at)
"""
_ENDED = sa.text(
    _COLUMNS
    + """
    select 't', 'calls', 'start_call', 'async', 'f', 0, 'completed', 3, '1 h', '1 h', t, t, t, null, 2, t, '{}',
      'replicate-prediction', 'ended-' || n, t, gen_random_uuid(), '{}', 1, null
    from generate_series(cast(:first as bigint), cast(:last as bigint)) n,
      lateral (select now() - n * interval '1 second' as t) at
    """
)
_OPEN = sa.text(
    _COLUMNS
    + """
    select 't', 'calls', 'start_call', 'async', 'f', 0, 'waiting', 3, '1 h', '1 h', now(), now(),
      now() + interval '2 h', now() - n * interval '1 second', 1, null, null, 'replicate-prediction', 'open-' || n,
      now(), gen_random_uuid(), '{}', 1, now() + interval '1 h'
    from generate_series(1, cast(:due as bigint)) n
    """
)


def measure(*, full: bool = False) -> dict[str, Any]:
    """Medians in milliseconds, at the small and at the large table."""
    with rig() as stand:
        _fill(stand, 1, SMALL)
        _run(stand, _OPEN, due=DUE)
        small = _look(stand)
        rows = FULL if full else LARGE
        _fill(stand, SMALL + 1, rows)
        large = _look(stand)
        return {
            "figure": f"a pass finds and locks {BATCH} of {DUE} due rows of {rows:,}",
            "value": large["find_ms"],
            "unit": "ms",
            "yardstick": f"the same among {SMALL:,} rows",
            "yardstick_value": small["find_ms"],
            "ratio": round(large["find_ms"] / small["find_ms"], 2),
            "pages": [small["pages"], large["pages"]],
            "a_batch_with_its_writes_ms": [small["batch_ms"], large["batch_ms"]],
            "all_due_with_their_writes_ms": [small["all_ms"], large["all_ms"]],
            "claiming_what_is_asked_about_ms": [small["claim_ms"], large["claim_ms"]],
        }


def _fill(stand: Rig, first: int, last: int) -> None:
    for start in range(first, last + 1, 250_000):
        _run(stand, _ENDED, first=start, last=min(start + 249_999, last))
    with stand.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("set statement_timeout = 0")
        connection.exec_driver_sql("vacuum analyze callkeeper.jobs")


def _run(stand: Rig, statement: sa.TextClause, **binds: int) -> None:
    with stand.db.engine.begin() as connection:
        connection.exec_driver_sql("set local statement_timeout = 0")
        connection.execute(statement, binds)


def _look(stand: Rig) -> dict[str, float]:
    """Each measurement is rolled back, so that the same rows are due for the next."""
    batch, whole, claim = [], [], []
    for _ in range(LOOKS):
        with stand.db.engine.connect() as connection:
            transaction = connection.begin()
            started = time.perf_counter()
            first = passes.look_at_quiet(connection, at_most=BATCH)
            batch.append((time.perf_counter() - started) * 1000)
            claimed = time.perf_counter()
            looks.claim_probes(connection, [one.job_id for one in first], owner="bench", term="45 s")
            claim.append((time.perf_counter() - claimed) * 1000)
            resumed = time.perf_counter()
            while passes.look_at_quiet(connection, at_most=BATCH):
                pass
            whole.append((time.perf_counter() - resumed) * 1000 + batch[-1])
            transaction.rollback()
    found, pages = _find(stand)
    return {
        "find_ms": round(found, 2),
        "batch_ms": round(statistics.median(batch), 2),
        "all_ms": round(statistics.median(whole), 2),
        "claim_ms": round(statistics.median(claim), 2),
        "pages": pages,
    }


_FIND = f"""
explain (analyze, buffers, format json)
select id from callkeeper.jobs
where status in ('queued', 'running', 'waiting') and next_check_at <= now()
  and (provider_kind is null or provider_kind <> all('{{}}'::text[]))
order by next_check_at, id limit {BATCH} for update skip locked
"""


def _find(stand: Rig) -> tuple[float, float]:
    """Finding and locking a batch alone, by the server's own clock; and the pages it touches, which would grow."""
    times, blocks = [], 0.0
    for _ in range(LOOKS):
        with stand.db.engine.connect() as connection:
            told = connection.exec_driver_sql(_FIND).scalar_one()[0]
            connection.rollback()
        times.append(told["Execution Time"])
        blocks = float(told["Plan"]["Shared Hit Blocks"] + told["Plan"]["Shared Read Blocks"])
    return statistics.median(times), blocks
