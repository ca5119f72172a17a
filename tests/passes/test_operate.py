"""Repairs, the auditor of the books, what a pass leaves on record, and what operators see and settle."""

import json
import threading
from collections import Counter
from datetime import timedelta

import pytest

import actors
from actors import passes as actor_passes
from actors import repairs
from actors.broker import broker
from actors.cli.operate import prometheus
from actors.readiness import expected_passes, late
from store import metrics, operators
from store import repairs as store_repairs
from store.states import State
from tests.passes.conftest import Stand
from tests.passes.kit import POSTER


def run(stand: Stand, work: repairs.Callable, *, name: str = "mending", seconds: float = 30) -> object:  # type: ignore[type-arg]
    return repairs.run_alone(stand.rt, name, work, deadline=timedelta(seconds=seconds))


def row(stand: Stand, name: str) -> dict[str, object]:
    return dict(stand.steps.one("select * from callkeeper.passes where name = :name", name=name))


# Repairs.


def test_a_repair_of_the_app_is_an_actor_with_its_own_schedule() -> None:
    @actors.repair("strays", every="*/7 * * * *", deadline=timedelta(minutes=1))
    def strays(_db: object) -> int:
        return 3

    try:
        made = broker.actors["strays"]
        assert (made.queue_name, str(made.options["periodic"])) == ("maintenance", "*/7 * * * *")
        assert "strays" in expected_passes()
        assert "strays" not in late([]), "not due yet is not late"
        assert late([{"name": "strays", "age": 1_000.0}]).count("strays") == 1
        assert "strays" not in late([{"name": "strays", "age": 800.0}])
    finally:
        del broker.actors["strays"]


def test_each_repair_runs_though_another_fails(stand: Stand) -> None:
    def broken(_rt: object, _until: float) -> Counter[str]:
        raise RuntimeError("stranded")

    assert run(stand, broken, name="broken") == {}
    assert run(stand, lambda _rt, _until: Counter(repaired=2), name="whole") == {"repaired": 2}
    assert stand.alerts() == {"repair_failed:broken": 1}
    assert row(stand, "broken")["last_error"] == "RuntimeError"
    assert row(stand, "broken")["last_success_at"] is None
    assert row(stand, "whole")["counts"] == {"repaired": 2}


def test_a_repair_past_its_deadline_is_ended_and_its_lock_is_free(stand: Stand) -> None:
    entered = threading.Event()

    def endless(_rt: object, _until: float) -> Counter[str]:
        entered.set()
        while True:
            threading.Event().wait(0.01)

    assert run(stand, endless, seconds=0.3) == {}
    assert entered.is_set()
    assert row(stand, "mending")["last_error"] == "RepairLate"
    assert row(stand, "mending")["locked_until"] is None


def test_one_at_a_time_in_the_whole_fleet(stand: Stand) -> None:
    token = stand.rt.db.once(store_repairs.lock, "mending", span=timedelta(hours=1))
    assert token is not None
    assert run(stand, lambda _rt, _until: Counter(repaired=1)) is None
    stand.steps.by_hand("update callkeeper.passes set locked_until = now()")
    assert run(stand, lambda _rt, _until: Counter(repaired=1)) == {"repaired": 1}, "its holder is dead"
    stand.rt.db.once(store_repairs.unlock, "mending", token)


def test_built_in_repairs_are_actors_of_their_own() -> None:
    assert {"aftercare", "settle_holds", "tidy_messages", "audit_books"} <= set(expected_passes())


# The books.


def test_a_hold_without_an_open_job_is_settled_once_and_told(stand: Stand) -> None:
    kept, lost = stand.submit(), stand.submit()
    stand.steps.by_hand(
        "update callkeeper.jobs set status = 'completed', result = '{}', finished_at = now(), next_check_at = null where id = :id",
        id=kept,
    )
    stand.steps.by_hand(
        "update callkeeper.jobs set status = 'failed', error_code = 'x', finished_at = now(), next_check_at = null where id = :id",
        id=lost,
    )
    assert repairs._settle_holds(stand.rt, 0)["repaired"] == 2
    assert (stand.credits(kept), stand.credits(lost)) == (("committed", POSTER), ("refunded", 0))
    assert repairs._settle_holds(stand.rt, 0)["repaired"] == 0
    assert stand.alerts() == {"hold_without_open_job": 1}
    pools = stand.steps.pools(stand.account)
    assert pools["reserved"] == (0, 0)
    assert pools["committed"] == (POSTER, 0)
    stand.steps.by_hand("delete from callkeeper.jobs", "delete from callkeeper.accounts")


def test_a_job_without_a_hold_is_told(stand: Stand) -> None:
    job = stand.submit()
    stand.steps.by_hand("delete from callkeeper.usage_logs")
    assert repairs._settle_holds(stand.rt, 0)["alerted"] == 1
    assert stand.alerts() == {f"job_without_hold:{job}": 1}
    stand.steps.by_hand("delete from callkeeper.jobs", "delete from callkeeper.accounts")


def test_the_auditor_raises_one_alert_an_invariant(stand: Stand) -> None:
    jobs = [stand.submit() for _ in range(3)]
    stand.steps.by_hand("update callkeeper.jobs set event_seq = 7")
    counts = repairs._audit_books(stand.rt, 0)
    assert counts["invariant_8"] == len(jobs)
    assert stand.alerts() == {"violation:8": 1}
    (alert,) = stand.rt.db.once(operators.alerts)
    assert alert["details"]["count"] == len(jobs)
    stand.steps.by_hand("update callkeeper.jobs set event_seq = 1")
    assert repairs._audit_books(stand.rt, 0)["violations"] == 0


