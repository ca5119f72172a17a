"""Every verb in every state, and the last word of the database itself on what may be stored."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy.exc import IntegrityError

from store import calls, jobs, polls, receipts, settle, signals
from store.engine import Database
from store.errors import LeaseLost
from store.models import Lease, PollLease, PollNote, Settlement
from store.states import OPEN, TERMINAL, TRANSITIONS, State
from store.tables import metadata
from tests.store.steps import AT_ONCE, DONE, FAILED, FAR, KIND, LAPSED, TERM, Steps

Try = Callable[[Steps, UUID], Any]


def lease(steps: Steps, job_id: UUID) -> Lease:
    return steps.lease_of(job_id)


def poll_lease(steps: Steps, job_id: UUID) -> PollLease:
    """The poll lease on the row; where there is none, one that would fit but for the state."""
    steps.due()
    row = steps.row(job_id)
    return PollLease(job_id, row["epoch"], row["poll_token"] or uuid4(), "poller")


def lapsed(steps: Steps, job_id: UUID) -> int:
    steps.by_hand(
        "update callkeeper.jobs set lease_until = now() - interval '1 second' where id = :id and status = 'running'",
        id=job_id,
    )
    return int(steps.row(job_id)["epoch"])


def overdue(steps: Steps, job_id: UUID) -> int:
    steps.by_hand(
        "update callkeeper.jobs set deadline_at = now() - interval '1 second' where id = :id and finished_at is null",
        id=job_id,
    )
    return int(steps.row(job_id)["epoch"])


def outcome(state: State) -> Settlement:
    return Settlement(state, error_code="made_to_end")


# How each verb is tried on a job, whatever state it is in. Several ways where a verb has several callers.
WAYS: dict[str, list[Try]] = {
    "claim_queued": [lambda s, job: s.db.once(jobs.claim_queued, job, owner="w", term=TERM)],
    "mark_call_started": [
        lambda s, job: s.db.once(calls.mark_call_started, lease(s, job), kind=KIND, handle={}, quiet=FAR)
    ],
    "checkpoint_call": [
        lambda s, job: s.db.once(calls.checkpoint_call, lease(s, job), f"new-{job}", first_poll=AT_ONCE)
    ],
    "mark_ambiguous": [lambda s, job: s.db.once(calls.mark_ambiguous, lease(s, job), look_in=FAR, why="x")],
    "claim_due_polls": [lambda s, job: [due for due in s.due() if due.lease.job_id == job]],
    "record_poll": [lambda s, job: s.db.once(polls.record_polls, [PollNote(poll_lease(s, job), FAR, 0.5)])],
    "adopt_call": [lambda s, job: s.db.once(calls.adopt_call, poll_lease(s, job), f"found-{job}")],
    "mark_result_known": [lambda s, job: s.db.once(polls.mark_result_known, poll_lease(s, job), look_in=FAR)],
    "take_result": [lambda s, job: s.db.once(polls.take_result, job, owner="w", term=TERM)],
    "take_polled": [lambda s, job: s.db.once(polls.take_polled, poll_lease(s, job), term=TERM)],
    "return_result": [
        lambda s, job: s.db.once(calls.return_result, lease(s, job), look_in=FAR, why="x"),
        lambda s, job: s.db.once(calls.return_result_counted, lease(s, job), at_most=9, look_in=FAR, why="x"),
    ],
    "requeue": [
        lambda s, job: s.db.once(jobs.requeue, lease(s, job), delay=AT_ONCE, why="x"),
        lambda s, job: s.db.once(jobs.requeue_counted, lease(s, job), expected_attempt=1, delay=AT_ONCE, why="x"),
    ],
    "requeue_lost": [
        lambda s, job: s.db.once(jobs.requeue_lost, job, epoch=lapsed(s, job), expected_attempt=1, call_started=False)
    ],
    "resume_lost": [lambda s, job: s.db.once(calls.resume_lost, job, epoch=lapsed(s, job))],
    "complete": [lambda s, job: s.db.transact(settle.complete, lease(s, job), DONE)],
    "fail": [lambda s, job: s.db.transact(settle.end_held, lease(s, job), FAILED)],
    "time_out": [
        lambda s, job: s.db.transact(settle.end_overdue, job, epoch=overdue(s, job), outcome=outcome(State.TIMED_OUT))
    ],
    "cancel": [lambda s, job: s.db.transact(settle.cancel_at_rest, job, outcome(State.CANCELLED))],
}

# Where a verb needs more than its state, how the job comes to have it.
SETTING: dict[str, Callable[[Steps], UUID]] = {
    "checkpoint_call": lambda s: s.calling().job_id,
    "mark_ambiguous": lambda s: s.calling().job_id,
    "resume_lost": lambda s: s.calling().job_id,
    "return_result": lambda s: s.took_result().job_id,
    "adopt_call": lambda s: s.ambiguous(),
    "take_result": lambda s: s.result_known(),
}

# Verbs that end a job have one way for each of its open states.
ENDS: dict[tuple[str, State], Try] = {
    ("fail", State.QUEUED): lambda s, job: s.db.transact(
        settle.end_overdue, job, epoch=overdue(s, job), outcome=FAILED
    ),
    ("fail", State.WAITING): lambda s, job: s.db.transact(
        settle.end_polled, poll_lease(s, job), FAILED, upstream_ended=True
    ),
    ("cancel", State.RUNNING): lambda s, job: s.db.transact(settle.end_held, lease(s, job), outcome(State.CANCELLED)),
}

ALLOWED = [(verb, source) for verb, move in TRANSITIONS.items() for source in move.sources]
REFUSED = [
    (verb, state) for verb, move in TRANSITIONS.items() if move.sources for state in State if state not in move.sources
]


def moved(answer: Any) -> bool:
    return answer is None or bool(answer)  # a verb that raises LeaseLost instead returns nothing


def changes(steps: Steps, job_id: UUID) -> dict[str, Any]:
    counts = {
        table: steps.count(f"callkeeper.{table}", "job_id = :id", id=job_id)
        for table in ("job_events", "job_signals", "call_receipts", "assets", "notices", "consequences", "usage_logs")
    }
    messages = steps.count("dramatiq.queue", "message -> 'args' ->> 0 = :id", id=str(job_id))
    return {"row": steps.row(job_id), **counts, "messages": messages}


def test_every_transition_is_tried() -> None:
    assert set(WAYS) | {"submit"} == set(TRANSITIONS)
    assert len(ALLOWED) + len(REFUSED) == (len(TRANSITIONS) - 1) * len(State)


@pytest.mark.parametrize(("verb", "source"), ALLOWED)
def test_a_verb_moves_from_where_it_may(steps: Steps, verb: str, source: State) -> None:
    ways = [ENDS[verb, source]] if (verb, source) in ENDS else WAYS[verb]
    for way in ways:
        job_id = (
            SETTING[verb](steps) if verb in SETTING else steps.at(source, account_id=steps.account(topup=1), price=1)
        )
        assert steps.row(job_id)["status"] == source
        events = len(steps.events(job_id))
        assert moved(way(steps, job_id))
        row = steps.row(job_id)
        assert row["status"] == (TRANSITIONS[verb].target or source)
        assert row["event_seq"] == len(steps.events(job_id))
        assert row["event_seq"] == events + (verb not in {"claim_due_polls", "record_poll"})
    assert steps.violations() == []


@pytest.mark.parametrize(("verb", "state"), REFUSED)
def test_a_verb_changes_nothing_elsewhere(steps: Steps, verb: str, state: State) -> None:
    for way in WAYS[verb]:
        job_id = steps.at(state)
        if verb in {"requeue_lost", "resume_lost"}:
            lapsed(steps, job_id)
        if verb == "time_out":
            overdue(steps, job_id)
        if verb in {"record_poll", "adopt_call", "mark_result_known", "take_polled"}:
            steps.due()
        before = changes(steps, job_id)
        try:
            answer = way(steps, job_id)
        except LeaseLost as lost:
            counted = steps.count("callkeeper.stale_writes", "job_id = :id and verb = :verb", id=job_id, verb=lost.verb)
            assert counted == 1
        else:
            assert answer is None or not answer
        assert changes(steps, job_id) == before


MORE: dict[str, tuple[tuple[State, ...], Try]] = {
    "renew": ((State.RUNNING,), lambda s, job: s.db.once(jobs.renew, [lease(s, job)], term=TERM)),
    "abandon": ((State.RUNNING,), lambda s, job: s.db.once(jobs.abandon, lease(s, job))),
    "report_progress": ((State.RUNNING,), lambda s, job: s.db.once(jobs.report_progress, lease(s, job), 0.5)),
    "increment_attempt_if": (OPEN, lambda s, job: s.db.once(jobs.increment_attempt_if, job, expected_attempt=1)),
    "request_stop": ((State.RUNNING,), lambda s, job: s.db.transact(signals.request_stop, job)),
    "end_lapsed": (
        (State.RUNNING,),
        lambda s, job: s.db.transact(settle.end_lapsed, job, epoch=lapsed(s, job), outcome=FAILED),
    ),
}


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize("verb", MORE)
def test_the_other_verbs_leave_a_finished_job_alone(steps: Steps, verb: str, state: State) -> None:
    job_id = steps.at(state)
    before = changes(steps, job_id)
    with contextlib.suppress(LeaseLost):
        MORE[verb][1](steps, job_id)
    assert changes(steps, job_id) == before


@pytest.mark.parametrize("verb", MORE)
def test_the_other_verbs_do_something_where_they_may(steps: Steps, verb: str) -> None:
    states, way = MORE[verb]
    for state in states:
        job_id = steps.at(state)
        before = changes(steps, job_id)
        way(steps, job_id)
        assert changes(steps, job_id) != before


# What the guards ask beyond the state.


def test_claim_waits_until_it_is_due_and_not_past_the_queue_deadline(steps: Steps) -> None:
    later = steps.submit(delay=FAR)
    late = steps.submit()
    steps.by_hand("update callkeeper.jobs set queue_deadline_at = now() where id = :id", id=late)
    for job_id in (later, late):
        assert steps.db.once(jobs.claim_queued, job_id, owner="w", term=TERM) is None
    assert steps.db.once(jobs.claim_queued, uuid4(), owner="w", term=TERM) is None


def test_a_second_call_is_not_opened_while_one_may_run(steps: Steps) -> None:
    held = steps.calling()
    with pytest.raises(LeaseLost):
        steps.start_call(held)
    assert steps.row(held.job_id)["call_generation"] == 1


def test_a_synchronous_call_is_never_ambiguous_nor_resumed(steps: Steps) -> None:
    held = steps.calling(mode="sync")
    with pytest.raises(LeaseLost):
        steps.db.once(calls.mark_ambiguous, held, look_in=FAR, why="x")
    assert not steps.db.once(calls.resume_lost, held.job_id, epoch=lapsed(steps, held.job_id))
    assert steps.row(held.job_id)["status"] == "running"


@pytest.mark.parametrize(
    ("mode", "retry_safe", "again"),
    [("async", True, False), ("sync", False, False), ("sync", True, True), ("local", True, True)],
)
def test_a_lost_call_runs_again_only_where_that_is_safe(steps: Steps, mode: str, retry_safe: bool, again: bool) -> None:
    held = steps.calling(mode=mode, retry_safe=retry_safe)
    epoch = lapsed(steps, held.job_id)
    for call_started in (False, True):
        moved_ = steps.db.once(
            jobs.requeue_lost, held.job_id, epoch=epoch, expected_attempt=1, call_started=call_started
        )
        assert moved_ == (again and call_started)


def test_attempts_end(steps: Steps) -> None:
    held = steps.claim(steps.submit(max_attempts=1), term=LAPSED).lease
    requeue = {"expected_attempt": 1}
    assert not steps.db.once(jobs.requeue_lost, held.job_id, epoch=1, call_started=False, **requeue)
    assert not steps.db.once(jobs.requeue_counted, held, delay=AT_ONCE, why="x", **requeue)
    assert steps.db.once(jobs.increment_attempt_if, held.job_id, **requeue) is None
    steps.db.once(jobs.requeue, held, delay=AT_ONCE, why="shutdown")
    assert steps.row(held.job_id)["attempt"] == 1


def test_each_claim_is_a_new_epoch_and_token(steps: Steps) -> None:
    job_id = steps.submit()
    seen = []
    for _ in range(3):
        held = steps.claim(job_id).lease
        seen.append((held.epoch, held.token))
        steps.db.once(jobs.requeue, held, delay=AT_ONCE, why="x")
    assert [epoch for epoch, _ in seen] == [1, 2, 3]
    assert len({token for _, token in seen}) == 3


def test_a_later_start_does_not_move_the_deadline(steps: Steps) -> None:
    job_id = steps.submit()
    first = steps.claim(job_id)
    steps.db.once(jobs.requeue, first.lease, delay=AT_ONCE, why="x")
    assert steps.claim(job_id).deadline_at == first.deadline_at


# The database's own word.


@pytest.mark.parametrize("state", TERMINAL)
@pytest.mark.parametrize(
    "change",
    [
        "status = 'queued'", "status = 'running'", "progress = 0.1", "result = '{}'", "error_message = 'other'",
        "finished_at = now()", "attempt = attempt", "epoch = epoch + 1", "event_seq = event_seq + 1",
        "next_check_at = now()", "price = price + 1", "job_type = 'other'",
    ],
)  # fmt: skip
def test_a_finished_row_refuses_any_update(steps: Steps, state: State, change: str) -> None:
    job_id = steps.ended(state)
    before = steps.row(job_id)
    with pytest.raises(IntegrityError, match="a terminal job never changes") as refusal:
        steps.by_hand(f"update callkeeper.jobs set {change} where id = :id", id=job_id)
    assert refusal.value.orig.diag.constraint_name == "jobs_terminal_is_final"
    assert steps.row(job_id) == before


@pytest.mark.parametrize(
    "change", ["price = price + 1", "visibility = 'private'", "watermark = true", """effects = '{"failed": ["x"]}'"""]
)
def test_the_terms_of_a_submit_are_frozen(steps: Steps, change: str) -> None:
    job_id = steps.waiting()
    with pytest.raises(IntegrityError, match="are those of its submit") as refusal:
        steps.by_hand(f"update callkeeper.jobs set {change} where id = :id", id=job_id)
    assert refusal.value.orig.diag.constraint_name == "jobs_terms_are_frozen"


def test_receipts_are_append_only_and_kept_once(steps: Steps) -> None:
    held = steps.running()
    call = steps.start_call(held)
    for _ in range(2):
        steps.db.once(receipts.keep_receipt, held.job_id, call, "task-1")
    assert steps.count("callkeeper.call_receipts") == 1
    for change in ("provider_task_id = 'other'", "epoch = epoch"):
        with pytest.raises(IntegrityError, match="append-only") as refusal:
            steps.by_hand(f"update callkeeper.call_receipts set {change}")
        assert refusal.value.orig.diag.constraint_name == "call_receipts_append_only"


# One half-transition for each CHECK: the state to start from, and what is changed by hand.
RUN = (
    "insert into callkeeper.runs (run_type, request_fingerprint, result_step, node_limit, run_limit, deadline_at,"
    " next_check_at{names}) values ('t', 'f', 's', '{node}', '2 h', now(), {check}{values})"
)


def run(names: str = "", values: str = "", *, node: str = "1 h", check: str = "now()") -> str:
    return RUN.format(names=names, values=values, node=node, check=check)


def beside_run(table: str, names: str, values: str) -> str:
    """A row beside a run and the test's job."""
    return (
        f"with run as ({run()} returning id) insert into callkeeper.{table} (run_id, {names})"
        f" select run.id, {values} from run, callkeeper.jobs"
    )


