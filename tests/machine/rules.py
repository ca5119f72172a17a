"""Every verb of the store as a rule. A rule tries its verb whether or not it is allowed, and says which it must be.

`n` picks among what there is. `aim` says which lease is tried: the current one, any from the past, or one forged.
"""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from store import calls, jobs, ledger, outbox, passes, polls, receipts, settle, signals, submit
from store.engine import Database
from store.errors import AccountNotFound, IdempotencyConflict, InsufficientCredits, SubmitRefused
from store.models import NewAsset, NewJob, PollNote, Settlement
from store.states import OPEN, State
from tests.machine.model import Account, Call, Job, Owed
from tests.machine.world import ACCOUNTS, FAR, KINDS, NOW, PAST, World

N = st.integers(0, 11)
AIM = st.sampled_from(["current"] * 5 + ["old", "old", "wrong_job", "wrong_epoch", "wrong_token"])
OFF = st.sampled_from([0, 0, 0, 0, -1, 1])
TERM = st.sampled_from([FAR, FAR, FAR, PAST])
DELAY = st.sampled_from([NOW, NOW, FAR])
SHARE = st.sampled_from([None, 0.0, 0.25, 0.5, 1.0, 1.5, -1.0, float("nan")])
UNSUCCESS = st.sampled_from([State.FAILED, State.TIMED_OUT, State.CANCELLED])
# What can be over: in which states, in which column, and what the model calls it.
PASSING = {
    "lease": ((State.RUNNING,), "lease_until", "lapsed"),
    "poll": ((State.WAITING,), "next_poll_at", "due"),
    "available": ((State.QUEUED,), "available_at", "available"),
    "queue_deadline": (OPEN, "queue_deadline_at", "queue_late"),
    "deadline": (OPEN, "deadline_at", "late"),
    "check": (OPEN, "next_check_at", "check_due"),
    "quiet": ((State.WAITING,), "resolve_by", "quiet_over"),
}
EARLY = st.sampled_from(["lease"] * 4 + ["queue_deadline"] * 2 + sorted(PASSING))

MOMENT = st.sampled_from(sorted(PASSING))


