"""The clock: it may run twice without firing twice, drops no late tick, and outlives whatever ends periodiq."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from actors.cli import clock
from tests.conftest import Server, engine_on

SENT = sa.text("select count(*) from dramatiq.queue where message ->> 'actor_name' = 'sweep'")
TICKS = sa.text("select count(*) from callkeeper.ticks where schedule = 'sweep'")
SEND = """
import datetime, sys
from actors import sweep
sys.stdin.readline()
for _ in range(20):
    sweep.send_with_options(scheduled_at=str(datetime.datetime.now(datetime.timezone.utc)))
print("sent")
"""


def count(engine: sa.Engine, statement: sa.TextClause) -> int:
    with engine.connect() as connection:
        return int(connection.execute(statement).scalar_one())


def forget_ticks(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.execute(sa.text("delete from callkeeper.ticks"))


def alarm(scheduler: Any) -> None:
    """What periodiq waits for: the next minute."""
    os.kill(scheduler.process.pid, signal.SIGALRM)


def test_two_processes_at_the_same_minute_send_one_message(database_url: str, engine: sa.Engine) -> None:
    senders = [
        subprocess.Popen(
            [sys.executable, "-c", SEND], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "DATABASE_URL": database_url},
        )
        for _ in range(2)
    ]  # fmt: skip
    for sender in senders:
        assert sender.stdin is not None
        sender.stdin.write("go\n")
        sender.stdin.flush()
    assert [sender.communicate(timeout=60)[0] for sender in senders] == ["sent\n", "sent\n"]
    # Forty sends within a second or so: one minute, or two where they fell on its end.
    assert count(engine, SENT) == count(engine, TICKS)
    assert count(engine, TICKS) in (1, 2)


def test_two_schedulers_fire_each_tick_once(
    start: Callable[..., Any], until: Callable[..., None], database_url: str, engine: sa.Engine
) -> None:
    schedulers = [start("scheduler", DATABASE_URL=database_url) for _ in range(2)]
    for one in schedulers:
        until(lambda one=one: "Scheduling Actor(watchdog)" in one.output, lambda one=one: one.output)
    before = count(engine, TICKS)
    assert count(engine, SENT) == before >= 1
    # Now force a tick in both: as if a minute had begun that neither has sent yet.
    forget_ticks(engine)
    fired = [one.output.count("Scheduling Actor(watchdog)") for one in schedulers]

    def both_fired_again() -> bool:
        for one in schedulers:
            alarm(one)
        return all(
            one.output.count("Scheduling Actor(watchdog)") > earlier
            for one, earlier in zip(schedulers, fired, strict=True)
        )

    until(both_fired_again)
    for one in schedulers:
        one.process.send_signal(signal.SIGTERM)
        assert one.wait() == 0, one.output
    assert count(engine, SENT) - before == count(engine, TICKS)
    assert count(engine, TICKS) in (1, 2)


def test_a_tick_that_comes_late_is_still_processed(
    start: Callable[..., Any], until: Callable[..., None], database_url: str, engine: sa.Engine
) -> None:
    late = (
        "import datetime; from actors import sweep;"
        "then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=1);"
        "sweep.send_with_options(scheduled_at=str(then))"
    )
    subprocess.run(
        [sys.executable, "-c", late], env={**os.environ, "DATABASE_URL": database_url}, check=True, timeout=60
    )
    worker = start("worker", "--queues", "maintenance", "--threads", "1", DATABASE_URL=database_url)
    passed = sa.text("select count(*) from callkeeper.passes where name = 'sweep' and last_success_at is not null")
    until(lambda: count(engine, passed) == 1, lambda: worker.output)
    until(lambda: count(engine, SENT) == 0, lambda: worker.output)


def test_it_outlives_an_error_at_a_tick(
    start: Callable[..., Any], until: Callable[..., None], database_url: str, engine: sa.Engine
) -> None:
    scheduler = start("scheduler", DATABASE_URL=database_url)
    until(lambda: "Scheduling Actor(watchdog)" in scheduler.output, lambda: scheduler.output)
    with engine.begin() as connection:
        connection.execute(sa.text("alter table callkeeper.ticks rename to ticks_away"))

    def died() -> bool:
        alarm(scheduler)
        return "scheduler.restarting error=UndefinedTable" in scheduler.output

    until(died, lambda: scheduler.output)
    with engine.begin() as connection:
        connection.execute(sa.text("alter table callkeeper.ticks_away rename to ticks"))
    forget_ticks(engine)
    until(lambda: count(engine, TICKS) >= 1, lambda: scheduler.output)
    scheduler.process.send_signal(signal.SIGINT)
    assert scheduler.wait() == 0, scheduler.output


def test_it_outlives_a_restart_of_the_database(
    start: Callable[..., Any], until: Callable[..., None], server: Server, database_url: str, engine: sa.Engine
) -> None:
    scheduler = start("scheduler", DATABASE_URL=database_url)
    until(lambda: count(engine, TICKS) >= 1, lambda: scheduler.output)
    engine.dispose()
    server.restart_immediate()
    with engine_on(database_url) as fresh:
        forget_ticks(fresh)

        def ticked() -> bool:
            alarm(scheduler)
            return count(fresh, TICKS) >= 1

        until(ticked, lambda: scheduler.output)
    assert scheduler.process.poll() is None, scheduler.output
    scheduler.process.send_signal(signal.SIGTERM)
    assert scheduler.wait() == 0, scheduler.output


def test_pauses_grow_while_it_keeps_failing() -> None:
    pauses: list[float] = []

    def fail() -> None:
        if len(pauses) == 7:
            raise clock.Stopped
        raise ConnectionError

    with pytest.raises(clock.Stopped):
        clock.keep_running(fail, pause=pauses.append)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]


def test_without_the_schema_it_does_not_begin(start: Callable[..., Any], empty_database_url: str) -> None:
    scheduler = start("scheduler", DATABASE_URL=empty_database_url)
    assert scheduler.wait() == 5
    assert "run `callkeeper migrate`" in scheduler.output
