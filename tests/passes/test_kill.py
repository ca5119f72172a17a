"""A pass that is killed before any one of its statements: the next pass finishes, and everything happened once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.passes.conftest import Stand
from tests.passes.kit import POSTER
from tests.store.steps import LAPSED

ROOT = Path(__file__).parents[2]
ENDS = {
    "finished": ("completed", None),
    "gone": ("failed", "provider_task_lost"),
    "exhausted": ("failed", "reconcile_exhausted"),
    "sync": ("failed", "reconcile_no_recovery"),
    "overdue": ("timed_out", "queue_timeout"),
}


def scene(stand: Stand) -> dict[str, UUID]:
    """One row for each way a pass can decide, all of them due."""
    jobs = {name: stand.waiting() for name in ("finished", "gone", "exhausted")}
    stand.finish(jobs["finished"])
    jobs["sync"] = stand.submit("motto")
    stand.steps.start_call(stand.steps.claim(jobs["sync"], term=LAPSED).lease, kind="anthropic-sync")
    jobs["overdue"], jobs["unwoken"] = stand.submit(), stand.submit()
    hand = stand.steps.by_hand
    hand(
        "update callkeeper.jobs set poll_misses = 2, provider_task_id = 'nobody-knows' where id = :id", id=jobs["gone"]
    )
    hand(
        "insert into callkeeper.call_receipts (job_id, provider_kind, provider_task_id, call_generation, call_key, source, epoch)"
        " select id, provider_kind, provider_task_id, 0, call_key, 'find', epoch from callkeeper.jobs where id = :id",
        id=jobs["gone"],
    )
    hand("update callkeeper.jobs set reconcile_attempts = 18 where id = :id", id=jobs["exhausted"])
    hand("update callkeeper.jobs set queue_deadline_at = now() where id = :id", id=jobs["overdue"])
    hand("delete from dramatiq.queue")
    hand("update callkeeper.jobs set next_check_at = now() where finished_at is null")
    return jobs


def one_pass(stand: Stand, die_at: int = 0) -> subprocess.CompletedProcess[str]:
    options = stand.rt.options
    kinds = {
        name: {"base_url": kind.base_url, "api_key": "good", "poll_deadline": kind.poll_deadline}
        for name, kind in options.kinds.items()
    }
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("CALLKEEPER_")},
        "DATABASE_URL": options.require_database_url(),
        "CALLKEEPER_KINDS": json.dumps(kinds),
        "CALLKEEPER_MEDIA_URL": options.media_url,
        "CALLKEEPER_INSECURE_MEDIA_HOSTS": ",".join(options.insecure_media_hosts),
    }
    command = [sys.executable, "-m", "tests.passes.one_pass", *([str(die_at)] if die_at else [])]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)


def finish_up(stand: Stand, jobs: dict[str, UUID]) -> None:
    """Time goes by until the dead pass's leases are over; then the next pass."""
    stand.steps.by_hand(
        "update callkeeper.jobs set next_check_at = now(), lease_until = case when lease_until is not null then now() - interval '1 second' end,"
        " next_poll_at = case when status = 'waiting' then now() end where finished_at is null"
    )
    for _ in range(2):
        stand.pass_()
        stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where finished_at is null")
    assert {name: stand.end(jobs[name]) for name in ENDS} == ENDS
    assert stand.credits(jobs["finished"]) == ("committed", POSTER)
    assert {stand.credits(jobs[name]) for name in ENDS if name != "finished"} == {("refunded", 0)}
    assert stand.job(jobs["unwoken"])["status"] == "queued"
    woken = "message -> 'args' ->> 0 = :id"
    assert stand.steps.count("dramatiq.queue", woken, id=str(jobs["unwoken"])) >= 1
    stand.check()
    for table in ("notices", "usage_logs"):
        assert stand.steps.count(f"callkeeper.{table}") == len(jobs) - (table == "notices")
    stand.steps.by_hand("delete from callkeeper.jobs", "delete from callkeeper.accounts")


def reset(stand: Stand) -> None:
    from store import ledger

    stand.steps.by_hand(
        "delete from dramatiq.queue", "delete from callkeeper.alerts", "delete from callkeeper.provider_gates"
    )
    stand.rt.db.once(ledger.grant, stand.account, subscription=40, topup=1_000)


def killed_at(stand: Stand, number: int) -> bool:
    """Whether the pass got that far."""
    jobs = scene(stand)
    died = one_pass(stand, number)
    assert died.returncode in (0, -signal.SIGKILL), died.stderr
    finish_up(stand, jobs)
    return died.returncode != 0


@pytest.mark.parametrize("number", [4, 9])
def test_killed_at_a_statement_the_next_pass_finishes(stand: Stand, number: int) -> None:
    assert killed_at(stand, number)


@pytest.mark.slow
def test_killed_at_every_statement_the_next_pass_finishes(stand: Stand) -> None:
    jobs = scene(stand)
    whole = one_pass(stand)
    assert whole.returncode == 0, whole.stderr
    statements = int(whole.stdout)
    finish_up(stand, jobs)
    assert statements > 12
    for number in range(1, statements + 1):
        reset(stand)
        killed_at(stand, number)