WARNING = "job_id, position, code, stage, severity, customer_visible, quality"

HALVES: dict[str, tuple[State | str, str]] = {
    "jobs_step_is_whole": (State.QUEUED, "step = 'a'"),
    "jobs_blocked_never_started": (State.QUEUED, "blocked = true"),
    "jobs_recreates_within_budget": (State.QUEUED, "recreates = 3"),
    "jobs_status_known": (State.QUEUED, "status = 'paused', next_check_at = null"),
    "jobs_mode_known": (State.QUEUED, "mode = 'later'"),
    "jobs_running_is_leased": (State.QUEUED, "status = 'running'"),
    "jobs_lease_is_whole": (State.RUNNING, "lease_owner = null"),
    "jobs_waiting_is_polled": (State.WAITING, "next_poll_at = null"),
    "jobs_poll_lease_waits": (State.QUEUED, "poll_token = gen_random_uuid()"),
    "jobs_waiting_has_call": (State.WAITING, "mode = 'sync'"),
    "jobs_queued_has_no_call": (
        "calling",
        "status = 'queued', lease_owner = null, lease_token = null, lease_until = null",
    ),
    "jobs_call_is_whole": (State.RUNNING, "call_key = gen_random_uuid()"),
    "jobs_task_has_call": (State.RUNNING, "provider_task_id = 'x'"),
    "jobs_ambiguity_is_bounded": ("ambiguous", "resolve_by = null"),
    "jobs_result_has_task": (State.RUNNING, "result_known_at = now()"),
    "jobs_terminal_is_finished": (State.QUEUED, "finished_at = now()"),
    "jobs_open_is_watched": (State.QUEUED, "next_check_at = null"),
    "jobs_completed_has_result": (State.QUEUED, "result = '{}'"),
    "jobs_unsuccess_has_error": (State.QUEUED, "error_code = 'x'"),
    "jobs_error_is_capped": (State.QUEUED, "error_message = repeat('x', 4097)"),
    "jobs_attempt_within_limit": (State.QUEUED, "attempt = max_attempts + 1"),
    "jobs_looks_counted": (State.QUEUED, "reconcile_attempts = -1"),
    "jobs_import_failures_are_counted": (State.QUEUED, "import_failures = -1"),
    "jobs_progress_is_share": (State.QUEUED, "progress = 1.1"),
    "jobs_parked_is_queued": (State.RUNNING, "parked_on = '1/'"),
    "jobs_names_are_short": (State.QUEUED, "idempotency_key = ''"),
}
ALERT_NOTICE = (
    "with opened as (insert into callkeeper.alerts (subject, resolved_at) values ('s', now()))"
    " insert into callkeeper.alert_notices (key, subject, body, {name}) values ('k', 's', '{{}}', {value})"
)
PRICED = '\'{"input": 1, "output": 1}\''
OTHER_HALVES: dict[str, str] = {
    "runs_status_known": run(", status, finished_at", ", 'paused', now()", check="null"),
    "runs_ending_known": run(", ending, failure_code", ", 'completed', 'x'"),
    "runs_quality_known": run(", quality", ", 'poor'"),
    "runs_terminal_is_finished": run(", finished_at", ", now()"),
    "runs_open_is_watched": run(check="null"),
    "runs_ending_is_explained": run(", ending", ", 'failed'"),
    "runs_unsuccess_was_decided": run(", status, finished_at", ", 'failed', now()", check="null"),
    "runs_completed_is_whole": run(", status, finished_at, progress", ", 'completed', now(), 0.5", check="null"),
    "runs_progress_is_share": run(", progress", ", 1.5"),
    "runs_node_within_run": run(node="3 h"),
    "runs_names_are_short": run(", email", ", repeat('a', 321)"),
    "run_events_seq_counts_from_one": beside_run("run_events", "seq, kind", "0, 'x'"),
    "run_warnings_severity_known": beside_run("run_warnings", WARNING, "jobs.id, 0, 'c', 's', 'bad', true, 'standard'"),
    "run_warnings_quality_known": beside_run("run_warnings", WARNING, "jobs.id, 0, 'c', 's', 'info', true, 'poor'"),
    "run_warnings_code_is_short": beside_run("run_warnings", WARNING, "jobs.id, 0, '', 's', 'info', true, 'standard'"),
    "rollout_flags_name_known": "insert into callkeeper.rollout_flags (name, mode) values ('luck', 'on')",
    "rollout_flags_mode_known": "insert into callkeeper.rollout_flags (name, mode) values ('salvage', 'maybe')",
    "rollout_flags_percent_is_share": "insert into callkeeper.rollout_flags (name, mode, percent)"
    " values ('salvage', 'canary', 101)",
    "notices_of_one": "insert into callkeeper.notices (key, body) values ('k', '{}')",
    "notices_channel_known": "insert into callkeeper.notices (key, job_id, body, channel)"
    " select 'k', id, '{}', 'pigeon' from callkeeper.jobs",
    "alert_notices_channel_known": ALERT_NOTICE.format(name="channel", value="'pigeon'"),
    "alert_notices_end_once": ALERT_NOTICE.format(name="channel, delivered_at, dead_at", value="'email', now(), now()"),
    "jobs_price_is_payable": "update callkeeper.jobs set account_id = null",
    "jobs_visibility_known": "insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price,"
    " max_attempts, queue_limit, run_limit, available_at, queue_deadline_at, deadline_at, next_check_at, visibility)"
    " select 't', 'q', 'a', 'local', 'f', 0, 1, '1 h', '1 h', now(), now(), now(), now(), 'secret'",
    "accounts_visibility_known": "update callkeeper.accounts set visibility_baseline = 'secret'",
    "unexplained_spend_resolved_with_words": "insert into callkeeper.unexplained_spend (job_id, call_generation,"
    " provider_kind, call_started_at, error_code, price, resolved_at) select id, 1, 'k', now(), 'x', 1, now()"
    " from callkeeper.jobs",
    "upstream_watches_end_with_outcome": "insert into callkeeper.upstream_watches (job_id, provider_kind,"
    " provider_task_id, call_generation, call_handle, call_started_at, ended_at) select id, 'k', 't', 1, '{}', now(), now()"
    " from callkeeper.jobs",
    "standalone_assets_are_whole": "insert into callkeeper.standalone_assets (job_id, provider_kind, provider_task_id,"
    " position, object_key, content_type, size_bytes, sha256, visibility, watermark)"
    " select id, 'k', 't', 0, 'o', 'image/png', 0, repeat('a', 64), 'public', false from callkeeper.jobs",
    "standalone_assets_visibility_known": "insert into callkeeper.standalone_assets (job_id, provider_kind,"
    " provider_task_id, position, object_key, content_type, size_bytes, sha256, visibility, watermark)"
    " select id, 'k', 't', 0, 'o', 'image/png', 1, repeat('a', 64), 'secret', false from callkeeper.jobs",
    "api_tokens_scope_known": "insert into callkeeper.api_tokens (token_hash, scope, user_id, account_id) values "
    "(sha256('t'), 'god', null, null)",
    "api_tokens_user_is_named": "insert into callkeeper.api_tokens (token_hash, scope, user_id, account_id) values "
    "(sha256('t'), 'user', null, null)",
    "api_tokens_only_users_pay": "insert into callkeeper.api_tokens (token_hash, scope, user_id, account_id) values "
    "(sha256('t'), 'operator', null, 'a')",
    "api_tokens_hash_is_whole": "insert into callkeeper.api_tokens (token_hash, scope, user_id, account_id) values "
    "('t', 'user', 'u', null)",
    "api_tokens_words_are_short": "insert into callkeeper.api_tokens (token_hash, scope, user_id, account_id) values "
    "(sha256('t'), 'user', '', null)",
    "accounts_subscription_conserved": "update callkeeper.accounts set balance_subscription = balance_subscription + 1",
    "accounts_topup_conserved": "update callkeeper.accounts set reserved_topup = reserved_topup - 1",
    "accounts_subscription_never_negative": "update callkeeper.accounts set balance_subscription = -1,"
    " committed_subscription = granted_subscription - reserved_subscription + 1",
    "accounts_topup_never_negative": "update callkeeper.accounts set reserved_topup = -1, balance_topup = granted_topup + 1",
    "usage_logs_status_known": "update callkeeper.usage_logs set status = 'lost', settled_at = now()",
    "usage_logs_settled_once": "update callkeeper.usage_logs set settled_at = now()",
    "usage_logs_commit_within_reservation": "update callkeeper.usage_logs set status = 'committed', settled_at = now(),"
    " committed_topup = reserved_topup + 1",
    "usage_logs_only_committed_charges": "update callkeeper.usage_logs set committed_subscription = 1",
    **{
        f"budgets_{rule}": f"insert into callkeeper.budgets (measure, scope, name, at_most, per) values ({values})"
        for rule, values in {
            "measure_known": "'colour', 'user', 'u', 1, null",
            "scope_known": "'spend', 'kind', 'k', 1, '1 h'",
            "name_fits": "'concurrency', 'global', 'x', 1, null",
            "limit_fits": "'concurrency', 'global', '', -1, null",
            "window_fits": "'rate', 'global', '', 1, null",
        }.items()
    },
    **{
        f"call_ledger_{rule}": "insert into callkeeper.call_ledger (job_id, generation, epoch, provider_kind, account,"
        " provider_model, started_at, until, price, reserved, status, cost, estimated, error, finished_at) select id, 1, 1, 'k',"
        f" 'a', 'm', now(), {values} from callkeeper.jobs"
        for rule, values in {
            "status_known": f"now(), {PRICED}, 1, 'lost', 1, false, null, now()",
            "open_has_no_end": f"now(), {PRICED}, 1, 'open', null, false, null, now()",
            "open_has_no_cost": f"now(), {PRICED}, 1, 'open', 1, false, null, null",
            "unknown_is_estimated": f"now(), {PRICED}, 1, 'unknown', 1, false, null, now()",
            "amounts_fit": f"now(), {PRICED}, -1, 'open', null, false, null, null",
            "price_is_two_integers": "now(), '{\"input\": 1.5, \"output\": 1}', 1, 'open', null, false, null, null",
            "error_is_short": f"now(), {PRICED}, 1, 'open', null, false, repeat('x', 501), null",
            "may_run_a_while": f"now() - interval '1 s', {PRICED}, 1, 'open', null, false, null, null",
        }.items()
    },
    **{
        f"emergency_stop_{rule}": "insert into callkeeper.emergency_stop (id, amount, per, warn_at, changed_by)"
        f" values ({values}, 'x')"
        for rule, values in {
            "is_one": "false, 1, '1 h', 1",
            "amount_fits": "true, 0, '1 h', 1",
            "window_fits": "true, 1, '1 s', 1",
            "warns_in_percent": "true, 1, '1 h', 0",
        }.items()
    },
    "emergency_stop_history_what_known": "insert into callkeeper.emergency_stop_history (what, amount, per, by)"
    " values ('ended', 1, '1 h', 'x')",
    "job_events_seq_counts_from_one": "update callkeeper.job_events set seq = 0",
    "webhook_deliveries_names_are_short": "insert into callkeeper.webhook_deliveries"
    " (provider_kind, delivery_id, provider_task_id) values ('k', '', 't')",
    "webhook_deliveries_applied_once": "insert into callkeeper.webhook_deliveries"
    " (provider_kind, delivery_id, provider_task_id, applied_at) values ('k', 'd', 't', now())",
    "job_signals_kind_known": "update callkeeper.job_signals set kind = 'go'",
    "call_receipts_source_known": "insert into callkeeper.call_receipts (job_id, provider_kind, provider_task_id,"
    " call_generation, call_key, source, epoch) select id, 'k', 't', 1, gen_random_uuid(), 'rumour', 1 from callkeeper.jobs",
    "assets_are_whole": "insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes, sha256)"
    " select id, 0, 'k', 'image/png', 0, repeat('a', 64) from callkeeper.jobs",
    "notices_end_once": "insert into callkeeper.notices (key, job_id, body, delivered_at, dead_at)"
    " select 'k', id, '{}', now(), now() from callkeeper.jobs",
    "consequences_end_once": "insert into callkeeper.consequences (key, job_id, effect, body, delivered_at, dead_at)"
    " select 'k', id, 'e', '{}', now(), now() from callkeeper.jobs",
}


