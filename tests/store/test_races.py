"""Who loses a race changes nothing: the loser waits for the winner's row, looks again, and finds its guard refused."""

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from store import calls, jobs, ledger, outbox, passes, polls, settle, signals, submit
from store.engine import Database, make_engine
from store.errors import LeaseLost, StoreError, TaskTaken
from store.models import Lease, PollLease, PollNote, Settlement
from store.states import State
from tests.store.steps import (
    AT_ONCE,
    DONE,
    FAILED,
    FAR,
    KIND,
    LAPSED,
    TERM,
    Steps,
    at_once,
    new_job,
    pid_of,
    wait_until_blocked,
)


def test_thirty_two_claimers_have_one_holder(steps: Steps) -> None:
    for _ in range(3):
        job_id = steps.submit()
        barrier = threading.Barrier(32)

        def claim(job_id: UUID = job_id, barrier: threading.Barrier = barrier) -> Any:
            with steps.db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                barrier.wait()
                return jobs.claim_queued(connection, job_id, owner=threading.current_thread().name, term=TERM)

        holders = [claimed for claimed in at_once([claim] * 32) if claimed is not None]
        row = steps.row(job_id)
        assert [holder.lease.token for holder in holders] == [row["lease_token"]]
        assert (row["epoch"], steps.events(job_id)) == (1, ["queued", "started"])
    assert steps.violations() == []


@contextmanager
def winner_first(
    steps: Steps, winner: Callable[[sa.Connection], Any], loser: Callable[[sa.Connection], Any]
) -> Iterator[Any]:
    """The winner has moved but not committed; the loser is seen waiting for its row; then the winner commits."""
    answers: dict[str, Any] = {}
    engine = steps.db.engine
    with engine.connect() as first, engine.connect() as second:
        assert winner(first) is not False
        pid = pid_of(second)

        def lose() -> None:
            try:
                answers["loser"] = loser(second)
            except (LeaseLost, TaskTaken) as lost:
                answers["loser"] = lost
            second.commit()

        losing = threading.Thread(target=lose)
        losing.start()
        wait_until_blocked(engine, pid)
        first.commit()
        losing.join()
    yield answers["loser"]


Verb = Callable[[sa.Connection], Any]


