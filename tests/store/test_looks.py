"""What the pass's looks write, guard by guard: who may ask, what is counted, when a job is given up, what is left behind."""

from datetime import timedelta
from uuid import UUID

import pytest

from store import gates, looks, outbox, passes, settle
from store.looks import Look
from store.models import Settlement
from store.states import State
from tests.store.steps import FAILED, FAR, KIND, TERM, Steps

GIVEN_UP = Settlement(State.FAILED, error_code="reconcile_exhausted")
CAP = 3


def probes(steps: Steps, *job_ids: UUID) -> set[UUID]:
    claimed = steps.db.once(looks.claim_probes, list(job_ids), owner="pass", term=TERM)
    return {due.lease.job_id for due in claimed}


def stale(steps: Steps, job_id: UUID) -> None:
    steps.by_hand(
        "update callkeeper.jobs set created_at = created_at - stale_after, available_at = available_at - stale_after,"
        " provider_call_started_at = provider_call_started_at - stale_after where id = :id",
        id=job_id,
    )


def test_whoever_asks_about_a_row_keeps_it_until_the_question_has_had_its_time(steps: Steps) -> None:
    asked, free, queued = steps.waiting(), steps.waiting(first_poll=FAR), steps.submit()
    steps.poll(asked)
    assert probes(steps, asked, free, queued) == {free}
    assert probes(steps, free) == set()
    steps.by_hand("update callkeeper.jobs set next_poll_at = now() where status = 'waiting'")
    assert probes(steps, asked, free) == {asked, free}


def test_a_probe_is_claimed_only_for_rows_that_were_named(steps: Steps) -> None:
    named, other = steps.waiting(), steps.waiting()
    assert probes(steps, named) == {named}
    assert steps.row(other)["poll_token"] is None


def test_a_busy_kind_stays_due_and_rows_without_a_kind_are_never_busy(steps: Steps) -> None:
    busy, other, legacy = steps.waiting(), steps.submit(), steps.submit(fingerprint="x")
    steps.by_hand("update callkeeper.jobs set provider_kind = null where id = :id", id=legacy)
    steps.by_hand("update callkeeper.jobs set next_check_at = now()")
    assert {one.job_id for one in steps.db.once(passes.look_at_quiet, busy=[KIND])} == {other, legacy}
    assert {one.job_id for one in steps.db.once(passes.look_at_quiet)} == {busy}


def test_failed_and_deferred_looks_are_counted_apart_and_only_on_open_jobs(steps: Steps) -> None:
    job, ended = steps.waiting(), steps.ended(State.FAILED)
    seen = [
        Look(job, "unsure", "counted", "odd", "words", failed=True),
        Look(job, "unsure", "deferred", "away", "later", deferred=True, kept=False),
        Look(ended, "unsure", "counted", "odd", failed=True),
    ]
    first = steps.db.once(looks.note, seen[:1])
    second = steps.db.once(looks.note, seen[1:])
    assert (first[job].failed_looks, second[job].failed_looks) == (1, 1)
    assert ended not in second
    row = steps.row(job)
    assert (row["reconcile_attempts"], row["reconcile_deferrals"]) == (1, 1)
    assert row["reconcile_last_error"] == "away: later"
    assert [look["did"] for look in steps.db.once(looks.history, job)] == ["counted"]


def test_a_job_is_exhausted_only_at_the_cap_as_seen_and_while_it_waits(steps: Steps) -> None:
    def exhaust(job_id: UUID, *, epoch: int | None = None) -> bool:
        seen = steps.row(job_id)["epoch"] if epoch is None else epoch
        return steps.db.transact(settle.end_exhausted, job_id, epoch=seen, cap=CAP, outcome=GIVEN_UP)

    job, running = steps.waiting(), steps.took_result().job_id
    for _ in range(CAP - 1):
        steps.db.once(looks.note, [Look(job, "unsure", "counted", failed=True)])
    assert not exhaust(job)
    steps.db.once(looks.note, [Look(job, "unsure", "counted", failed=True)])
    steps.by_hand("update callkeeper.jobs set reconcile_attempts = :cap where id = :id", cap=CAP, id=running)
    assert not exhaust(job, epoch=7)
    assert not exhaust(running), "somebody is at work on it"
    steps.db.once(gates.close, KIND, "default", reason="outage", span=FAR, stops_clocks=True)
    assert not exhaust(job), "the provider is away"
    steps.db.once(gates.reopen, KIND, "default")
    assert exhaust(job)
    assert not exhaust(job), "once"
    assert steps.row(job)["error_code"] == "reconcile_exhausted"