def refused_by(steps: Steps, constraint: str, statement: str, **binds: Any) -> None:
    with pytest.raises(IntegrityError) as refusal:
        steps.by_hand(statement, **binds)
    assert refusal.value.orig.diag.constraint_name == constraint


@pytest.mark.parametrize("constraint", HALVES)
def test_no_half_transition_can_be_stored(steps: Steps, constraint: str) -> None:
    state, change = HALVES[constraint]
    special: dict[str, Callable[[], UUID]] = {"calling": lambda: steps.calling().job_id, "ambiguous": steps.ambiguous}
    job_id = steps.at(state) if isinstance(state, State) else special[state]()
    refused_by(steps, constraint, f"update callkeeper.jobs set {change} where id = :id", id=job_id)


@pytest.mark.parametrize("constraint", OTHER_HALVES)
def test_no_half_truth_can_be_stored_beside_a_job(steps: Steps, constraint: str) -> None:
    held = steps.running(account_id=steps.account(subscription=2, topup=2), price=3)
    steps.db.transact(signals.request_stop, held.job_id)
    refused_by(steps, constraint, OTHER_HALVES[constraint])


def test_every_check_of_the_catalog_has_a_case(steps: Steps) -> None:
    rows = steps.all(
        "select conname from pg_constraint where connamespace = 'callkeeper'::regnamespace and contype = 'c'"
    )
    assert {row["conname"] for row in rows} == set(HALVES) | set(OTHER_HALVES)


