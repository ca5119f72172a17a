"""The watchdog of runs: what a late step's row says decides, everything else is left alone or told to people."""

import itertools
import time
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest

from actors import run_watch
from actors.probe import Found
from actors.rollout import Flags, Rollout, bucket, decide
from actors.run_watch import verdict
from store import jobs, polls, rollout
from store import run_watch as store_watch
from store.rollout import Flag
from store.run_watch import OpenStep
from tests.runs.kit import step, submit
from tests.store.steps import LAPSED, Steps

STEP = OpenStep(
    UUID(int=1), "film", "film", "film.join", "running", 1, "local", "local", 1, 3, True, False, False, False, False,
    False, False, False, 100.0,
)  # fmt: skip


def test_the_verdict_is_total_and_leaves_what_is_active_or_waits() -> None:
    for status, flags in itertools.product(
        ("queued", "running", "waiting"), itertools.product((True, False), repeat=4)
    ):
        lapsed, poll_late, result_known, sent = flags
        one = replace(
            STEP, status=status, lapsed=lapsed, poll_late=poll_late, result_known=result_known, message_sent=sent
        )
        found = verdict(one, threshold=50, known=True)
        idle = {"queued": not sent, "running": lapsed, "waiting": poll_late or result_known}[status]
        assert (found.found is Found.RUNNING) is not idle
        assert verdict(one, threshold=200, known=True).found is Found.RUNNING
        assert verdict(one, threshold=50, known=False).code == "unknown"


class Process:
    """What the watchdog asks of a process."""

    def __init__(self, steps: Steps, mode: Rollout = Rollout.ON, **thresholds: float) -> None:
        self.db = steps.db
        self.draining = type("Never", (), {"is_set": staticmethod(lambda: False)})()
        self.options = type("Options", (), {"stage_thresholds": thresholds})()
        self.flags = type("All", (), {"of": staticmethod(lambda *_: mode)})()


def look(steps: Steps, **thresholds: float) -> Counter[str]:
    steps.by_hand("update callkeeper.runs set next_check_at = now() where status = 'running'")
    process = cast(Any, Process(steps, **{"a": 0.0, "b": 0.0, **thresholds}))
    return Counter(run_watch.look_at_runs(process, time.monotonic() + 20))


def test_a_lost_release_is_made_good(steps: Steps) -> None:
    run = submit(steps, [step("a"), step("b", needs=["a"])])
    run.complete("a")
    steps.by_hand("update callkeeper.jobs set blocked = true where step = 'b'", "delete from dramatiq.queue")
    look(steps)
    assert run.ready() == {"b"}
    assert steps.count("dramatiq.queue") == 1


def test_a_crashed_step_is_recovered_by_its_row(steps: Steps) -> None:
    run = submit(steps, [step("a", job_type="replicate-prediction")])
    steps.claim(run.jobs["a"], term=LAPSED)
    assert look(steps)["recovered"] == 1
    assert steps.events(run.jobs["a"])[-1] == "recovered"
    assert run.status == "running"
    assert steps.violations() == []


def test_a_step_without_a_message_is_woken_once_its_stage_is_late(steps: Steps) -> None:
    run = submit(steps, [step("a", job_type="replicate-prediction")])
    steps.by_hand("delete from dramatiq.queue")
    assert look(steps, a=3600.0)["recovered"] == 0
    assert look(steps)["recovered"] == 1
    assert steps.count("dramatiq.queue", "message -> 'args' ->> 0 = cast(:id as text)", id=str(run.jobs["a"])) == 1


def test_a_step_that_is_parked_is_not_taken_for_one_whose_message_is_lost(steps: Steps) -> None:
    submit(steps, [step("a", job_type="replicate-prediction")])
    steps.by_hand("delete from dramatiq.queue", "update callkeeper.jobs set parked_on = '1/'")
    assert look(steps)["recovered"] == 0
    assert steps.count("dramatiq.queue") == 0


def test_a_result_that_is_there_is_brought_home(steps: Steps) -> None:
    plan = [
        step(
            "a", job_type="replicate-prediction", mode="async", actor="start_call", provider_kind="replicate-prediction"
        )
    ]
    run = submit(steps, plan)
    held = steps.claim(run.jobs["a"]).lease
    steps.start_call(held)
    from store import calls

    steps.db.once(calls.checkpoint_call, held, "t-1", first_poll=timedelta(0))
    assert steps.db.once(polls.mark_result_known, steps.poll(run.jobs["a"]), look_in=timedelta(hours=1))
    assert look(steps)["recovered"] == 0
    steps.by_hand("update callkeeper.jobs set next_poll_at = now() - interval '2 minutes'")
    assert look(steps)["recovered"] == 1
    assert [due.lease.job_id for due in steps.due()] == [run.jobs["a"]]


