"""Decisions that need more than one hand to show: who brings it home, since when it counts, on whose terms."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from actors import job_types
from actors.poll import Poller
from store import signals, watches
from tests.passes.conftest import Stand
from tests.passes.kit import POSTER
from tests.passes.test_late import abandoned, aftercare
from tests.store.steps import at_once

ROOT = Path(__file__).parents[2]


def test_a_poller_and_a_pass_at_the_same_instant_import_and_charge_once(stand: Stand) -> None:
    for _ in range(10):
        job = stand.waiting()
        stand.finish(job)
        stand.steps.by_hand("update callkeeper.jobs set next_poll_at = now() where id = :id", id=job)
        at_once([stand.pass_, lambda: stand.rt.submit(Poller(stand.rt).drain_once()).result()])
        assert stand.end(job) == ("completed", None)
        assert stand.credits(job) == ("committed", POSTER)
        assert stand.steps.count("callkeeper.assets", "job_id = :id", id=job) == 1
        assert len(stand.rt.media.keys(f"media/{job}/")) == 1, "one file, whole, whoever was first"
        assert stand.steps.events(job).count("completed") == 1


def test_a_stop_while_the_pass_brings_it_home_leaves_one_end(stand: Stand) -> None:
    ends = set()
    for _ in range(10):
        job = stand.waiting()
        stand.finish(job)
        at_once([stand.pass_, lambda job=job: stand.rt.db.transact(signals.request_stop, job)])  # type: ignore[misc]
        stand.pass_()
        status, charged = stand.job(job)["status"], stand.credits(job)
        assert (status, charged) in {("completed", ("committed", POSTER)), ("cancelled", ("refunded", 0))}
        ends.add(status)
    assert ends <= {"completed", "cancelled"}


def test_the_threshold_counts_from_the_calls_start_and_not_from_the_jobs(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    row = stand.job(job)
    assert row["next_check_at"] == row["provider_call_started_at"] + row["stale_after"]
    stand.steps.by_hand("update callkeeper.jobs set started_at = now() - interval '10 hours', next_check_at = now()")
    before = stand.polls()
    stand.pass_()
    assert (stand.job(job)["status"], stand.history(job)) == ("waiting", [])
    assert stand.polls() == before + 1, "looked at, and left alone"
    stand.stale(job)
    stand.finish(job)
    stand.pass_()


@pytest.mark.parametrize(("minutes", "ends"), [(30, False), (60, False), (89, False), (91, True)])
def test_a_job_that_may_take_ninety_minutes_has_ninety(stand: Stand, minutes: int, *, ends: bool) -> None:
    job = stand.waiting(stale=False)
    stand.steps.by_hand("update callkeeper.jobs set deadline_at = started_at + interval '90 minutes'")
    stand.tick(minutes=minutes)
    assert stand.job(job)["status"] == ("timed_out" if ends else "waiting")
    if ends:
        assert stand.end(job) == ("timed_out", "deadline_exceeded")
        while stand.deliver():
            pass
        assert stand.sandbox.stats()["requests"]["cancel"] == 1, "and its task is stopped"


def test_the_price_of_the_submit_is_charged_whatever_it_is_by_now(
    stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = stand.waiting()
    stand.finish(job)
    dearer = job_types.REGISTRY["placard"]
    monkeypatch.setitem(job_types.REGISTRY, "placard", replace(dearer, price=10 * POSTER))
    stand.pass_()
    assert stand.credits(job) == ("committed", POSTER)


@pytest.mark.parametrize("late", [False, True])
def test_what_was_asked_for_as_private_and_marked_stays_so_however_late_it_comes(stand: Stand, *, late: bool) -> None:
    """As for work that comes in through another program on a user's behalf: its submitter says so, before any call."""
    stand.steps.by_hand("update callkeeper.accounts set visibility_baseline = 'public'")
    asked = {"visibility": "private", "watermark": True}
    if late:
        job = abandoned(stand, **asked)
        stand.finish(job)
    else:
        job = stand.waiting(**asked)
        stand.finish(job)
    stand.steps.by_hand("update callkeeper.accounts set visibility_baseline = 'public'")
    if late:
        aftercare(stand)
        (kept,) = stand.rt.db.once(watches.standalone, job)
        assert (kept["visibility"], kept["watermark"]) == ("private", True)
    else:
        stand.pass_()
        assert stand.end(job) == ("completed", None)
    row = stand.job(job)
    assert (row["visibility"], row["watermark"]) == ("private", True)


def test_a_kind_whose_results_may_be_gone_before_its_pass_is_refused_at_import() -> None:
    code = (
        "from dataclasses import replace; from providers import replicate;"
        " first, *rest = replicate.KINDS;"
        " replicate.KINDS = (replace(first, stale_after=first.result_life / 2), *rest);"
        " import providers.registry"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "ValueError: replicate-prediction: found stale after 0:35:00, and a result lives only 1:00:00" in done.stderr