def test_stranded_is_what_is_at_rest_and_past_its_threshold(steps: Steps) -> None:
    def strand(job_id: UUID, *, off: int = 0) -> bool:
        epoch = steps.row(job_id)["epoch"] + off
        return steps.db.transact(settle.end_stranded, job_id, epoch=epoch, outcome=FAILED)

    queued, waiting, running = steps.submit(), steps.waiting(), steps.calling().job_id
    assert not any(strand(job) for job in (queued, waiting, running)), "all of them are young"
    for job in (queued, waiting, running):
        stale(steps, job)
    assert not strand(running), "somebody is at work on it"
    assert not strand(waiting, off=1)
    steps.db.once(gates.close, KIND, "default", reason="outage", span=FAR, stops_clocks=True)
    assert not strand(waiting), "the provider is away"
    steps.db.once(gates.reopen, KIND, "default")
    assert strand(queued)
    assert strand(waiting)


def test_a_delayed_job_is_young_until_it_is_due(steps: Steps) -> None:
    job = steps.submit(delay=timedelta(days=1))
    steps.by_hand("update callkeeper.jobs set created_at = created_at - interval '2 hours'")
    assert not steps.db.transact(settle.end_stranded, job, epoch=0, outcome=FAILED)


@pytest.mark.parametrize(
    ("outcome", "ended", "left"),
    [
        (Settlement(State.FAILED, error_code="task_failed"), True, False),
        (Settlement(State.FAILED, error_code="provider_task_lost"), True, True),
        (Settlement(State.FAILED, error_code="media_too_large", may_be_paid=True), True, True),
        (Settlement(State.CANCELLED, error_code="cancelled"), False, True),
    ],
)
def test_a_refund_of_what_may_have_been_paid_is_written_down(
    steps: Steps, outcome: Settlement, ended: bool, left: bool
) -> None:
    job = steps.waiting(task="t-1", account_id=steps.account(topup=9), price=4)
    steps.db.transact(settle.end_polled, steps.poll(job), outcome, upstream_ended=ended)
    spend = steps.all("select * from callkeeper.unexplained_spend")
    watched = steps.all("select * from callkeeper.upstream_watches")
    assert len(spend) == len(watched) == int(left)
    if left:
        assert (spend[0]["job_id"], spend[0]["price"], spend[0]["provider_task_id"]) == (job, 4, "t-1")
        assert (watched[0]["provider_task_id"], watched[0]["looks"]) == ("t-1", 0)


def test_no_call_no_spend(steps: Steps) -> None:
    for lease in (steps.running(), steps.running(mode="local", fingerprint="2")):
        steps.db.transact(settle.end_held, lease, FAILED, upstream_ended=False)
    handler = steps.running(mode="local")
    steps.start_call(handler, kind="local")
    steps.db.transact(settle.end_held, handler, FAILED, upstream_ended=False)
    assert steps.count("callkeeper.unexplained_spend") == 0


def test_effects_are_owed_by_outcome_and_wait_for_their_turn(steps: Steps) -> None:
    effects = {"failed": ["first", "second", "third"], "cancelled": ["other"]}
    lease = steps.running(effects=effects)
    steps.db.transact(settle.end_held, lease, FAILED)
    seen = []
    while owed := steps.db.once(outbox.claim, "consequences", term=TERM):
        assert len(owed) == 1, "one at a time"
        seen.append(owed[0].effect)
        if len(seen) == 1:
            steps.db.once(outbox.mark_dead, owed[0], error="given up")
        else:
            steps.db.once(outbox.mark_delivered, "consequences", owed)
    assert seen == ["app:first", "app:second", "app:third"]
    assert steps.count("callkeeper.consequences", "effect like 'app:%'") == 3


@pytest.mark.parametrize(
    ("baseline", "asked", "kept"),
    [("public", None, "public"), ("private", None, "private"), ("private", "public", "public")],
)
def test_visibility_is_the_submits_or_else_the_accounts_baseline(
    steps: Steps, baseline: str, asked: str | None, kept: str
) -> None:
    account = steps.account(topup=5)
    steps.by_hand("update callkeeper.accounts set visibility_baseline = :baseline", baseline=baseline)
    job = steps.submit(account_id=account, price=1, visibility=asked)
    assert steps.row(job)["visibility"] == kept
    assert steps.row(steps.submit())["visibility"] == "public", "nobody pays: nobody's baseline"