def by_holder(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[[Any], Verb]:
    return lambda lease: lambda connection: verb(connection, lease, *args, **kwargs)


def by_id(verb: Callable[..., Any], **kwargs: Any) -> Callable[[Any], Verb]:
    return lambda lease: lambda connection: verb(connection, lease.job_id, **kwargs)


def queued(steps: Steps) -> Lease:
    return Lease(steps.submit(), 0, UUID(int=0), "nobody")


def known(steps: Steps) -> Lease:
    return Lease(steps.result_known(), 1, UUID(int=0), "nobody")


def lost(steps: Steps) -> Lease:
    return steps.claim(steps.submit(), term=LAPSED).lease


def lost_call(steps: Steps) -> Lease:
    lease = steps.calling()
    steps.by_hand(
        "update callkeeper.jobs set lease_until = now() - interval '1 second' where id = :id", id=lease.job_id
    )
    return lease


CLAIM = by_id(jobs.claim_queued, owner="w", term=TERM)
TAKE = by_id(polls.take_result, owner="w", term=TERM)
COMPLETE = by_holder(settle.complete, DONE)
FAIL = by_holder(settle.end_held, FAILED)
REQUEUE = by_holder(jobs.requeue, delay=AT_ONCE, why="x")
COUNTED = by_holder(jobs.requeue_counted, expected_attempt=1, delay=AT_ONCE, why="x")
CHECKPOINT = by_holder(calls.checkpoint_call, "task-a", first_poll=FAR)
CHECKPOINT_B = by_holder(calls.checkpoint_call, "task-b", first_poll=FAR)
AMBIGUOUS = by_holder(calls.mark_ambiguous, look_in=FAR, why="x")
INTENT = by_holder(calls.mark_call_started, kind=KIND, handle={}, quiet=FAR)
ADOPT = by_holder(calls.adopt_call, "task-a")
ADOPT_B = by_holder(calls.adopt_call, "task-b")
KNOWN = by_holder(polls.mark_result_known, look_in=FAR)
TAKE_POLLED = by_holder(polls.take_polled, term=TERM)
RETURN = by_holder(calls.return_result, look_in=FAR, why="x")
LOST = by_id(jobs.requeue_lost, epoch=1, expected_attempt=1, call_started=False)
RESUME = by_id(calls.resume_lost, epoch=1)
LAPSE = by_id(settle.end_lapsed, epoch=1, outcome=FAILED)
STOP = by_id(settle.cancel_at_rest, outcome=Settlement(State.CANCELLED, error_code="cancelled"))
COUNT = by_id(jobs.increment_attempt_if, expected_attempt=1)
RENEW: Callable[[Any], Verb] = lambda lease: lambda connection: jobs.renew(connection, [lease], term=TERM)  # noqa: E731
POLLED: Callable[[Any], Verb] = lambda lease: lambda connection: polls.record_polls(connection, [PollNote(lease, FAR)])  # noqa: E731

RACES: dict[str, tuple[Callable[[Steps], Any], Callable[[Any], Verb], Callable[[Any], Verb]]] = {
    "claim, claim": (queued, CLAIM, CLAIM),
    "stop, claim": (queued, STOP, CLAIM),
    "claim, stop": (queued, CLAIM, STOP),
    "intent, intent": (Steps.running, INTENT, INTENT),
    "requeue, intent": (Steps.running, REQUEUE, INTENT),
    "complete, complete": (Steps.took_result, COMPLETE, COMPLETE),
    "fail, complete": (Steps.took_result, FAIL, COMPLETE),
    "complete, fail": (Steps.took_result, COMPLETE, FAIL),
    "requeue, complete": (Steps.running, REQUEUE, COMPLETE),
    "complete, requeue": (Steps.running, COMPLETE, REQUEUE),
    "requeue, requeue": (Steps.running, REQUEUE, REQUEUE),
    "count, count": (Steps.running, COUNT, COUNT),
    "count, counted requeue": (Steps.running, COUNT, COUNTED),
    "checkpoint, checkpoint": (Steps.calling, CHECKPOINT, CHECKPOINT_B),
    "ambiguous, checkpoint": (Steps.calling, AMBIGUOUS, CHECKPOINT),
    "requeue, checkpoint": (Steps.calling, REQUEUE, CHECKPOINT),
    "take, take": (known, TAKE, TAKE),
    "stop, take": (known, STOP, TAKE),
    "take, stop": (known, TAKE, STOP),
    "return, complete": (Steps.took_result, RETURN, COMPLETE),
    "adopt, adopt": (lambda steps: steps.poll(steps.ambiguous()), ADOPT, ADOPT_B),
    "record, adopt": (lambda steps: steps.poll(steps.ambiguous()), POLLED, ADOPT),
    "record, known": (lambda steps: steps.poll(steps.waiting()), POLLED, KNOWN),
    "known, known": (lambda steps: steps.poll(steps.waiting()), KNOWN, KNOWN),
    "known, take polled": (lambda steps: steps.poll(steps.waiting()), KNOWN, TAKE_POLLED),
    "take polled, take polled": (lambda steps: steps.poll(steps.waiting()), TAKE_POLLED, TAKE_POLLED),
    "take polled, record": (lambda steps: steps.poll(steps.waiting()), TAKE_POLLED, POLLED),
    "recover, recover": (lost, LOST, LOST),
    "recover, complete": (lost, LOST, COMPLETE),
    "complete, recover": (lost, COMPLETE, LOST),
    "lapse, complete": (lost, LAPSE, COMPLETE),
    "complete, lapse": (lost, COMPLETE, LAPSE),
    "resume, resume": (lost_call, RESUME, RESUME),
    "resume, checkpoint": (lost_call, RESUME, CHECKPOINT),
    "checkpoint, resume": (lost_call, CHECKPOINT, RESUME),
    "requeue, renew": (Steps.running, REQUEUE, RENEW),
}


@pytest.mark.parametrize("race", RACES)
def test_the_loser_of_a_race_changes_nothing(steps: Steps, race: str) -> None:
    setting, winner, loser = RACES[race]
    lease = setting(steps)
    after: dict[str, Any] = {}

    def win(connection: sa.Connection) -> Any:
        answer = winner(lease)(connection)
        after["row"] = dict(
            connection.execute(sa.text("select * from callkeeper.jobs where id = :id"), {"id": lease.job_id})
            .mappings()
            .one()
        )
        return answer

    with winner_first(steps, win, loser(lease)) as answer:
        assert isinstance(answer, LeaseLost) or answer in (None, False, {}, set())
    assert steps.row(lease.job_id) == after["row"]
    assert steps.row(lease.job_id)["event_seq"] == len(steps.events(lease.job_id))
    assert steps.violations() == []


def test_a_renewal_comes_before_the_recovery_that_waited_for_it(steps: Steps) -> None:
    """The pass saw a lapsed lease; the holder renews just in time; the pass must look again and let it be."""
    lease = steps.running()
    soon = "update callkeeper.jobs set lease_until = clock_timestamp() + interval '50 milliseconds' where id = :id"
    steps.by_hand(soon, id=lease.job_id)
    engine = steps.db.engine
    with engine.connect() as holder, engine.connect() as rescuer:
        assert jobs.renew(holder, [lease], term=TERM) == {lease.job_id: (False, False)}
        while not steps.one("select lease_until < clock_timestamp() as over from callkeeper.jobs")["over"]:
            pass  # until the committed row says that the lease is over
        pid = pid_of(rescuer)
        answers: list[Any] = []
        racing = threading.Thread(target=lambda: (answers.append(LOST(lease)(rescuer)), rescuer.commit()))
        rescuer.rollback()
        racing.start()
        wait_until_blocked(engine, pid)
        holder.commit()
        racing.join()
    assert answers == [False]
    assert steps.row(lease.job_id)["lease_token"] == lease.token


ZOMBIES: dict[str, tuple[Callable[[Steps], Lease], Callable[[Database, Lease], Any]]] = {
    "mark_call_started": (
        Steps.running,
        lambda db, lease: db.once(calls.mark_call_started, lease, kind=KIND, handle={}, quiet=FAR),
    ),
    "checkpoint_call": (Steps.calling, lambda db, lease: db.once(calls.checkpoint_call, lease, "late", first_poll=FAR)),
    "mark_ambiguous": (Steps.calling, lambda db, lease: db.once(calls.mark_ambiguous, lease, look_in=FAR, why="x")),
    "return_result": (Steps.took_result, lambda db, lease: db.once(calls.return_result, lease, look_in=FAR, why="x")),
    "requeue": (Steps.running, lambda db, lease: db.once(jobs.requeue, lease, delay=AT_ONCE, why="x")),
    "report_progress": (Steps.running, lambda db, lease: db.once(jobs.report_progress, lease, 0.9)),
    "complete": (Steps.took_result, lambda db, lease: db.transact(settle.complete, lease, DONE)),
    "failed": (Steps.took_result, lambda db, lease: db.transact(settle.end_held, lease, FAILED)),
}


def recover(steps: Steps, lease: Lease) -> None:
    steps.by_hand(
        "update callkeeper.jobs set lease_until = now() - interval '1 second' where id = :id", id=lease.job_id
    )
    (found,) = steps.db.once(passes.lapsed_leases)
    if found.call_started:
        assert steps.db.once(calls.resume_lost, found.job_id, epoch=found.epoch)
    else:
        assert steps.db.once(
            jobs.requeue_lost, found.job_id, epoch=found.epoch, expected_attempt=found.attempt, call_started=False
        )


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("verb", ZOMBIES)
def test_a_superseded_holder_is_refused_and_counted(steps: Steps, verb: str, again: bool) -> None:
    """Stopped past its lease, recovered, maybe claimed by another, and then it goes on as if nothing had happened."""
    setting, act = ZOMBIES[verb]
    lease = setting(steps)
    recover(steps, lease)
    if again:
        state = steps.row(lease.job_id)
        if state["status"] == "queued":
            steps.claim(lease.job_id, owner="successor")
        elif state["result_known_at"] is not None:
            assert steps.db.once(polls.take_result, lease.job_id, owner="successor", term=TERM)
        else:
            assert steps.poll(lease.job_id)
    before = (steps.row(lease.job_id), steps.events(lease.job_id))
    with pytest.raises(LeaseLost):
        act(steps.db, lease)
    assert (steps.row(lease.job_id), steps.events(lease.job_id)) == before
    counted = steps.all("select job_id, verb, epoch, lease_owner from callkeeper.stale_writes")
    expected = {"job_id": lease.job_id, "verb": verb, "epoch": lease.epoch, "lease_owner": lease.owner}
    assert [dict(row) for row in counted] == [expected]
    assert steps.db.once(jobs.renew, [lease], term=TERM) == {}
    assert not steps.db.once(jobs.abandon, lease)


POLL_ZOMBIES: dict[str, Callable[[Database, PollLease], Any]] = {
    "adopt_call": lambda db, lease: db.once(calls.adopt_call, lease, "late"),
    "take_polled": lambda db, lease: db.once(polls.take_polled, lease, term=TERM),
    "failed": lambda db, lease: db.transact(settle.end_polled, lease, FAILED, upstream_ended=True),
}


@pytest.mark.parametrize("verb", POLL_ZOMBIES)
def test_a_superseded_poller_is_refused_and_counted(steps: Steps, verb: str) -> None:
    job_id = steps.ambiguous() if verb == "adopt_call" else steps.waiting()
    old = next(due.lease for due in steps.due(term=LAPSED))
    assert steps.poll(job_id).token != old.token
    before = steps.row(job_id)
    with pytest.raises(LeaseLost):
        POLL_ZOMBIES[verb](steps.db, old)
    assert steps.db.once(polls.record_polls, [PollNote(old, AT_ONCE)]) == set()
    assert not steps.db.once(polls.mark_result_known, old, look_in=FAR)
    assert steps.row(job_id) == before
    assert [row["verb"] for row in steps.all("select verb from callkeeper.stale_writes")] == [verb]


def test_pollers_at_once_never_get_the_same_row(steps: Steps) -> None:
    waiting = {steps.waiting() for _ in range(60)}
    for _ in range(3):
        steps.by_hand("update callkeeper.jobs set next_poll_at = now() where status = 'waiting'")
        barrier = threading.Barrier(8)

        def poll(barrier: threading.Barrier = barrier) -> list[UUID]:
            barrier.wait()
            return [due.lease.job_id for _ in range(4) for due in steps.due(at_most=5)]

        got = [job_id for batch in at_once([poll] * 8) for job_id in batch]
        assert len(got) == len(set(got)) == 60
        assert set(got) == waiting


def test_outbox_workers_at_once_never_get_the_same_row(steps: Steps) -> None:
    for _ in range(30):
        steps.ended(State.COMPLETED)
    barrier = threading.Barrier(8)

    def claim() -> list[str]:
        barrier.wait()
        return [owed.key for _ in range(3) for owed in steps.db.once(outbox.claim, "notices", term=TERM, at_most=3)]

    got = [key for batch in at_once([claim] * 8) for key in batch]
    assert len(got) == len(set(got)) == 30


LOCKED: dict[str, Callable[[Steps], Any]] = {
    "due polls": lambda steps: {due.lease.job_id for due in steps.due()},
    "quiet jobs": lambda steps: {quiet.job_id for quiet in steps.db.once(passes.look_at_quiet)},
    "notices": lambda steps: {owed.job_id for owed in steps.db.once(outbox.claim, "notices", term=TERM)},
}


@pytest.mark.parametrize("what", LOCKED)
def test_a_locked_row_is_skipped_and_not_waited_for(steps: Steps, what: str) -> None:
    made = steps.waiting if what != "notices" else (lambda: steps.ended(State.COMPLETED))
    locked, free = made(), made()
    if what == "quiet jobs":
        steps.by_hand("update callkeeper.jobs set next_check_at = now()")
    table, column = ("notices", "job_id") if what == "notices" else ("jobs", "id")
    impatient = Steps(Database(make_engine(str_url(steps), name="impatient", lock_timeout_ms=300), patience=0))
    with steps.db.engine.connect() as holder:
        holder.execute(sa.text(f"select from callkeeper.{table} where {column} = :id for update"), {"id": locked})
        assert LOCKED[what](impatient) == {free}
    assert LOCKED[what](impatient) == {locked}
    impatient.db.dispose()


def str_url(steps: Steps) -> str:
    return steps.db.engine.url.render_as_string(hide_password=False)


def test_a_stop_never_slips_past_an_end(steps: Steps) -> None:
    """request_stop locks the job before it looks, so what it reads is what it acts on."""
    lease = steps.running()
    with winner_first(
        steps, COMPLETE(lease), lambda connection: signals.request_stop(connection, lease.job_id)
    ) as answer:
        assert answer is State.COMPLETED
    assert steps.count("callkeeper.job_signals") == 0
    other = steps.running()
    with winner_first(
        steps, REQUEUE(other), lambda connection: signals.request_stop(connection, other.job_id)
    ) as answer:
        assert answer is State.CANCELLED
    assert steps.violations() == []


class Mixed:
    """All verbs over few accounts and few keys, by threads that know nothing of each other."""

    def __init__(self, steps: Steps) -> None:
        self.db = steps.db
        self.engine = steps.db.engine
        self.accounts = [steps.account(subscription=2_000, topup=2_000) for _ in range(2)]
        self.errors: list[str] = []
        self.settled = self.stopped = 0

    @property
    def much_happened(self) -> bool:
        return self.settled > 50 and self.stopped > 10

    def run(self, seed: int, *, at_least: float, at_most: float) -> None:
        dice = random.Random(seed)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < at_most and not (passed > at_least and self.much_happened):
            for step in (self.submit, self.work, self.poll, self.stop, self.sweep, self.deliver):
                try:
                    step(dice)
                except StoreError:
                    continue  # a refusal: somebody else was faster
                except OperationalError as error:
                    self.errors.append(f"{getattr(error.orig, 'sqlstate', None)} {step.__name__}: {error.orig}")

    def once(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        """Not through Database, which would try a deadlock again in silence."""
        with self.engine.begin() as connection:
            return verb(connection, *args, **kwargs)

    def submit(self, dice: random.Random) -> None:
        with self.engine.begin() as connection:
            account = dice.choice(self.accounts)
            for _ in range(dice.choice([1, 1, 2])):
                mode = dice.choice(["async", "async", "local"])
                key = dice.choice([None, "a", "b", "c"])
                submit.submit(connection, new_job(account_id=account, price=3, mode=mode, idempotency_key=key))
        self.once(ledger.grant, account, topup=3)

    def pick(self, state: str) -> list[UUID]:
        with self.engine.begin() as connection:
            text = sa.text("select id from callkeeper.jobs where status = :state order by random() limit 3")
            return [row.id for row in connection.execute(text, {"state": state})]

    def work(self, dice: random.Random) -> None:
        for job_id in self.pick("queued"):
            claimed = self.once(jobs.claim_queued, job_id, owner="w", term=timedelta(seconds=dice.choice([0, 30])))
            if claimed is None:
                continue
            self.once(jobs.renew, [claimed.lease], term=TERM)
            if claimed.mode == "local":
                self.once(settle.complete, claimed.lease, DONE)
                self.settled += 1
            elif dice.random() < 0.2:
                self.once(jobs.requeue_counted, claimed.lease, expected_attempt=claimed.attempt, delay=AT_ONCE, why="x")
            else:
                self.once(calls.mark_call_started, claimed.lease, kind=KIND, handle={}, quiet=FAR)
                if dice.random() < 0.3:
                    self.once(calls.mark_ambiguous, claimed.lease, look_in=AT_ONCE, why="x")
                else:
                    self.once(calls.checkpoint_call, claimed.lease, f"t-{job_id}", first_poll=AT_ONCE)

    def poll(self, dice: random.Random) -> None:
        due = self.once(polls.claim_due_polls, owner="p", kinds=[KIND], term=TERM, at_most=5)
        going_on = [one for one in due if dice.random() < 0.3]
        self.once(polls.record_polls, [PollNote(one.lease, AT_ONCE, 0.5) for one in going_on])
        for one in due:
            if one in going_on:
                continue
            if one.call.task_id is None:
                self.once(calls.adopt_call, one.lease, f"t-{one.lease.job_id}")
            elif self.once(polls.mark_result_known, one.lease, look_in=AT_ONCE):
                taken = self.once(polls.take_result, one.lease.job_id, owner="i", term=TERM)
                if taken is not None:
                    self.once(settle.complete, taken.lease, DONE)
                    self.settled += 1

    def stop(self, dice: random.Random) -> None:
        for job_id in self.pick(dice.choice(["queued", "waiting", "running"]))[:1]:
            self.stopped += self.once(signals.request_stop, job_id) is State.CANCELLED
            self.once(jobs.increment_attempt_if, job_id, expected_attempt=1)

    def sweep(self, dice: random.Random) -> None:
        for found in self.once(passes.lapsed_leases, at_most=5):
            if found.call_started:
                self.once(calls.resume_lost, found.job_id, epoch=found.epoch)
            elif not self.once(
                jobs.requeue_lost, found.job_id, epoch=found.epoch, expected_attempt=found.attempt, call_started=False
            ):
                self.once(settle.end_lapsed, found.job_id, epoch=found.epoch, outcome=FAILED)
        self.once(passes.look_at_quiet, at_most=5)
        self.once(passes.send_again, self.pick("queued"))

    def deliver(self, dice: random.Random) -> None:
        for box in ("notices", "consequences"):
            owed = self.once(outbox.claim, box, term=TERM, at_most=5)
            self.once(outbox.mark_delivered, box, owed[1:])
            for one in owed[:1]:
                self.once(outbox.deliver_later, one, delay=AT_ONCE, error="busy")


def test_all_verbs_at_once_never_deadlock(steps: Steps) -> None:
    mixed = Mixed(steps)
    at_once([lambda seed=seed: mixed.run(seed, at_least=5, at_most=120) for seed in range(8)])
    assert mixed.errors == []
    assert mixed.much_happened, "little happened, little was shown"
    assert steps.violations() == []


def renew_these(connection: sa.Connection, made: list[UUID]) -> None:
    jobs.renew(connection, [Lease(job, 1, job, "worker") for job in made], term=TERM)


def note_these(connection: sa.Connection, made: list[UUID]) -> None:
    notes = [PollNote(PollLease(job, 1, job, "poller"), next_in=TERM, progress=None, missed=None) for job in made]
    polls.record_polls(connection, notes)


def look_at_these(connection: sa.Connection, made: list[UUID]) -> None:
    passes.look_again(connection, made)


MANY: dict[str, tuple[Callable[[Steps], UUID], str, Callable[[sa.Connection, list[UUID]], None]]] = {
    "renew": (lambda steps: steps.running().job_id, "lease_token = id", renew_these),
    "record_polls": (lambda steps: steps.waiting(), "poll_token = id", note_these),
    "look_again": (lambda steps: steps.submit(), "next_check_at = now() + interval '1 h'", look_at_these),
}


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(("make", "known", "move"), MANY.values(), ids=MANY)
def test_what_moves_many_rows_locks_them_in_the_order_of_their_ids(
    steps: Steps,
    make: Callable[[Steps], UUID],
    known: str,
    move: Callable[[sa.Connection, list[UUID]], None],
    *,
    backwards: bool,
) -> None:
    """However they are named: the first is waited for before the second is touched, so that none can deadlock."""
    first, second = make(steps), make(steps)
    while second > first:  # until they lie in the table the other way round
        second = make(steps)
    first, second = second, first
    steps.by_hand(f"update callkeeper.jobs set {known}")
    lock = sa.text("select from callkeeper.jobs where id = :id for update nowait")
    pids: queue.Queue[int] = queue.Queue()

    def mover() -> None:
        with steps.db.engine.begin() as connection:
            pids.put(pid_of(connection))
            move(connection, [second, first] if backwards else [first, second])

    with steps.db.engine.connect() as holder:
        holder.execute(lock, {"id": first})

        def look() -> None:
            wait_until_blocked(steps.db.engine, pids.get(timeout=10))
            with steps.db.engine.connect() as other:
                other.execute(lock, {"id": second})
            holder.rollback()

        at_once([mover, look])
