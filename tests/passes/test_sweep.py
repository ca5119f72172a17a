"""What cannot be asked about any more: ended once, refunded once, and what may have been paid is written down."""

from datetime import timedelta

import pytest

from store import ledger
from tests.passes.conftest import Stand
from tests.passes.kit import POSTER, SAYING
from tests.store.steps import LAPSED


def _sync_call(stand: Stand) -> object:
    """A synchronous call under way whose worker is gone."""
    job = stand.submit("motto")
    claimed = stand.steps.claim(job, term=LAPSED)
    stand.steps.start_call(claimed.lease, kind="anthropic-sync")
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now() where id = :id", id=job)
    return job


def test_a_stale_synchronous_call_is_failed_and_refunded_in_one_pass(stand: Stand) -> None:
    job = _sync_call(stand)
    counts = stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_no_recovery")
    assert stand.credits(job) == ("refunded", 0)
    assert counts["recovered"] == 1
    assert stand.spend() == [job], "the provider may have billed it"
    assert stand.history(job) == [("missing", "failed")]


def test_two_passes_leave_what_one_leaves(stand: Stand) -> None:
    job = _sync_call(stand)
    stand.pass_()
    once = (stand.job(job), stand.rt.db.once(ledger.balance, stand.account))
    stand.pass_()
    assert (stand.job(job), stand.rt.db.once(ledger.balance, stand.account)) == once


def test_a_live_lease_is_never_swept_however_old_the_call(stand: Stand) -> None:
    """Liveness is a lease, not an age: slow and alive is not dead."""
    job = stand.submit("motto")
    claimed = stand.steps.claim(job, term=timedelta(hours=1))
    stand.steps.start_call(claimed.lease, kind="anthropic-sync")
    stand.stale(job)
    stand.pass_()
    assert stand.job(job)["status"] == "running"


def test_the_refund_lands_in_the_pools_it_came_from(stand: Stand) -> None:
    before = stand.steps.pools(stand.account)
    jobs = [stand.submit("placard") for _ in range(9)]  # 45 credits: all 40 of the plan, and 5 bought ones
    split = stand.steps.pools(stand.account)["reserved"]
    assert split == (40, 5)
    stand.steps.by_hand("update callkeeper.jobs set queue_deadline_at = now(), next_check_at = now()")
    stand.pass_()
    assert {stand.end(job) for job in jobs} == {("timed_out", "queue_timeout")}
    assert stand.steps.pools(stand.account) == before


def test_a_row_never_started_ends_at_its_queue_deadline(stand: Stand) -> None:
    job = stand.submit()
    stand.steps.by_hand("update callkeeper.jobs set queue_deadline_at = now(), next_check_at = now()")
    stand.pass_()
    assert stand.end(job) == ("timed_out", "queue_timeout")
    assert stand.spend() == []
    assert stand.history(job) == [("overdue", "timed_out")]


def test_a_legacy_row_without_a_kind_is_swept_past_the_threshold_and_not_before(stand: Stand) -> None:
    young, old = stand.submit(), stand.submit()
    stand.steps.by_hand("update callkeeper.jobs set provider_kind = null, next_check_at = now()")
    stand.steps.by_hand(
        "update callkeeper.jobs set created_at = created_at - stale_after, available_at = available_at - stale_after"
        " where id = :id",
        id=old,
    )
    stand.pass_()
    assert stand.job(young)["status"] == "queued"
    assert stand.end(old) == ("failed", "reconcile_no_recovery")
    assert stand.credits(old) == ("refunded", 0)
    assert stand.job(old)["visibility"] == "public", "its account's baseline"
    stand.steps.by_hand(
        "update callkeeper.jobs set queue_deadline_at = now(), next_check_at = now() where status = 'queued'"
    )
    stand.pass_()


