"""What is measured all the time: numbers with labels, read from the rows. Reads only, all of them by small indexes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import sqlalchemy as sa

from store import emergency_stop
from store.guards import statement


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


OPEN_JOBS = statement(
    """
    select coalesce(provider_kind, 'none') as kind, status, count(*) as jobs,
      extract(epoch from clock_timestamp() - min(created_at))::float8 as oldest,
      sum(reconcile_attempts) as failed_looks, sum(reconcile_deferrals) as deferred_looks
    from callkeeper.jobs where status in ('queued', 'running', 'waiting')
    group by provider_kind, status
    """
)

OVERDUE_LOOKS = statement(
    """
    select count(*) as jobs, coalesce(extract(epoch from clock_timestamp() - min(next_check_at)), 0)::float8 as oldest
    from callkeeper.jobs where status in ('queued', 'running', 'waiting') and next_check_at <= now()
    """
)

HOLDS = statement(
    """
    select count(*) as holds, coalesce(sum(reserved_subscription + reserved_topup), 0)::float8 as credits,
      coalesce(extract(epoch from clock_timestamp() - min(created_at)), 0)::float8 as oldest
    from callkeeper.usage_logs where status = 'reserved'
    """
)

LOOKS = statement(
    """
    select found, did, count(*) as looks, max(late_seconds)::float8 as latest, avg(late_seconds)::float8 as late
    from callkeeper.job_looks where looked_at > now() - interval '1 hour'
    group by found, did
    """
)

GATES = statement(
    """
    select provider_kind as kind, account, failures, stops_clocks,
      greatest(extract(epoch from closed_until - clock_timestamp()), 0)::float8 as closed
    from callkeeper.provider_gates
    """
)

PASSES = statement(
    """
    select name, extract(epoch from clock_timestamp() - last_success_at)::float8 as age, scanned, acted, took_ms, counts
    from callkeeper.passes
    """
)

TOTALS = statement(
    """
    select
      (select count(*) from callkeeper.stale_writes) as stale_writes,
      (select count(*) from callkeeper.alerts where resolved_at is null) as alerts,
      (select count(*) from callkeeper.unexplained_spend where resolved_at is null) as spend_calls,
      (select coalesce(sum(price), 0)::float8 from callkeeper.unexplained_spend where resolved_at is null)
        as spend_credits,
      (select count(*) from callkeeper.upstream_watches where ended_at is null) as watches,
      (select count(*) from callkeeper.notices where delivered_at is null and dead_at is null) as notices,
      (select count(*) from callkeeper.consequences where delivered_at is null and dead_at is null) as consequences
    """
)

_TOTALS = {
    "stale_writes": "stale_writes_refused_total",
    "alerts": "alerts_open",
    "spend_calls": "unexplained_spend_calls",
    "spend_credits": "unexplained_spend_credits",
    "watches": "upstream_watches_open",
    "notices": "notices_owed",
    "consequences": "consequences_owed",
}


def samples(connection: sa.Connection) -> list[Sample]:
    """Everything that is measured, at this moment: seconds, and whole credits unless a name says otherwise."""
    return [
        *_jobs(connection),
        *_looks(connection),
        *_gates(connection),
        *_passes(connection),
        *_stop(connection),
        *_totals(connection.execute(TOTALS).mappings().one()),
    ]


def _jobs(connection: sa.Connection) -> Iterator[Sample]:
    for row in connection.execute(OPEN_JOBS):
        labels = {"kind": row.kind, "status": row.status}
        yield Sample("open_jobs", labels, row.jobs)
        yield Sample("oldest_open_job_seconds", labels, row.oldest)
        yield Sample("failed_looks_of_open_jobs", labels, row.failed_looks)
        yield Sample("deferred_looks_of_open_jobs", labels, row.deferred_looks)
    holds = connection.execute(HOLDS).one()
    yield Sample("reserved_credits", {}, holds.credits)
    yield Sample("reserved_holds", {}, holds.holds)
    yield Sample("oldest_hold_seconds", {}, holds.oldest)


def _looks(connection: sa.Connection) -> Iterator[Sample]:
    overdue = connection.execute(OVERDUE_LOOKS).one()
    yield Sample("overdue_looks", {}, overdue.jobs)
    yield Sample("oldest_overdue_look_seconds", {}, overdue.oldest)
    for row in connection.execute(LOOKS):
        labels = {"found": row.found, "did": row.did}
        yield Sample("looks_last_hour", labels, row.looks)
        yield Sample("recovery_latency_seconds", labels | {"of": "mean"}, row.late)
        yield Sample("recovery_latency_seconds", labels | {"of": "max"}, row.latest)


def _gates(connection: sa.Connection) -> Iterator[Sample]:
    for row in connection.execute(GATES):
        labels = {"kind": row.kind, "account": row.account}
        yield Sample("breaker_closed_seconds", labels, row.closed)
        yield Sample("breaker_failures", labels, row.failures)
        yield Sample("breaker_stops_clocks", labels, float(row.stops_clocks))


def _passes(connection: sa.Connection) -> Iterator[Sample]:
    for row in connection.execute(PASSES):
        labels = {"pass": row.name}
        if row.age is not None:
            yield Sample("pass_last_success_seconds", labels, row.age)
        yield Sample("pass_scanned", labels, row.scanned)
        yield Sample("pass_took_milliseconds", labels, row.took_ms)
        for what, count in row.counts.items():
            if what.startswith("invariant_"):
                yield Sample("violations", {"invariant": what.removeprefix("invariant_")}, count)
            else:
                yield Sample("pass_did", labels | {"what": what}, count)


def _stop(connection: sa.Connection) -> Iterator[Sample]:
    stop = emergency_stop.read(connection)
    if stop is not None:
        for of in ("amount", "used", "reserved"):
            yield Sample("emergency_stop_micro_usd", {"of": of}, getattr(stop, of))
        yield Sample("emergency_stop_latched", {}, float(stop.latched_at is not None))


def _totals(row: Any) -> Iterator[Sample]:
    for column, name in _TOTALS.items():
        yield Sample(name, {}, row[column])
