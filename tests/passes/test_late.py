"""Jobs that ended before their tasks did: an alert each, a cancel where there is one, late files kept and never charged."""

import time
from collections import Counter
from typing import Any
from uuid import UUID

import httpx
import pytest

from actors.aftercare import look_after
from actors.gates import Gates
from store import reads, receipts, settle, signals, watches
from store.models import CallState, Settlement
from store.states import State
from tests.passes.conftest import Stand, reply
from tests.store.steps import at_once

GONE = Settlement(State.FAILED, error_code="provider_task_lost", error_message="not there")


def aftercare(stand: Stand) -> Counter[str]:
    stand.rt.gates = Gates(stand.rt)
    stand.steps.by_hand("update callkeeper.upstream_watches set check_at = now() where ended_at is null")
    return stand.rt.submit(look_after(stand.rt, time.monotonic() + 60)).result()


def abandoned(stand: Stand, job_type: str = "placard", **asked: Any) -> UUID:
    """A job that failed while its task runs on."""
    job = stand.waiting(job_type, **asked)
    lease = stand.steps.due(kinds=[stand.job(job)["provider_kind"]]) or None
    if lease is None:
        stand.steps.by_hand("update callkeeper.jobs set next_poll_at = now()")
        lease = stand.steps.due(kinds=[stand.job(job)["provider_kind"]])
    stand.rt.db.transact(settle.end_polled, lease[0].lease, GONE, upstream_ended=True)
    return job


def watch(stand: Stand) -> dict[str, object]:
    return dict(stand.steps.one("select * from callkeeper.upstream_watches"))


def test_one_alert_and_nothing_of_the_job_changes(stand: Stand) -> None:
    job = abandoned(stand, "postcard")
    before = stand.job(job)
    for _ in range(3):
        aftercare(stand)
    assert stand.alerts() == {f"still_running:{job}:{before['provider_task_id']}": 1}
    assert stand.job(job) == before
    assert stand.credits(job) == ("refunded", 0)
    assert watch(stand)["looks"] == 3


def cancels(stand: Stand) -> int:
    return int(stand.sandbox.stats()["requests"]["cancel"])


def test_upstream_is_cancelled_where_it_can_be(stand: Stand) -> None:
    abandoned(stand)
    for _ in range(2):
        aftercare(stand)
        assert cancels(stand) == 0, "it is owed, and delivered with what else is"
    while stand.deliver():
        pass
    assert cancels(stand) == 1
    aftercare(stand)
    ended = watch(stand)
    assert ended["outcome"] == "cancelled"
    assert stand.spend() == [], "the provider confirms it"