def unique_indexes() -> Iterator[str]:
    for table in metadata.tables.values():
        yield from (str(index.name) for index in table.indexes if index.unique)


DOUBLES: dict[str, str] = {
    "runs_one_per_key": run(", idempotency_key", ", 'k'") + ", ('t', 'f', 's', '1 h', '2 h', now(), now(), 'k')",
    "jobs_one_per_operation": f"with run as ({run()} returning id) update callkeeper.jobs"
    " set run_id = run.id, step = 's', stage = 's', operation_key = 's:f' from run",
    "budgets_one_each": "insert into callkeeper.budgets (measure, scope, at_most)"
    " select 'concurrency', 'global', n from (values (1), (2)) as twice (n)",
    "api_tokens_by_hash": "insert into callkeeper.api_tokens (token_hash, scope, user_id)"
    " select sha256('t'), 'user', 'u' from (values (1), (2)) as twice (n)",
    "call_ledger_one_a_generation": "insert into callkeeper.call_ledger (job_id, generation, epoch, provider_kind, account,"
    f" provider_model, started_at, until, price, reserved) select id, 1, 1, 'k', 'a', 'm', now(), now(), {PRICED}, 1"
    " from callkeeper.jobs, (values (1), (2)) as twice (n)",
    "webhook_deliveries_once": "insert into callkeeper.webhook_deliveries (provider_kind, delivery_id, provider_task_id)"
    " select 'k', 'd', 't' from (values (1), (2)) as twice (n)",
    "jobs_one_per_key": "update callkeeper.jobs set idempotency_key = 'k', user_id = null",
    "jobs_one_per_task": "update callkeeper.jobs set provider_task_id = 'one-task'",
    "job_events_one_terminal": "insert into callkeeper.job_events (job_id, seq, kind, attempt, epoch)"
    " select id, seq, 'failed', 1, 1 from callkeeper.jobs, (values (100), (101)) as twice (seq)",
    "job_signals_one_pending": "insert into callkeeper.job_signals (job_id, kind)"
    " select id, 'stop' from callkeeper.jobs, (values (1), (2)) as twice (n)",
    "call_receipts_once": "insert into callkeeper.call_receipts (job_id, provider_kind, provider_task_id, call_generation,"
    " call_key, source, epoch) select job_id, provider_kind, provider_task_id, 2, call_key, 'find', 9"
    " from callkeeper.call_receipts",
    "standalone_assets_one_per_position": "insert into callkeeper.standalone_assets (job_id, provider_kind,"
    " provider_task_id, position, object_key, content_type, size_bytes, sha256, visibility, watermark)"
    " select id, 'k', 't', 0, 'o', 'image/png', 1, repeat('a', 64), 'public', false from callkeeper.jobs,"
    " (values (1), (2)) as twice (n)",
    "assets_one_per_object": "insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes, sha256)"
    " select id, n, 'same', 'image/png', 1, repeat('a', 64) from callkeeper.jobs, (values (1), (2)) as twice (n)",
    "assets_one_per_position": "insert into callkeeper.assets (job_id, position, object_key, content_type, size_bytes,"
    " sha256) select id, 0, concat(id, n), 'image/png', 1, repeat('a', 64) from callkeeper.jobs,"
    " (values (1), (2)) as twice (n)",
}


@pytest.mark.parametrize("index", sorted(unique_indexes()))
def test_what_there_may_be_once_cannot_be_stored_twice(steps: Steps, index: str) -> None:
    for _ in range(2):
        steps.waiting()
    refused_by(steps, index, DOUBLES[index])


def test_a_task_of_another_job_is_refused_by_name(steps: Steps, db: Database) -> None:
    steps.waiting(task="theirs")
    held = steps.calling()
    before = changes(steps, held.job_id)
    with pytest.raises(Exception, match="belongs to another job") as refusal:
        db.once(calls.checkpoint_call, held, "theirs", first_poll=AT_ONCE)
    assert type(refusal.value).__name__ == "TaskTaken"
    found = steps.poll(steps.ambiguous())
    with pytest.raises(Exception, match="belongs to another job"):
        db.once(calls.adopt_call, found, "theirs")
    assert changes(steps, held.job_id) == before