def test_an_unknown_kind_is_told_at_once_and_swept_past_the_threshold(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    stand.steps.by_hand(
        "alter table callkeeper.call_receipts disable trigger user;"
        " update callkeeper.call_receipts set provider_kind = 'gone-kind';"
        " alter table callkeeper.call_receipts enable trigger user"
    )
    stand.steps.by_hand(
        "update callkeeper.jobs set provider_kind = 'gone-kind', next_check_at = now(),"
        " next_poll_at = now() + interval '1 day'"
    )
    stand.pass_()
    assert stand.alerts() == {"unknown_kind:gone-kind": 1}
    assert stand.job(job)["status"] == "waiting"
    stand.stale(job)
    stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_no_recovery")
    assert stand.spend() == [job]


def test_an_asynchronous_call_without_an_id_is_given_up_only_past_its_quiet_period(stand: Stand) -> None:
    job = stand.steps.ambiguous(
        provider_kind="kie-standard", account_id=stand.account, price=POSTER, job_type="postcard", fingerprint="x"
    )
    stand.steps.by_hand(
        "update callkeeper.jobs set provider_kind = 'kie-standard', next_check_at = now(), next_poll_at = now() + '1 day'::interval"
    )
    stand.pass_()
    assert stand.job(job)["status"] == "waiting"
    stand.steps.by_hand(
        "update callkeeper.jobs set resolve_by = now(), next_check_at = now(), next_poll_at = now() + '1 day'::interval, poll_token = null"
    )
    stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_no_recovery")
    assert stand.credits(job) == ("refunded", 0)
    assert stand.spend() == [job]
    assert stand.history(job) == [("missing", "failed")]


def test_a_call_that_only_its_callback_can_name_is_waited_for_until_it_is_stale(stand: Stand) -> None:
    stand.rt.options = stand.rt.options.model_copy(update={"callback_url": "https://app.example/callbacks"})
    job = stand.steps.ambiguous(
        provider_kind="kie-standard", account_id=stand.account, price=POSTER, job_type="postcard", fingerprint="x"
    )
    quiet = (
        "update callkeeper.jobs set provider_kind = 'kie-standard', resolve_by = now(), next_check_at = now(),"
        " next_poll_at = now() + interval '1 day', poll_token = null"
    )
    stand.steps.by_hand(quiet)
    stand.pass_()
    assert stand.job(job)["status"] == "waiting", "its callback may still come"
    stand.stale(job)
    stand.steps.by_hand(quiet)
    stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_no_recovery")


def test_a_receipt_brings_back_a_call_whose_answer_was_lost(stand: Stand) -> None:
    job = stand.waiting(stale=False)
    task = stand.job(job)["provider_task_id"]
    stand.steps.by_hand(
        "update callkeeper.jobs set provider_task_id = null, next_check_at = now(), next_poll_at = now() + interval '1 day'"
    )
    stand.finish_task(task)
    stand.pass_()
    assert stand.job(job)["provider_task_id"] == task, "from the receipt"
    stand.stale(job)
    stand.pass_()
    assert stand.end(job) == ("completed", None)
    assert stand.creates() == 1


@pytest.mark.parametrize("money", ["refunded", "committed"])
def test_without_a_hold_only_the_job_is_moved(stand: Stand, money: str) -> None:
    """Somebody settled its money before: no second refund."""
    job = _sync_call(stand)
    stand.steps.by_hand(
        "update callkeeper.usage_logs set status = :status, settled_at = now(),"
        " committed_subscription = case :status when 'committed' then reserved_subscription else 0 end",
        status=money,
    )
    column = "balance" if money == "refunded" else "committed"
    stand.steps.by_hand(
        f"update callkeeper.accounts set reserved_subscription = reserved_subscription - {SAYING},"
        f" {column}_subscription = {column}_subscription + {SAYING}"
    )
    before = stand.steps.pools(stand.account)
    stand.pass_()
    assert stand.end(job) == ("failed", "reconcile_no_recovery")
    assert stand.steps.pools(stand.account) == before
    stand.steps.by_hand("delete from callkeeper.jobs")
    stand.steps.by_hand("delete from callkeeper.accounts")


def test_a_job_whose_retry_is_safe_runs_again_instead(stand: Stand) -> None:
    lease = stand.steps.claim(
        stand.steps.submit(mode="sync", retry_safe=True, actor="run_sync_call", provider_kind="anthropic-sync"),
        term=LAPSED,
    ).lease
    stand.steps.start_call(lease, kind="anthropic-sync")
    stand.steps.by_hand("update callkeeper.jobs set next_check_at = now()")
    stand.pass_()
    row = stand.job(lease.job_id)
    assert (row["status"], row["attempt"]) == ("queued", 2)
    stand.steps.by_hand("delete from callkeeper.jobs")