def test_a_cancel_that_the_ending_owes_is_not_asked_for_twice(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    assert stand.rt.db.transact(signals.request_stop, job) is State.CANCELLED
    aftercare(stand)
    assert stand.steps.count("callkeeper.consequences", "effect = 'cancel_upstream'") == 1
    while stand.deliver():
        pass
    aftercare(stand)
    assert cancels(stand) == 1
    assert watch(stand)["outcome"] == "cancelled"


def twin_of(stand: Stand, job: UUID) -> str:
    """Its create was carried out twice, and the second task is learned of too late."""
    row, sandbox, key = stand.job(job), stand.sandbox, {"authorization": "Bearer good"}
    if row["provider_kind"] == "kie-standard":
        asked = {"model": "nano-banana-pro", "input": {"prompt": "again"}}
        made = httpx.post(f"{sandbox.url}/api/v1/jobs/createTask", json=asked, headers=key).json()["data"]["taskId"]
    else:
        url = f"{sandbox.replicate_url}/models/acme/draw/predictions"
        made = httpx.post(url, json={"input": {"prompt": "again"}}, headers=key).json()["id"]
    state = CallState(row["provider_kind"], None, row["call_key"], row["call_generation"], row["call_handle"], None)
    stand.rt.db.once(receipts.keep_receipt, job, state, made)
    return str(made)


def found_out(stand: Stand) -> None:
    """The audit says what has happened: one call, and several tasks on the bill."""
    assert {row["invariant"] for row in stand.rt.db.once(reads.violations)} == {3}
    stand.steps.by_hand("delete from callkeeper.call_receipts where source = 'late_create'")


def test_each_of_two_tasks_of_one_job_is_told_of(stand: Stand) -> None:
    job = abandoned(stand, "postcard")
    twin = twin_of(stand, job)
    aftercare(stand)
    assert stand.alerts() == {f"still_running:{job}:{task}": 1 for task in (stand.job(job)["provider_task_id"], twin)}
    while stand.deliver():
        pass
    assert len(stand.alerts()) == 2, "it cannot be cancelled, and nobody says so twice"
    found_out(stand)


def test_the_second_task_of_a_completed_job_is_cancelled_or_kept_and_never_charged(stand: Stand) -> None:
    job = stand.waiting()
    stand.finish(job)
    stand.pass_()
    charged = stand.credits(job)
    stand.sandbox.script({"defaults": {"run_seconds": 10_000, "webhook": "off"}})
    twins = twin_of(stand, job), twin_of(stand, job)
    stand.finish_task(twins[0])
    aftercare(stand)
    assert len(stand.rt.db.once(watches.standalone, job)) == 1
    while stand.deliver():
        pass
    aftercare(stand)
    outcomes = stand.steps.all("select provider_task_id as task, outcome from callkeeper.upstream_watches")
    assert {row["task"]: row["outcome"] for row in outcomes} == dict(zip(twins, ("kept", "cancelled"), strict=True))
    assert stand.credits(job) == charged
    assert stand.end(job) == ("completed", None)
    found_out(stand)


def test_a_late_success_is_a_standalone_asset_and_never_charged(stand: Stand) -> None:
    job = abandoned(stand)
    stand.finish(job)
    counts = aftercare(stand)
    assert counts["recovered"] == 1
    files = stand.rt.db.once(watches.standalone, job)
    assert len(files) == 1
    assert stand.rt.media.get(files[0]["object_key"])
    assert (files[0]["visibility"], files[0]["watermark"]) == ("public", False)
    assert stand.end(job) == ("failed", "provider_task_lost")
    assert stand.credits(job) == ("refunded", 0)
    assert stand.spend() == []
    assert aftercare(stand)["scanned"] == 0


def test_two_at_once_keep_it_once(stand: Stand) -> None:
    job = abandoned(stand)
    stand.finish(job)
    at_once([lambda: aftercare(stand), lambda: aftercare(stand)])
    assert len(stand.rt.db.once(watches.standalone, job)) == 1


def test_a_failed_look_is_repeated_and_the_day_ends(stand: Stand) -> None:
    abandoned(stand, "postcard")
    stand.sandbox.script({"rules": [reply(500, {"code": 500, "msg": "no"})]})
    assert aftercare(stand)["deferred"] == 1
    assert watch(stand)["ended_at"] is None
    stand.later(minutes=25 * 60)
    aftercare(stand)
    assert watch(stand)["outcome"] == "unknown"


def test_a_task_id_that_comes_after_the_end_is_watched_too(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    row = stand.job(job)
    state = CallState(row["provider_kind"], None, row["call_key"], 1, row["call_handle"], None)
    stand.steps.by_hand(
        "update callkeeper.jobs set provider_task_id = null, resolve_by = now(), next_poll_at = now() where id = :id",
        id=job,
    )
    (due,) = stand.steps.due()
    lost = Settlement(State.FAILED, error_code="reconcile_no_recovery")
    stand.rt.db.transact(settle.end_polled, due.lease, lost, upstream_ended=True)
    stand.rt.db.once(receipts.keep_receipt, job, state, row["provider_task_id"])
    stand.finish_task(row["provider_task_id"])
    assert aftercare(stand)["recovered"] == 1
    assert len(stand.rt.db.once(watches.standalone, job)) == 1


@pytest.mark.parametrize("outcome", ["completed", "task_failed"])
def test_a_task_that_has_ended_is_not_watched(stand: Stand, outcome: str) -> None:
    job = stand.waiting()
    stand.finish(job)
    if outcome == "task_failed":
        task = stand.job(job)["provider_task_id"]
        stand.sandbox.script({"rules": [reply(200, {"id": task, "status": "failed", "error": "no"})]})
    stand.pass_()
    assert stand.job(job)["status"] in ("completed", "failed")
    assert stand.steps.count("callkeeper.upstream_watches") == 0