class Verbs(RuleBasedStateMachine):
    db: Database  # set by whoever runs the machine

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.db)
        self.assets = 0

    @invariant()
    def database_equals_model(self) -> None:
        self.world.check()

    # Beginnings.

    @initialize(
        money=st.integers(0, 8),
        topup=st.sampled_from([0, 4, 30]),
        shapes=st.lists(
            st.tuples(st.sampled_from(["async", "async", "async", "sync", "local"]), st.integers(0, 7), N, EARLY),
            min_size=1,
            max_size=4,
        ),
    )
    def begin(self, money: int, topup: int, shapes: list[tuple[str, int, int, str]]) -> None:
        """Some jobs, each some steps on its way, each with one of its times over."""
        self.grant(0, money, topup)
        for mode, steps, way, moment in shapes:
            before = set(self.world.jobs)
            key, user, fingerprint = (None, "k", "l", "k")[way % 4], ("u", "v", None)[way % 3], "ffg"[way % 5 % 3]
            self._submit(
                account=0,
                price=way % 6,
                mode=mode,
                retry_safe=bool(way % 2),
                key=key,
                user=user,
                fingerprint=fingerprint,
            )
            for job in [self.world.jobs[job_id] for job_id in set(self.world.jobs) - before]:
                for _ in range(steps):
                    if job.open:
                        self._step(job, way)
                self._pass(job, moment)
        for job in list(self.world.jobs.values()):
            self._refuses(job)

    @rule(account=st.integers(0, 1), subscription=st.integers(0, 9), topup=st.integers(0, 9))
    def grant(self, account: int, subscription: int, topup: int) -> None:
        name = ACCOUNTS[account]
        self.db.once(ledger.grant, name, subscription=subscription, topup=topup)
        self.world.accounts.setdefault(name, Account()).grant(subscription, topup)

    @precondition(lambda self: len(self.world.jobs) < 12)
    @rule(
        account=st.sampled_from([None, 0, 0, 1, 2]),
        price=st.integers(0, 12),
        mode=st.sampled_from(["async", "async", "sync", "local"]),
        retry_safe=st.booleans(),
        key=st.sampled_from([None, "k", "k", "l"]),
        user=st.sampled_from([None, "", "u", "u", "v"]),
        fingerprint=st.sampled_from(["f", "f", "g"]),
        attempts=st.integers(1, 3),
        delay=DELAY,
    )
    def submit(self, **wanted: Any) -> None:
        self._submit(**wanted)

    @precondition(lambda self: 0 < len(self.world.jobs) < 12)
    @rule(n=N, change=st.sampled_from(["nothing", "body", "user", "price"]))
    def submit_again(self, n: int, change: str) -> None:
        """What was asked once is asked again, in whatever state it is by now: as it was, or with one thing changed."""
        job = self.world.job(n)
        assert job is not None
        new = job.new
        if change == "body":
            new = replace(new, fingerprint="other")
        elif change == "user":
            new = replace(new, user_id="somebody")
        elif change == "price" and new.account_id is not None:
            new = replace(new, price=10_000)
        self._send(new)

    def _submit(
        self,
        *,
        account: int | None,
        price: int,
        mode: str,
        retry_safe: bool,
        key: str | None = None,
        user: str | None = "u",
        fingerprint: str = "f",
        attempts: int = 2,
        delay: timedelta = NOW,
    ) -> None:
        name = None if account is None else (*ACCOUNTS, "nobody")[account]
        new = NewJob(
            job_type="t", mode=mode, queue="calls", actor="start_call", request={"a": 1}, fingerprint=fingerprint,
            price=0 if name is None else price, max_attempts=attempts, retry_safe=retry_safe, queue_limit=FAR,
            run_limit=FAR, user_id=user, account_id=name, idempotency_key=key, delay=delay,
        )  # fmt: skip
        self._send(new)

    def _send(self, new: NewJob) -> None:
        try:
            submitted = self.db.transact(submit.submit, new)
        except SubmitRefused as refusal:
            self._refused(new, refusal)
        else:
            self._submitted(new, submitted)

    def _refused(self, new: NewJob, refusal: SubmitRefused) -> None:
        winner = self._winner(new)
        if isinstance(refusal, IdempotencyConflict):
            assert winner is not None
            assert winner.id == refusal.job_id
            assert winner.new.fingerprint != new.fingerprint
            return
        assert winner is None
        if isinstance(refusal, InsufficientCredits):
            assert refusal.available == sum(self.world.accounts[str(new.account_id)].balance) < new.price
        else:
            assert isinstance(refusal, AccountNotFound)
            assert new.account_id not in self.world.accounts

    def _winner(self, new: NewJob) -> Job | None:
        def same(job: Job) -> bool:
            shares = (job.new.user_id or "", job.new.idempotency_key) == (new.user_id or "", new.idempotency_key)
            return shares and (job.open or job.status is State.COMPLETED)

        return next((job for job in self.world.jobs.values() if new.idempotency_key and same(job)), None)

    def _submitted(self, new: NewJob, submitted: Any) -> None:
        winner = self._winner(new)
        assert submitted.created == (winner is None)
        if winner is not None:
            assert (winner.id, winner.status, winner.new.fingerprint) == (
                submitted.job_id, submitted.status, new.fingerprint,
            )  # fmt: skip
            return
        account = None if new.account_id is None else self.world.accounts[new.account_id]
        assert account is None or sum(account.balance) >= new.price, "more was reserved than there was"
        split = (0, 0) if account is None else account.reserve(new.price)
        job = Job(submitted.job_id, new, account, split, available=new.delay <= NOW)
        self.world.jobs[job.id] = job

    # The way most jobs go. Without it, few examples would come far.

    @rule(n=N, way=N)
    def advance(self, n: int, way: int) -> None:
        job = self.world.job(n, *OPEN)
        if job is not None:
            self._step(job, way)

    advance_more = rule(n=N, way=N)(lambda self, n, way: self.advance(n, way))
    advance_again = rule(n=N, way=N)(lambda self, n, way: self.advance(n, way))

    def _step(self, job: Job, way: int) -> None:
        """The next step of an open job. `way` says whether its answer is lost, and whether it comes late."""
        if job.status is State.QUEUED:
            self._claim(job, FAR)
        elif job.status is State.RUNNING:
            self._step_running(job, way)
        elif job.known:
            self._take(job, FAR)
        else:
            self._step_waiting(job, way)

    def _step_running(self, job: Job, way: int) -> None:
        position = next(i for i, lease in enumerate(self._current()) if lease.job_id == job.id)
        if job.call is None and job.new.mode != "local":
            self.mark_call_started(position, "current", 0)
        elif job.task is None and job.new.mode == "async":
            if way % 2:
                self.keep_receipt(next(i for i, (_, call) in enumerate(self.world.calls) if call is job.call))
            if way % 3:
                self.checkpoint_call(position, "current", NOW, steal=False)
            else:
                self.mark_ambiguous(position, "current", NOW)
        else:
            if job.call is not None and job.task is None and way % 2:
                self.keep_receipt(next(i for i, (_, call) in enumerate(self.world.calls) if call is job.call))
            self.complete(position, "current", cost=(None, 1, 2, 13)[way % 4], assets=1)

    def _step_waiting(self, job: Job, way: int) -> None:
        if job.due:
            self.claim_due_polls(FAR, 100, list(KINDS))
            return
        mine = [lease for lease in self.world.polls if self.world.polled(lease)]
        position = next((i for i, lease in enumerate(mine) if lease.job_id == job.id), None)
        if position is not None and way % 4 == 0 and job.misses == 0:
            self.record_polls([(position, "current")], NOW, 1.5, missed=True)
        elif position is not None and job.task is None:
            self.adopt_call(position, "current", steal=False)
        elif position is not None:
            self.mark_result_known(position, "current", FAR)

    def _current(self) -> list[Any]:
        return [lease for lease in self.world.leases if self.world.held(lease)]

    # Leases.

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, term=TERM)
    def claim_queued(self, n: int, term: timedelta) -> None:
        job = self.world.job(n)
        assert job is not None
        self._claim(job, term)

    def _claim(self, job: Job, term: timedelta) -> None:
        claimed = self.db.once(jobs.claim_queued, job.id, owner="worker", term=term)
        allowed = job.status is State.QUEUED and job.available and not job.queue_late
        assert (claimed is not None) == allowed
        if claimed is not None:
            job.start(claimed.lease.token, lapsed=term < NOW)
            self._given(job, claimed)

    def _given(self, job: Job, claimed: Any) -> None:
        assert claimed.lease.token not in {lease.token for lease in self.world.leases}, "a token is never given twice"
        assert (claimed.lease.job_id, claimed.lease.epoch, claimed.attempt) == (job.id, job.epoch, job.attempt)
        assert (claimed.call.task_id, claimed.stopping) == (job.task, job.stopping)
        self.world.leases.append(claimed.lease)

    @precondition(lambda self: self.world.leases)
    @rule(picks=st.lists(st.tuples(N, AIM), min_size=1, max_size=3), term=TERM)
    def renew(self, picks: list[tuple[int, str]], term: timedelta) -> None:
        tried = [lease for n, aim in picks if (lease := self.world.lease(n, aim))]
        kept = self.db.once(jobs.renew, tried, term=term)
        held = [job for lease in tried if (job := self.world.held(lease)) and not job.lapsed]
        assert kept == {job.id: (job.stopping, job.late) for job in held}
        for job in held:
            job.lapsed = term < NOW

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM)
    def abandon(self, n: int, aim: str) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        assert self.db.once(jobs.abandon, lease) == (job is not None)
        if job is not None:
            job.lapsed = True

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, share=SHARE.filter(lambda share: share is not None))
    def report_progress(self, n: int, aim: str, share: float) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        self.world.tries(lease, job is not None, lambda: self.db.once(jobs.report_progress, lease, share))
        if job is not None:
            job.go_on(share)

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, delay=DELAY)
    def requeue(self, n: int, aim: str, delay: timedelta) -> None:
        """By its holder, who must know that nothing runs upstream: there was no call, or it was never sent."""
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        if job is not None and job.call is not None:
            if job.task is not None or (job.kind, job.call.task) in job.receipts:
                return
            job.call.sent = False
        self.world.tries(lease, job is not None, lambda: self.db.once(jobs.requeue, lease, delay=delay, why="shutdown"))
        if job is not None:
            job.requeue("requeued", available=delay <= NOW, counted=False)

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, off=OFF, delay=DELAY)
    def requeue_counted(self, n: int, aim: str, off: int, delay: timedelta) -> None:
        """By its holder, who must know that the call has ended."""
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        real = self.world.jobs.get(lease.job_id)
        expected = (real.attempt if real else 1) + off
        moved = self.db.once(jobs.requeue_counted, lease, expected_attempt=expected, delay=delay, why="retry")
        allowed = job is not None and expected == job.attempt < job.new.max_attempts
        assert moved == allowed
        if job is not None and allowed:
            job.requeue("requeued", available=delay <= NOW, counted=True)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, off=OFF)
    def increment_attempt_if(self, n: int, off: int) -> None:
        job = self.world.job(n)
        assert job is not None
        expected = job.attempt + off
        counted = self.db.once(jobs.increment_attempt_if, job.id, expected_attempt=expected)
        allowed = job.open and expected == job.attempt < job.new.max_attempts
        assert counted == (job.attempt + 1 if allowed else None)
        job.attempt += allowed

    # Forgeries. Everything a holder may do is tried with a lease that is wrong in one part, and nothing may happen.

    @precondition(lambda self: self.world.leases)
    @rule(n=N, part=st.sampled_from(["job", "epoch", "token"]))
    def forge_a_lease(self, n: int, part: str) -> None:
        lease = self.world.lease(n, f"wrong_{part}")
        assert lease is not None
        if self.world.held(lease) is not None:
            return
        real = next((job for job in self.world.jobs.values() if job.token == lease.token), None)
        attempt = real.attempt if real else 1
        once, transact, late = self.db.once, self.db.transact, Settlement(State.FAILED, error_code="forged")
        done = Settlement(State.COMPLETED, result={})
        for verb in (
            lambda: once(jobs.report_progress, lease, 0.5),
            lambda: once(calls.mark_call_started, lease, kind="alpha", handle={}, quiet=FAR),
            lambda: once(calls.checkpoint_call, lease, f"forged-{lease.job_id}", first_poll=NOW),
            lambda: once(calls.mark_ambiguous, lease, look_in=NOW, why="forged"),
            lambda: once(calls.return_result, lease, look_in=NOW, why="forged"),
            lambda: once(jobs.requeue, lease, delay=NOW, why="forged"),
            lambda: transact(settle.complete, lease, done),
            lambda: transact(settle.end_held, lease, late),
        ):
            self.world.tries(lease, False, verb)
        assert once(jobs.renew, [lease], term=FAR) == {}
        assert not once(jobs.abandon, lease)
        assert not once(calls.return_result_counted, lease, at_most=9, look_in=NOW, why="forged")
        assert not once(jobs.requeue_counted, lease, expected_attempt=attempt, delay=NOW, why="forged")

    @precondition(lambda self: self.world.polls)
    @rule(n=N, part=st.sampled_from(["job", "epoch", "token"]))
    def forge_a_poll_lease(self, n: int, part: str) -> None:
        lease = self.world.poll_lease(n, f"wrong_{part}")
        assert lease is not None
        if self.world.polled(lease) is not None:
            return
        once, transact, late = self.db.once, self.db.transact, Settlement(State.FAILED, error_code="forged")
        for verb in (
            lambda: once(calls.adopt_call, lease, f"forged-{lease.job_id}"),
            lambda: once(polls.take_polled, lease, term=FAR),
            lambda: transact(settle.end_polled, lease, late, upstream_ended=True),
        ):
            self.world.tries(lease, False, verb)
        assert once(polls.record_polls, [PollNote(lease, NOW, 0.5, missed=True)]) == set()
        assert not once(polls.mark_result_known, lease, look_in=NOW)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N)
    def ask_for_a_job_that_is_not_there(self, n: int) -> None:
        """Whatever else fits some job: without its id nothing happens."""
        job = self.world.job(n)
        assert job is not None
        once, transact, nobody = self.db.once, self.db.transact, uuid4()
        ended = Settlement(State.FAILED, error_code="forged")
        lost = {"epoch": job.epoch, "expected_attempt": job.attempt}
        assert once(jobs.claim_queued, nobody, owner="worker", term=FAR) is None
        assert once(polls.take_result, nobody, owner="importer", term=FAR) is None
        assert once(jobs.increment_attempt_if, nobody, expected_attempt=job.attempt) is None
        assert not once(jobs.requeue_lost, nobody, call_started=False, **lost)
        assert not once(jobs.requeue_lost, nobody, call_started=True, **lost)
        assert not once(calls.resume_lost, nobody, epoch=job.epoch)
        assert not transact(settle.end_lapsed, nobody, epoch=job.epoch, outcome=ended)
        assert not transact(settle.end_overdue, nobody, epoch=job.epoch, outcome=ended)
        assert not transact(settle.cancel_at_rest, nobody, ended)
        assert transact(signals.request_stop, nobody) is None
        assert once(passes.send_again, [nobody]) == 0

    # All that must be refused. Each verb that the state of a job does not allow is tried with its real lease.

    @precondition(lambda self: self.world.jobs)
    @rule(n=N)
    def try_what_is_not_allowed(self, n: int) -> None:
        job = self.world.job(n)
        assert job is not None
        self._refuses(job)

    try_more = precondition(lambda self: self.world.jobs)(rule(n=N)(lambda self, n: self.try_what_is_not_allowed(n)))

    def _refuses(self, job: Job) -> None:
        self._refuses_to_move(job)
        self._refuses_to_recover(job)
        lease = next((lease for lease in self._current() if lease.job_id == job.id), None)
        if lease is not None:
            self._refuses_its_holder(job, lease)
        polled = [lease for lease in self.world.polls if self.world.polled(lease) is job]
        if polled:
            self._refuses_its_poller(job, polled[0])

    def _refuses_to_move(self, job: Job) -> None:
        once, transact = self.db.once, self.db.transact
        if job.status is not State.QUEUED or not job.available or job.queue_late:
            assert once(jobs.claim_queued, job.id, owner="worker", term=FAR) is None
        if job.status is not State.WAITING or not job.known:
            assert once(polls.take_result, job.id, owner="importer", term=FAR) is None
        if not job.at_rest:
            ended = Settlement(State.CANCELLED, error_code="cancelled")
            assert not transact(settle.cancel_at_rest, job.id, ended)
        if not job.open or job.attempt == job.new.max_attempts:
            assert once(jobs.increment_attempt_if, job.id, expected_attempt=job.attempt) is None
        assert once(jobs.increment_attempt_if, job.id, expected_attempt=job.attempt - 1) is None
        if job.task is not None and (job.status is not State.WAITING or job.due):
            assert once(polls.poll_now, job.kind, job.task) is None
        if job.status is not State.QUEUED or not job.available:
            assert once(passes.send_again, [job.id]) == 0

    def _refuses_to_recover(self, job: Job) -> None:
        once, transact = self.db.once, self.db.transact
        ended = Settlement(State.FAILED, error_code="refused")
        lapsed = job.status is State.RUNNING and job.lapsed
        left = job.attempt < job.new.max_attempts
        safe = job.safe and job.new.mode != "async"
        lost = {"epoch": job.epoch, "expected_attempt": job.attempt}
        if not (lapsed and left and job.call is None):
            assert not once(jobs.requeue_lost, job.id, call_started=False, **lost)
        if not (lapsed and left and safe):
            assert not once(jobs.requeue_lost, job.id, call_started=True, **lost)
        if not (lapsed and job.call is not None and job.new.mode == "async"):
            assert not once(calls.resume_lost, job.id, epoch=job.epoch)
        if not lapsed:
            assert not transact(settle.end_lapsed, job.id, epoch=job.epoch, outcome=ended)
        if not (job.open and (job.late or (job.status is State.QUEUED and job.queue_late))):
            assert not transact(settle.end_overdue, job.id, epoch=job.epoch, outcome=ended)
        for off in (-1, 1):  # the right row, seen before or after somebody else had it
            other = job.epoch + off
            for started in (False, True):
                again = {"expected_attempt": job.attempt, "call_started": started}
                assert not once(jobs.requeue_lost, job.id, epoch=other, **again)
            assert not once(calls.resume_lost, job.id, epoch=other)
            assert not transact(settle.end_lapsed, job.id, epoch=other, outcome=ended)
            assert not transact(settle.end_overdue, job.id, epoch=other, outcome=ended)

    def _refuses_its_holder(self, job: Job, lease: Any) -> None:
        once, tries = self.db.once, self.world.tries
        if job.call is not None:
            tries(lease, False, lambda: once(calls.mark_call_started, lease, kind="beta", handle={}, quiet=FAR))
        theirs, taken = self._task(0, job, steal=True)
        if job.call is None or job.task is not None:
            tries(lease, False, lambda: once(calls.checkpoint_call, lease, "refused", first_poll=NOW))
        elif taken and job.new.mode == "async":
            tries(lease, True, lambda: once(calls.checkpoint_call, lease, theirs, first_poll=NOW), taken=True)
        if job.call is None or job.task is not None or job.new.mode != "async":
            tries(lease, False, lambda: once(calls.mark_ambiguous, lease, look_in=NOW, why="refused"))
        if job.task is None:
            tries(lease, False, lambda: once(calls.return_result, lease, look_in=NOW, why="refused"))
            assert not once(calls.return_result_counted, lease, at_most=9, look_in=NOW, why="refused")
        if job.lapsed:
            assert once(jobs.renew, [lease], term=FAR) == {}
        expected = job.attempt if job.attempt == job.new.max_attempts else job.attempt - 1
        assert not once(jobs.requeue_counted, lease, expected_attempt=expected, delay=NOW, why="refused")

    def _refuses_its_poller(self, job: Job, lease: Any) -> None:
        once, tries = self.db.once, self.world.tries
        if job.task is not None:
            tries(lease, False, lambda: once(calls.adopt_call, lease, "refused"))
        else:
            tries(lease, False, lambda: once(polls.take_polled, lease, term=FAR))
            assert not once(polls.mark_result_known, lease, look_in=NOW)
            theirs, taken = self._task(0, job, steal=True)
            if taken:
                tries(lease, True, lambda: once(calls.adopt_call, lease, theirs), taken=True)

    # Recovery.

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, off=OFF, attempt_off=OFF, call_started=st.booleans())
    def requeue_lost(self, n: int, off: int, attempt_off: int, call_started: bool) -> None:
        job = self.world.job(n, State.RUNNING) or self.world.job(n)
        assert job is not None
        expected = job.attempt + attempt_off
        moved = self.db.once(
            jobs.requeue_lost, job.id, epoch=job.epoch + off, expected_attempt=expected, call_started=call_started
        )
        allowed = (
            job.status is State.RUNNING and job.lapsed and off == 0 and expected == job.attempt < job.new.max_attempts
        )
        allowed = allowed and (job.safe and job.new.mode != "async" if call_started else job.call is None)
        assert moved == allowed
        if allowed:
            job.requeue("recovered", available=True, counted=True, unknown=call_started)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, off=OFF)
    def resume_lost(self, n: int, off: int) -> None:
        job = self.world.job(n, State.RUNNING) or self.world.job(n)
        assert job is not None
        moved = self.db.once(calls.resume_lost, job.id, epoch=job.epoch + off)
        allowed = (
            job.status is State.RUNNING and job.lapsed and off == 0 and job.call is not None and job.new.mode == "async"
        )
        assert moved == allowed
        if allowed:
            job.wait("recovered", due=True)

    @rule()
    def recover(self) -> None:
        """The design's recovery table, row by row."""
        lapsed = {found.job_id: found for found in self.db.once(passes.lapsed_leases)}
        jobs_lapsed = {job.id: job for job in self.world.jobs.values() if job.status is State.RUNNING and job.lapsed}
        assert set(lapsed) == set(jobs_lapsed)
        for job in jobs_lapsed.values():
            found = lapsed[job.id]
            facts = (found.epoch, found.mode, found.attempt, found.retry_safe, found.call_started, found.task_known)
            called = job.call is not None
            assert facts == (job.epoch, job.new.mode, job.attempt, job.safe, called, job.task is not None)
            self._recover(job)

    def _recover(self, job: Job) -> None:
        if job.call is not None and job.new.mode == "async":
            assert self.db.once(calls.resume_lost, job.id, epoch=job.epoch)
            job.wait("recovered", due=True)
            return
        again = job.attempt < job.new.max_attempts and (job.call is None or job.safe)
        called = job.call is not None
        moved = self.db.once(
            jobs.requeue_lost, job.id, epoch=job.epoch, expected_attempt=job.attempt, call_started=called
        )
        assert moved == again
        if again:
            job.requeue("recovered", available=True, counted=True, unknown=called)
            return
        outcome = Settlement(State.FAILED, error_code="reconcile_no_recovery" if called else "worker_lost")
        assert self.db.transact(settle.end_lapsed, job.id, epoch=job.epoch, outcome=outcome)
        self.world.end(job, State.FAILED, upstream_ended=False)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, what=MOMENT)
    def time_passes(self, n: int, what: str) -> None:
        job = self.world.job(n, *PASSING[what][0])
        if job is not None:
            self._pass(job, what)

    def _pass(self, job: Job, what: str) -> None:
        """One of its times is over, where it has it."""
        states, column, name = PASSING[what]
        if job.status not in states:
            return
        change = f"update callkeeper.jobs set {column} = now() - interval '1 second' where id = :id"
        self.world.by_hand(change, id=job.id)
        setattr(job, name, True)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N)
    def lose_messages(self, n: int) -> None:
        job = self.world.job(n)
        assert job is not None
        self.world.by_hand("delete from dramatiq.queue where message -> 'args' ->> 0 = :id", id=str(job.id))
        job.messages = 0

    @rule(at_most=st.sampled_from([1, 100]))
    def look_at_quiet(self, at_most: int) -> None:
        due = {job.id: job for job in self.world.jobs.values() if job.check_due}
        seen = self.db.once(passes.look_at_quiet, at_most=at_most)
        assert len(seen) == min(at_most, len(due))
        for quiet in seen:
            job = due.pop(quiet.job_id)
            late = (job.status is State.QUEUED and job.queue_late, job.late)
            assert (quiet.epoch, quiet.status) == (job.epoch, job.status)
            assert (quiet.past_queue_deadline, quiet.past_deadline) == late
            assert (quiet.call_started, quiet.task_known) == (job.call is not None, job.task is not None)
            assert quiet.message_sent == (job.status is State.QUEUED and job.messages > 0)
            job.check_due = False

    @precondition(lambda self: self.world.jobs)
    @rule(picks=st.lists(N, min_size=1, max_size=3))
    def send_again(self, picks: list[int]) -> None:
        chosen = {job.id: job for n in picks if (job := self.world.job(n))}
        waiting = [job for job in chosen.values() if job.status is State.QUEUED and job.available]
        assert self.db.once(passes.send_again, list(chosen)) == len(waiting)
        for job in waiting:
            job.messages += 1

    # The call.

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, kind=st.integers(0, 1))
    def mark_call_started(self, n: int, aim: str, kind: int) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        allowed = job is not None and job.call is None
        state = self.world.tries(
            lease,
            allowed,
            lambda: self.db.once(calls.mark_call_started, lease, kind=KINDS[kind], handle={"x": 1}, quiet=FAR),
        )
        if job is None or state is None:
            return
        mine = [call for owner, call in self.world.calls if owner is job]
        assert all(call.over for call in mine), "a second call was opened while the first may still run"
        assert state.key not in {call.state.key for call in mine}
        job.generation += 1
        assert state.generation == job.generation
        self.world.tasks += 1
        job.call = Call(state, f"task-{self.world.tasks}")
        self.world.calls.append((job, job.call))
        job.events.append("call_started")

    def _task(self, n: int, job: Job | None, *, steal: bool) -> tuple[str, bool]:
        """The task id to bring, and whether another job has it."""
        if job is None or job.call is None:
            return f"nobody-{n}", False
        others = [o for o in self.world.jobs.values() if o is not job and o.task and o.call and o.kind == job.kind]
        if steal and others:
            return str(others[n % len(others)].task), True
        return job.call.task, False

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, first_poll=DELAY, steal=st.sampled_from([False, False, True]))
    def checkpoint_call(self, n: int, aim: str, first_poll: timedelta, steal: bool) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        if job is not None and job.new.mode != "async":
            return
        task, taken = self._task(n, job, steal=steal)
        allowed = job is not None and job.call is not None and job.task is None
        self.world.tries(
            lease,
            allowed,
            lambda: self.db.once(calls.checkpoint_call, lease, task, first_poll=first_poll),
            taken=taken and allowed,
        )
        if job is not None and allowed and not taken:
            job.learn(task)
            job.wait("call_accepted", due=first_poll <= NOW)

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, look_in=DELAY)
    def mark_ambiguous(self, n: int, aim: str, look_in: timedelta) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        allowed = job is not None and job.call is not None and job.task is None and job.new.mode == "async"
        self.world.tries(
            lease, allowed, lambda: self.db.once(calls.mark_ambiguous, lease, look_in=look_in, why="no answer")
        )
        if job is not None and allowed:
            job.wait("call_ambiguous", due=look_in <= NOW)

    @precondition(lambda self: self.world.calls)
    @rule(n=N)
    def keep_receipt(self, n: int) -> None:
        """The answer to a create that nobody waits for any more, now or after the end of the job; maybe twice."""
        job, call = self.world.calls[n % len(self.world.calls)]
        if not call.sent:
            return
        self.db.once(receipts.keep_receipt, job.id, call.state, call.task)
        self.world.late(job, call)
        job.receipts.add((str(call.state.kind), call.task))

    # Polling.

    @rule(
        term=TERM, at_most=st.sampled_from([1, 100]), kinds=st.sampled_from([list(KINDS)] * 3 + [["alpha"], ["beta"]])
    )
    def claim_due_polls(self, term: timedelta, at_most: int, kinds: list[str]) -> None:
        waiting = [job for job in self.world.jobs.values() if job.status is State.WAITING]
        due = {job.id: job for job in waiting if job.due and job.kind in kinds}
        claimed = self.db.once(polls.claim_due_polls, owner="poller", kinds=kinds, term=term, at_most=at_most)
        assert len(claimed) == min(at_most, len(due))
        for found in claimed:
            job = due.pop(found.lease.job_id)
            assert job.call is not None
            assert (found.call.key, found.call.task_id, found.misses) == (job.call.state.key, job.task, job.misses)
            assert (found.stopping, found.overdue) == (job.stopping, job.quiet_over)
            assert (found.request is None) == (job.task is not None)
            assert found.lease.token not in {lease.token for lease in self.world.polls}
            job.poll, job.due = found.lease.token, term < NOW
            self.world.polls.append(found.lease)

    @precondition(lambda self: self.world.polls)
    @rule(
        picks=st.lists(st.tuples(N, AIM), min_size=1, max_size=3),
        next_in=DELAY,
        progress=SHARE,
        missed=st.sampled_from([True, False, None]),
    )
    def record_polls(
        self, picks: list[tuple[int, str]], next_in: timedelta, progress: float | None, missed: bool | None
    ) -> None:
        leases = {lease.job_id: lease for n, aim in picks if (lease := self.world.poll_lease(n, aim))}
        held = [job for lease in leases.values() if (job := self.world.polled(lease))]
        notes = [PollNote(lease, next_in, progress, missed) for lease in leases.values()]
        assert self.db.once(polls.record_polls, notes) == {job.id for job in held}
        for job in held:
            job.poll, job.due = None, next_in <= NOW
            if missed is not None:
                job.misses = job.misses + 1 if missed else 0
            job.go_on(progress)

    @precondition(lambda self: self.world.polls)
    @rule(n=N, aim=AIM, steal=st.sampled_from([False, False, True]))
    def adopt_call(self, n: int, aim: str, steal: bool) -> None:
        lease = self.world.poll_lease(n, aim)
        assert lease is not None
        job = self.world.polled(lease)
        task, taken = self._task(n, job, steal=steal)
        allowed = job is not None and job.task is None
        self.world.tries(lease, allowed, lambda: self.db.once(calls.adopt_call, lease, task), taken=taken and allowed)
        if job is not None and allowed and not taken:
            job.learn(task)
            job.poll, job.due, job.misses = None, True, 0
            job.events.append("call_adopted")

    @precondition(lambda self: self.world.polls)
    @rule(n=N, aim=AIM, look_in=DELAY)
    def mark_result_known(self, n: int, aim: str, look_in: timedelta) -> None:
        lease = self.world.poll_lease(n, aim)
        assert lease is not None
        job = self.world.polled(lease)
        allowed = job is not None and job.task is not None
        assert self.db.once(polls.mark_result_known, lease, look_in=look_in) == allowed
        if job is not None and allowed:
            job.known, job.poll, job.due = True, None, look_in <= NOW
            job.messages += 1
            job.events.append("result_known")

    @precondition(lambda self: self.world.calls)
    @rule(n=N, other_kind=st.sampled_from([False, False, True]))
    def poll_now(self, n: int, other_kind: bool) -> None:
        known = [job for job in self.world.jobs.values() if job.task and job.call]
        if not known:
            return
        hinted = known[n % len(known)]
        kind = next(kind for kind in KINDS if (kind != hinted.kind) == other_kind)
        job = self.world.owner_of(kind, str(hinted.task))
        allowed = job is not None and job.status is State.WAITING and not job.due
        found = self.db.once(polls.poll_now, kind, str(hinted.task))
        assert found == (job.id if job is not None and allowed else None)
        if job is not None and allowed:
            job.due = True

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, term=TERM)
    def take_result(self, n: int, term: timedelta) -> None:
        job = self.world.job(n)
        assert job is not None
        self._take(job, term)

    def _take(self, job: Job, term: timedelta) -> None:
        taken = self.db.once(polls.take_result, job.id, owner="importer", term=term)
        assert (taken is not None) == (job.status is State.WAITING and job.known)
        if taken is not None:
            self._taken(job, taken, term)

    def _taken(self, job: Job, taken: Any, term: timedelta) -> None:
        job.claim(taken.lease.token, lapsed=term < NOW)
        job.poll, job.due = None, False
        job.events.append("result_taken")
        self._given(job, taken)

    @precondition(lambda self: self.world.polls)
    @rule(n=N, aim=AIM, term=TERM)
    def take_polled(self, n: int, aim: str, term: timedelta) -> None:
        lease = self.world.poll_lease(n, aim)
        assert lease is not None
        job = self.world.polled(lease)
        allowed = job is not None and job.task is not None
        taken = self.world.tries(lease, allowed, lambda: self.db.once(polls.take_polled, lease, term=term))
        if job is not None and taken is not None:
            job.known = True
            self._taken(job, taken, term)

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, look_in=DELAY, missed=st.booleans())
    def return_result(self, n: int, aim: str, look_in: timedelta, missed: bool) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        allowed = job is not None and job.task is not None
        self.world.tries(
            lease,
            allowed,
            lambda: self.db.once(calls.return_result, lease, look_in=look_in, why="unreachable", missed=missed),
        )
        if job is not None and allowed:
            job.known = False
            job.misses += missed
            check_due = job.check_due  # unlike every other way to wait, this one leaves the next check where it is
            job.wait("result_returned", due=look_in <= NOW)
            job.check_due = check_due

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, at_most=st.sampled_from([1, 2, 2, 3]))
    def return_result_counted(self, n: int, aim: str, at_most: int) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        allowed = job is not None and job.task is not None and job.import_failures + 1 < at_most
        returned = self.db.once(calls.return_result_counted, lease, at_most=at_most, look_in=NOW, why="corrupt")
        assert returned == allowed
        if job is not None and allowed:
            job.import_failures += 1
            job.known = False
            check_due = job.check_due
            job.wait("result_returned", due=True)
            job.check_due = check_due

    # Endings.

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, cost=st.sampled_from([None, 0, 1, 3, 6, 13]), assets=st.integers(0, 1))
    def complete(self, n: int, aim: str, cost: int | None, assets: int) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        self.assets += 1
        files = [NewAsset(f"media/{self.assets}", "image/png", 10, "a" * 64)] * assets
        response = job.call.task if job is not None and job.call is not None and job.new.mode == "sync" else None
        outcome = Settlement(
            State.COMPLETED, result={"media": [{}] * assets}, cost=cost, assets=files, provider_id=response
        )
        self.world.tries(lease, job is not None, lambda: self.db.transact(settle.complete, lease, outcome))
        if job is not None:
            if response is not None:
                job.receipts.add((job.kind, response))
            self.world.end(job, State.COMPLETED, upstream_ended=True, cost=cost, assets=assets)

    @precondition(lambda self: self.world.leases)
    @rule(n=N, aim=AIM, status=UNSUCCESS, upstream_ended=st.booleans())
    def end_held(self, n: int, aim: str, status: State, upstream_ended: bool) -> None:
        lease = self.world.lease(n, aim)
        assert lease is not None
        job = self.world.held(lease)
        outcome = Settlement(status, error_code="made_to_end", error_message="no\x00pe")
        self.world.tries(
            lease,
            job is not None,
            lambda: self.db.transact(settle.end_held, lease, outcome, upstream_ended=upstream_ended),
        )
        if job is not None:
            self.world.end(job, status, upstream_ended=upstream_ended)

    @precondition(lambda self: self.world.polls)
    @rule(n=N, aim=AIM, status=UNSUCCESS, upstream_ended=st.booleans())
    def end_polled(self, n: int, aim: str, status: State, upstream_ended: bool) -> None:
        lease = self.world.poll_lease(n, aim)
        assert lease is not None
        job = self.world.polled(lease)
        outcome = Settlement(status, error_code="made_to_end")
        self.world.tries(
            lease,
            job is not None,
            lambda: self.db.transact(settle.end_polled, lease, outcome, upstream_ended=upstream_ended),
        )
        if job is not None:
            self.world.end(job, status, upstream_ended=upstream_ended)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, off=OFF)
    def end_lapsed(self, n: int, off: int) -> None:
        job = self.world.job(n, State.RUNNING) or self.world.job(n)
        assert job is not None
        outcome = Settlement(State.FAILED, error_code="worker_lost")
        allowed = job.status is State.RUNNING and job.lapsed and off == 0
        assert self.db.transact(settle.end_lapsed, job.id, epoch=job.epoch + off, outcome=outcome) == allowed
        if allowed:
            self.world.end(job, State.FAILED, upstream_ended=False)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, off=OFF)
    def end_overdue(self, n: int, off: int) -> None:
        job = self.world.job(n)
        assert job is not None
        outcome = Settlement(State.TIMED_OUT, error_code="deadline")
        late = job.late or (job.status is State.QUEUED and job.queue_late)
        allowed = job.open and late and off == 0
        assert self.db.transact(settle.end_overdue, job.id, epoch=job.epoch + off, outcome=outcome) == allowed
        if allowed:
            self.world.end(job, State.TIMED_OUT, upstream_ended=False)

    @precondition(lambda self: self.world.jobs)
    @rule(n=N, by=st.sampled_from([None, "owner", "owner", "stranger"]))
    def request_stop(self, n: int, by: str | None) -> None:
        job = self.world.job(n)
        assert job is not None
        user = {None: None, "owner": job.new.user_id, "stranger": "stranger"}[by]
        state = self.db.transact(signals.request_stop, job.id, user_id=user)
        if by == "stranger":
            assert state is None
            return
        if job.at_rest:
            self.world.end(job, State.CANCELLED, upstream_ended=False)
        else:
            job.stopping = job.open
        assert state is job.status
        assert self.db.once(signals.is_stopping, job.id) == job.stopping

    # Outboxes.

    @rule(
        outbox_name=st.sampled_from(["notices", "notices", "consequences"]), term=TERM, at_most=st.sampled_from([1, 50])
    )
    def claim_owed(self, outbox_name: str, term: timedelta, at_most: int) -> None:
        rows = self.world.owed[outbox_name]
        due = {key for key, row in rows.items() if row.due and row.finished is None}
        claimed = self.db.once(outbox.claim, outbox_name, term=term, at_most=at_most)
        assert len(claimed) == min(at_most, len(due))
        for owed in claimed:
            due.remove(owed.key)
            row = rows[owed.key]
            row.token, row.due = owed.token, term < NOW
            row.attempts += 1
            assert owed.attempts == row.attempts
            self.claimed.append(owed)

    @property
    def claimed(self) -> list[outbox.Owed]:
        return self.__dict__.setdefault("_claimed", [])

    @precondition(lambda self: self.claimed)
    @rule(
        n=N,
        how=st.sampled_from(["delivered", "delivered", "later", "dead"]),
        delay=DELAY,
        forge=st.sampled_from([None, None, None, "key", "token"]),
    )
    def finish_owed(self, n: int, how: str, delay: timedelta, forge: str | None) -> None:
        owed = self.claimed[n % len(self.claimed)]
        other = self.claimed[(n + 1) % len(self.claimed)]
        key = other.key if forge == "key" and other.outbox == owed.outbox else owed.key
        token = other.token if forge == "token" else owed.token
        tried = outbox.Owed(owed.outbox, key, token, owed.job_id, owed.attempts, owed.body, owed.effect)
        row: Owed = self.world.owed[owed.outbox][key]
        allowed = row.token == token and row.finished is None
        if how == "delivered":
            done = self.db.once(outbox.mark_delivered, owed.outbox, [tried]) == 1
        elif how == "dead":
            done = self.db.once(outbox.mark_dead, tried, error="gone")
        else:
            done = self.db.once(outbox.deliver_later, tried, delay=delay, error="busy")
        assert done == allowed
        if allowed and how == "later":
            row.token, row.due = None, delay <= NOW
        elif allowed:
            row.token, row.finished = None, how
