"""Guards that the CHECK constraints also imply. Here the constraints are gone, so each guard stands alone."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from store import calls, jobs, milestones, outbox, polls, settle
from store.engine import Database, make_engine
from store.errors import LeaseLost
from store.models import Lease, PollNote, Settlement
from store.states import State
from tests.conftest import Server, scratch_database
from tests.store.steps import AT_ONCE, DONE, FAILED, FAR, LAPSED, TERM, Steps

BARE = """
do $$ declare c record; begin
  for c in select conname from pg_constraint where conrelid = 'callkeeper.jobs'::regclass and contype = 'c' loop
    execute format('alter table callkeeper.jobs drop constraint %I', c.conname);
  end loop;
end $$
"""


@pytest.fixture(scope="module")
def bare(server: Server, template: str) -> Iterator[Steps]:
    """One database for all cases, where any row can be stored."""
    with scratch_database(server, template) as url:
        db = Database(make_engine(url, name="tests"))
        steps = Steps(db)
        steps.by_hand(BARE)
        yield steps
        db.dispose()


def refused(verb: Callable[[], Any]) -> bool:
    try:
        return verb() in (None, False, 0, set(), {}, [])
    except LeaseLost:
        return True


def refuses(steps: Steps, job_id: Any, spoil: str, verb: Callable[[], Any]) -> None:
    steps.by_hand(f"update callkeeper.jobs set {spoil} where id = :id", id=job_id)
    before = steps.row(job_id)
    assert refused(verb)
    assert steps.row(job_id) == before
    steps.by_hand("delete from callkeeper.jobs where id = :id", id=job_id)


HOLDER: dict[str, Callable[[Database, Any], Any]] = {
    "renew": lambda db, lease: db.once(jobs.renew, [lease], term=TERM),
    "abandon": lambda db, lease: db.once(jobs.abandon, lease),
    "report_progress": lambda db, lease: db.once(jobs.report_progress, lease, 0.5),
    "milestone": lambda db, lease: db.once(milestones.record, lease, "x", {}),
    "requeue": lambda db, lease: db.once(jobs.requeue, lease, delay=AT_ONCE, why="x"),
    "requeue_counted": lambda db, lease: db.once(
        jobs.requeue_counted, lease, expected_attempt=1, delay=AT_ONCE, why="x"
    ),
    "checkpoint_call": lambda db, lease: db.once(calls.checkpoint_call, lease, "some-task", first_poll=AT_ONCE),
    "mark_ambiguous": lambda db, lease: db.once(calls.mark_ambiguous, lease, look_in=AT_ONCE, why="x"),
    "complete": lambda db, lease: db.transact(settle.complete, lease, DONE),
    "fail": lambda db, lease: db.transact(settle.end_held, lease, FAILED),
}


@pytest.mark.parametrize("verb", HOLDER)
def test_a_lease_counts_only_while_the_job_runs(bare: Steps, verb: str) -> None:
    lease = bare.calling()
    refuses(bare, lease.job_id, "status = 'waiting'", lambda: HOLDER[verb](bare.db, lease))


POLLER: dict[str, Callable[[Database, Any], Any]] = {
    "record_poll": lambda db, lease: db.once(polls.record_polls, [PollNote(lease, FAR)]),
    "adopt_call": lambda db, lease: db.once(calls.adopt_call, lease, "some-other-task"),
    "end_polled": lambda db, lease: db.transact(settle.end_polled, lease, FAILED, upstream_ended=True),
}


@pytest.mark.parametrize("verb", POLLER)
def test_a_poll_lease_counts_only_while_the_job_waits(bare: Steps, verb: str) -> None:
    lease = bare.poll(bare.ambiguous())
    refuses(bare, lease.job_id, "status = 'running'", lambda: POLLER[verb](bare.db, lease))


def test_a_result_is_known_only_of_a_job_that_waits(bare: Steps) -> None:
    lease = bare.poll(bare.waiting())
    refuses(bare, lease.job_id, "status = 'running'", lambda: bare.db.once(polls.mark_result_known, lease, look_in=FAR))


RECOVERY: dict[str, Callable[[Database, Any], Any]] = {
    "requeue_lost": lambda db, job: db.once(jobs.requeue_lost, job, epoch=1, expected_attempt=1, call_started=False),
    "end_lapsed": lambda db, job: db.transact(settle.end_lapsed, job, epoch=1, outcome=FAILED),
}


@pytest.mark.parametrize("verb", RECOVERY)
def test_a_lapsed_lease_is_recovered_only_from_a_running_job(bare: Steps, verb: str) -> None:
    lease = bare.claim(bare.submit(), term=LAPSED).lease
    refuses(bare, lease.job_id, "status = 'queued'", lambda: RECOVERY[verb](bare.db, lease.job_id))


MAY_NOT = {"another attempt": "attempt = 2, max_attempts = 3", "the last attempt": "attempt = 1, max_attempts = 1"}


@pytest.mark.parametrize("call_started", [False, True])
@pytest.mark.parametrize("spoil", MAY_NOT.values(), ids=MAY_NOT)
def test_lost_work_runs_again_only_as_the_attempt_it_was_and_if_one_is_left(
    bare: Steps, spoil: str, call_started: bool
) -> None:
    started = bare.calling if call_started else bare.running
    lease = started(mode="sync", retry_safe=True)
    bare.db.once(jobs.abandon, lease)

    def lost() -> bool:
        return bare.db.once(
            jobs.requeue_lost, lease.job_id, epoch=lease.epoch, expected_attempt=1, call_started=call_started
        )

    refuses(bare, lease.job_id, spoil, lost)


def again_after_nothing_was_heard(steps: Steps, lease: Lease) -> bool:
    return steps.db.once(jobs.requeue_counted, lease, expected_attempt=1, delay=AT_ONCE, why="x", unknown=True)


def again_after_its_worker_died(steps: Steps, lease: Lease) -> bool:
    steps.db.once(jobs.abandon, lease)
    return steps.db.once(jobs.requeue_lost, lease.job_id, epoch=lease.epoch, expected_attempt=1, call_started=True)


@pytest.mark.parametrize("again", [again_after_nothing_was_heard, again_after_its_worker_died])
def test_only_what_is_safe_runs_again_after_an_unknown_outcome_and_a_paid_call_once(
    bare: Steps, again: Callable[[Steps, Lease], bool]
) -> None:
    assert not again(bare, bare.calling(mode="sync"))
    for mode, safe_still in {"sync": False, "local": True}.items():
        lease = bare.calling(mode=mode, retry_safe=True, max_attempts=5)
        assert again(bare, lease)
        assert bare.row(lease.job_id)["retry_safe"] is safe_still


def test_a_beat_with_the_token_of_one_job_renews_no_other(bare: Steps) -> None:
    mine, other = bare.running(), bare.running()
    mixed = replace(mine, epoch=other.epoch, token=other.token)
    before = bare.row(mine.job_id), bare.row(other.job_id)
    assert bare.db.once(jobs.renew, [mixed], term=TERM) == {}
    assert (bare.row(mine.job_id), bare.row(other.job_id)) == before


@pytest.mark.parametrize("share", [-0.5, 1.5, float("nan"), float("inf")])
def test_what_is_no_share_is_not_believed(bare: Steps, share: float) -> None:
    lease = bare.running()
    bare.db.once(jobs.report_progress, lease, 0.25)
    bare.db.once(jobs.report_progress, lease, share)
    assert bare.row(lease.job_id)["progress"] == 0.25


def test_a_new_call_counts_its_imports_anew(bare: Steps) -> None:
    lease = bare.calling()
    bare.by_hand("update callkeeper.jobs set import_failures = 2 where id = :id", id=lease.job_id)
    bare.db.once(jobs.requeue, lease, delay=AT_ONCE, why="x")
    assert bare.row(lease.job_id)["import_failures"] == 0


@pytest.mark.parametrize("spoil", ["status = 'running'", "provider_task_id = null"])
def test_a_poller_takes_only_a_task_that_waits(bare: Steps, spoil: str) -> None:
    lease = bare.poll(bare.waiting())
    refuses(bare, lease.job_id, spoil, lambda: bare.db.once(polls.take_polled, lease, term=TERM))


def test_a_lapsed_call_is_resumed_only_from_a_running_job(bare: Steps) -> None:
    lease = bare.calling()
    spoil = "status = 'waiting', lease_until = now() - interval '1 second'"
    refuses(bare, lease.job_id, spoil, lambda: bare.db.once(calls.resume_lost, lease.job_id, epoch=1))


def test_a_result_without_a_task_cannot_be_taken(bare: Steps) -> None:
    job_id = bare.result_known()
    take = lambda: bare.db.once(polls.take_result, job_id, owner="importer", term=TERM)  # noqa: E731 -- a verb to try
    refuses(bare, job_id, "provider_task_id = null", take)


def test_a_hint_moves_only_a_job_that_waits(bare: Steps) -> None:
    """A settled job keeps its task id; the trigger would refuse the write, the guard does not even try."""
    job_id = bare.waiting(task="hinted", first_poll=FAR)
    refuses(bare, job_id, "status = 'running'", lambda: bare.db.once(polls.poll_now, "replicate-prediction", "hinted"))


@pytest.mark.parametrize("how", ["delivered", "later", "dead"])
@pytest.mark.parametrize("ended", ["delivered_at", "dead_at"])
def test_what_was_delivered_or_given_up_is_not_touched_again(bare: Steps, how: str, ended: str) -> None:
    job_id = bare.ended(State.COMPLETED)
    owed = next(one for one in bare.db.once(outbox.claim, "notices", term=TERM) if one.job_id == job_id)
    bare.by_hand(f"update callkeeper.notices set {ended} = now() where key = :key", key=owed.key)
    before = bare.one("select * from callkeeper.notices where key = :key", key=owed.key)
    ways: dict[str, Callable[[], Any]] = {
        "delivered": lambda: bare.db.once(outbox.mark_delivered, "notices", [owed]),
        "later": lambda: bare.db.once(outbox.deliver_later, owed, delay=AT_ONCE, error="busy"),
        "dead": lambda: bare.db.once(outbox.mark_dead, owed, error="gone"),
    }
    assert not ways[how]()
    assert bare.one("select * from callkeeper.notices where key = :key", key=owed.key) == before


def test_an_owed_row_that_ended_is_not_claimed_and_hides_no_other(bare: Steps) -> None:
    for ended in ("delivered_at", "dead_at"):
        bare.by_hand("delete from callkeeper.jobs")
        over, owed = bare.ended(State.FAILED), bare.ended(State.FAILED)
        bare.by_hand(f"update callkeeper.notices set {ended} = now() where job_id = :id", id=over)
        assert [one.job_id for one in bare.db.once(outbox.claim, "notices", term=TERM, at_most=1)] == [owed]


def test_only_a_settlement_of_reserved_credits_pays(bare: Steps) -> None:
    """Credits that somebody refunded by hand are not paid a second time."""
    account = bare.account(subscription=5, topup=5)
    lease = bare.running(account_id=account, price=7)
    bare.by_hand(
        "update callkeeper.usage_logs set status = 'refunded', settled_at = now() where job_id = :id",
        "update callkeeper.accounts set balance_subscription = 5, balance_topup = 5, reserved_subscription = 0,"
        " reserved_topup = 0 where id = :account",
        id=lease.job_id,
        account=account,
    )
    bare.db.transact(settle.complete, lease, DONE)
    assert bare.pools(account)["balance"] == (5, 5)
    assert (
        bare.one("select status from callkeeper.usage_logs where job_id = :id", id=lease.job_id)["status"] == "refunded"
    )


def test_a_notice_that_is_there_already_stops_no_settlement(bare: Steps) -> None:
    lease = bare.took_result(task="t-1")
    bare.by_hand(
        "insert into callkeeper.notices (key, job_id, body) values ('job-ended:' || cast(:id as text), cast(:id as uuid), '{}')",
        "insert into callkeeper.consequences (key, job_id, effect, body)"
        " values (concat('cancel-upstream:', cast(:id as text), chr(58), 't-1'), cast(:id as uuid), 'cancel_upstream', '{}')",
        "update callkeeper.jobs set result_known_at = null where id = cast(:id as uuid)",
        id=str(lease.job_id),
    )
    outcome = Settlement(State.CANCELLED, error_code="cancelled")
    bare.db.transact(settle.end_held, lease, outcome, upstream_ended=False)
    assert bare.row(lease.job_id)["status"] == "cancelled"
    assert bare.count("callkeeper.notices", "job_id = :id", id=lease.job_id) == 1
    assert bare.count("callkeeper.consequences", "job_id = :id", id=lease.job_id) == 1


def test_no_upstream_cancel_is_owed_for_a_synchronous_call(bare: Steps) -> None:
    """It ended with its connection. No verb writes its id onto the row, so here it stands there by hand."""
    lease = bare.calling(mode="sync")
    bare.by_hand("update callkeeper.jobs set provider_task_id = 'msg_1' where id = :id", id=lease.job_id)
    bare.db.transact(settle.end_held, lease, FAILED, upstream_ended=False)
    assert bare.count("callkeeper.consequences", "job_id = :id", id=lease.job_id) == 0