def test_an_active_step_is_left_alone(steps: Steps) -> None:
    run = submit(steps, [step("a", job_type="replicate-prediction")])
    held = run.claim("a").lease
    assert look(steps) == Counter(scanned=1)
    assert steps.db.once(jobs.renew, [held], term=timedelta(minutes=1))


def test_what_nobody_knows_is_told_once_and_not_guessed(steps: Steps) -> None:
    run = submit(steps, [step("a", job_type="from-the-future")])
    run.claim("a")
    assert look(steps)["alerted"] == 1
    assert look(steps)["alerted"] == 0
    assert run.events() == ["submitted", "unknown"]
    assert run.status == "running"
    assert steps.count("callkeeper.alerts", "subject = 'run_step_unknown:from-the-future'") == 1
    assert steps.violations() == []


def test_an_exhausted_step_fails_its_run_with_one_letter(steps: Steps) -> None:
    run = submit(steps, [step("a", job_type="replicate-prediction", max_attempts=1, retry_safe=False)])
    steps.claim(run.jobs["a"], term=LAPSED)
    look(steps)
    assert (run.status, run.read()["failure_code"]) == ("failed", "worker_lost")
    assert len(run.mails()) == 1
    look(steps)
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_overlapping_watchdogs_settle_once(steps: Steps) -> None:
    from tests.store.steps import at_once

    run = submit(steps, [step("a"), step("b")])
    steps.by_hand("update callkeeper.runs set deadline_at = now() - interval '1 second', next_check_at = now()")
    assert steps.db.once(store_watch.due) == [run.id]
    at_once([lambda: look(steps)] * 4)
    assert run.events() == ["submitted", "ending", "timed_out"]
    assert len(run.mails()) == 1
    assert steps.violations() == []


def test_a_canary_is_stable_and_only_grows() -> None:
    runs = [UUID(int=n) for n in range(2_000)]
    for name in rollout.FLAGS:
        small = {run for run in runs if decide(Flag("canary", 10), name, run) is Rollout.ON}
        large = {run for run in runs if decide(Flag("canary", 40), name, run) is Rollout.ON}
        assert small < large
        assert 100 < len(small) < 300
        assert {decide(Flag("canary", 100), name, run) for run in runs} == {Rollout.ON}
        assert {decide(Flag("canary", 0), name, run) for run in runs} == {Rollout.OFF}
    drawn = {name: [bucket(name, run) < 10 for run in runs] for name in rollout.FLAGS}
    assert drawn["salvage"] != drawn["plan_repair"]


@pytest.mark.parametrize(("mode", "found"), [("off", Rollout.OFF), ("shadow", Rollout.SHADOW), ("on", Rollout.ON)])
def test_a_flag_is_changed_live(steps: Steps, mode: str, found: Rollout) -> None:
    flags = Flags(lambda: steps.db.once(rollout.read))
    assert flags.of("salvage", UUID(int=1)) is Rollout.ON
    steps.db.once(rollout.set_flag, "salvage", mode, percent=50)
    flags._looked = float("-inf")  # a second later
    assert flags.of("salvage", UUID(int=1)) is found


def test_a_flag_that_does_not_exist_is_refused(steps: Steps) -> None:
    with pytest.raises(ValueError, match="there are provider_resume"):
        steps.db.once(rollout.set_flag, "luck", "on")
    with pytest.raises(ValueError, match="there are off, shadow"):
        steps.db.once(rollout.set_flag, "salvage", "maybe")


def test_a_run_that_cannot_be_looked_at_stops_no_other(steps: Steps) -> None:
    first, second = (submit(steps, [step("a"), step("b", needs=["a"])]) for _ in range(2))
    for run in (first, second):
        run.complete("a")
    steps.by_hand("update callkeeper.jobs set blocked = true where step = 'b'")
    steps.by_hand(
        "create function public.refuse() returns trigger language plpgsql as $$ begin raise exception 'broken'; end $$",
        f"create trigger refuse before update on callkeeper.runs for each row when (old.id = '{first.id}')"
        " execute function public.refuse()",
    )
    steps.by_hand("alter table callkeeper.runs disable trigger refuse")
    try:
        steps.by_hand(
            "update callkeeper.runs set next_check_at = now() - interval '1 hour' where id = :id", id=first.id
        )
        steps.by_hand("update callkeeper.runs set next_check_at = now() where id = :id", id=second.id)
        steps.by_hand("alter table callkeeper.runs enable trigger refuse")
        process = cast(Any, Process(steps, a=3600.0, b=3600.0))
        counts = Counter(run_watch.look_at_runs(process, time.monotonic() + 20))
    finally:
        steps.by_hand("drop trigger refuse on callkeeper.runs", "drop function public.refuse()")
    assert (second.ready(), first.ready()) == ({"b"}, set())
    assert (counts["scanned"], counts["errors"]) == (2, 1)