def test_messages_of_jobs_that_are_no_more_are_taken_away(stand: Stand) -> None:
    alive, gone, ended = stand.submit(), stand.submit(), stand.steps.ended(State.COMPLETED)
    stand.steps.by_hand("delete from callkeeper.jobs where id = :id", id=gone)
    stand.steps.by_hand("update dramatiq.queue set available_at = now() - interval '1 hour'")
    stand.steps.by_hand(
        "insert into dramatiq.queue (message_id, queue_name, state, message, available_at) select gen_random_uuid(), 'calls',"
        " 'queued', jsonb_build_object('actor_name', 'start_call', 'args', jsonb_build_array('no id')), now() - interval '1 h'"
    )
    assert repairs._tidy_messages(stand.rt, 0)["repaired"] == 2
    left = stand.steps.all("select message -> 'args' ->> 0 as job from dramatiq.queue")
    assert {row["job"] for row in left} == {str(alive), "no id"}
    assert ended
    stand.steps.by_hand("delete from callkeeper.jobs", "delete from callkeeper.accounts")


# On record.


def test_a_pass_leaves_its_row_and_its_line_idle_ones_too(stand: Stand, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "callkeeper.passes")
    for _ in range(2):
        actor_passes.recorded(stand.rt, "sweep", actor_passes._sweep)
    idle = row(stand, "sweep")
    assert (idle["scanned"], idle["last_error"]) == (0, None)
    first = idle["last_success_at"]
    job = stand.waiting()
    stand.finish(job)
    actor_passes.recorded(stand.rt, "sweep", actor_passes._sweep)
    done = row(stand, "sweep")
    did = {what: count for what, count in done["counts"].items() if count}
    assert (done["scanned"], done["acted"], did) == (1, 1, {"scanned": 1, "recovered": 1})
    assert done["last_success_at"] > first
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("pass.done name=sweep")]
    assert len(lines) == 3
    assert "scanned=1" in lines[-1]
    assert "recovered=1" in lines[-1]


def test_a_pass_that_throws_says_so_and_moves_no_success(stand: Stand) -> None:
    def broken(_rt: object, _until: float) -> Counter[str]:
        raise OSError("the database is away")

    with pytest.raises(OSError, match="away"):
        actor_passes.recorded(stand.rt, "sweep", broken)
    assert (row(stand, "sweep")["last_error"], row(stand, "sweep")["last_success_at"]) == ("OSError", None)


def test_a_row_that_cannot_be_dealt_with_stops_no_other(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    from actors import reconcile

    poisoned, well = stand.submit(), stand.submit()
    stand.steps.by_hand("update callkeeper.jobs set queue_deadline_at = now(), next_check_at = now()")
    real = reconcile.Pass._time_out

    def fails_for_one(self: reconcile.Pass, quiet: reconcile.Quiet) -> None:
        if quiet.job_id == poisoned:
            raise RuntimeError("this one")
        real(self, quiet)

    with monkeypatch.context() as patched:
        patched.setattr(reconcile.Pass, "_time_out", fails_for_one)
        counts = stand.pass_()
    assert counts["errors"] == 1
    assert stand.end(well) == ("timed_out", "queue_timeout")
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where status = 'queued'")
    stand.pass_()
    assert stand.end(poisoned) == ("timed_out", "queue_timeout")


# Operators.


def test_an_alert_is_one_a_subject_and_comes_back_with_its_cause(stand: Stand) -> None:
    from store import passes

    for _ in range(3):
        stand.rt.db.once(passes.raise_alert, "kind:outage", {"n": 1})
    assert stand.alerts() == {"kind:outage": 3}
    assert stand.rt.db.once(operators.resolve_alert, "kind:outage")
    assert not stand.rt.db.once(operators.resolve_alert, "kind:outage")
    assert stand.alerts() == {}
    assert len(stand.rt.db.once(operators.alerts, resolved_too=True)) == 1
    stand.rt.db.once(passes.raise_alert, "kind:outage", {"n": 2})
    assert stand.alerts() == {"kind:outage": 4}


def test_metrics_tell_what_an_operator_needs(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.pass_()
    actor_passes.recorded(stand.rt, "sweep", actor_passes._sweep)
    stand.waiting(stale=False)
    stand.rt.gates._close("kie-veo", "default", "outage", 60, stops_clocks=True)
    text = prometheus(stand.rt.db.once(metrics.samples))
    for line in (
        'callkeeper_open_jobs{kind="replicate-prediction",status="waiting"} 1',
        f"callkeeper_reserved_credits {POSTER}",
        'callkeeper_looks_last_hour{found="succeeded",did="brought_home"} 1',
        'callkeeper_breaker_stops_clocks{kind="kie-veo",account="default"} 1',
        "callkeeper_stale_writes_refused_total 0",
        "callkeeper_alerts_open 1",
        "# TYPE callkeeper_stale_writes_refused_total counter",
    ):
        assert line in text.splitlines()
    assert 'callkeeper_pass_last_success_seconds{pass="sweep"}' in text
    assert "callkeeper_recovery_latency_seconds" in text
    assert json.dumps([sample._asdict() for sample in stand.rt.db.once(metrics.samples)], default=float)
