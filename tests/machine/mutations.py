"""Every guard of the store, and how to take it away. `by` names the tests that must notice: the state machine, unless
the guard only shows in a race, in a plan, or where a CHECK constraint that says the same is gone.
"""

from typing import NamedTuple

MACHINE = "tests/machine/test_machine.py"
GUARDS = "tests/store/test_guards.py"
RACES = "tests/store/test_races.py"
SETTLEMENT = "tests/store/test_settlement.py"
SUBMIT = "tests/store/test_submit.py"
STATEMENTS = "tests/store/test_statements.py"
QUEUE = "tests/store/test_queue.py"
INBOX = "tests/store/test_inbox.py"
GATES = "tests/store/test_gates.py"
TOKENS = "tests/store/test_tokens.py"
RECEIPTS = "tests/store/test_receipts.py"
DEADLINES = "tests/store/test_deadlines.py"
FOLLOW = "tests/store/test_follow.py"


class Mutant(NamedTuple):
    """`old` stands exactly once in the file; `also` are further changes that belong to this one."""

    name: str
    file: str
    old: str
    new: str
    by: str = MACHINE
    also: tuple[tuple[str, str], ...] = ()


def always(guard: str) -> str:
    """The guard without its effect, its binds still in place."""
    return f'sa.or_(sa.literal_column("true"), {guard})'


def core(name: str, file: str, guard: str, *, before: str = "", after: str = "", by: str = MACHINE) -> Mutant:
    """A conjunct written in Core, found by what stands around it."""
    return Mutant(name, file, before + guard + after, before + always(guard) + after, by)


_HELD = 'HELD = sa.and_(\n    jobs.c.id == sa.bindparam("held_id"),\n    jobs.c.epoch == sa.bindparam("held_epoch"),\n'
_POLL = "POLL_" + _HELD
_LAPSED = _HELD.replace("HELD =", "LAPSED =")
_ID = 'jobs.c.id == sa.bindparam("held_id")'
_EPOCH = 'jobs.c.epoch == sa.bindparam("held_epoch")'


def _of(name: str, block: str, guard: str, *, by: str = MACHINE) -> Mutant:
    """A conjunct of one of the three sets of guards, which begin alike."""
    start = "\n\n" + block
    return Mutant(name, "store/guards.py", start, start.replace(guard, always(guard)), by)


LEASES = [
    _of("HELD: id", _HELD, _ID),
    _of("HELD: epoch", _HELD, _EPOCH),
    core("HELD: token", "store/guards.py", 'jobs.c.lease_token == sa.bindparam("held_token")'),
    Mutant(
        "HELD: running", "store/guards.py",
        'jobs.c.lease_token == sa.bindparam("held_token"),\n    is_state(State.RUNNING),',
        'jobs.c.lease_token == sa.bindparam("held_token"),', GUARDS,
    ),
    _of("POLL_HELD: id", _POLL, _ID),
    _of("POLL_HELD: epoch", _POLL, _EPOCH),
    core("POLL_HELD: token", "store/guards.py", 'jobs.c.poll_token == sa.bindparam("held_token")'),
    Mutant(
        "POLL_HELD: waiting", "store/guards.py",
        'jobs.c.poll_token == sa.bindparam("held_token"),\n    is_state(State.WAITING),',
        'jobs.c.poll_token == sa.bindparam("held_token"),', GUARDS,
    ),
    _of("LAPSED: id", _LAPSED, _ID),
    _of("LAPSED: epoch", _LAPSED, _EPOCH),
    Mutant(
        "LAPSED: running", "store/guards.py", "is_state(State.RUNNING),\n    jobs.c.lease_until < NOW,",
        "jobs.c.lease_until < NOW,", GUARDS,
    ),
    Mutant(
        "LAPSED: lease_until", "store/guards.py", "is_state(State.RUNNING),\n    jobs.c.lease_until < NOW,",
        "is_state(State.RUNNING),",
    ),
    Mutant("RENEW: id", "store/jobs.py", "where j.id = held.id and j.epoch = held.epoch and j.lease_token", "where j.epoch = held.epoch and j.lease_token", GUARDS, also=(("join callkeeper.jobs j on j.id = h.id", "cross join callkeeper.jobs j"),)),
    Mutant("RENEW: epoch", "store/jobs.py", "j.epoch = held.epoch and ", "", also=(("j.epoch = h.epoch and ", ""),)),
    Mutant("RENEW: token", "store/jobs.py", "and j.lease_token = held.token\n", "\n", also=(("and j.lease_token = h.token and", "and"),)),
    Mutant("RENEW: running", "store/jobs.py", "j.status || '' = 'running' and j.lease_until > now()", "j.lease_until > now()", GUARDS, also=((" and j.status || '' = 'running'\n      order by", "\n      order by"),)),
    Mutant("RENEW: lease_until", "store/jobs.py", "j.status || '' = 'running' and j.lease_until > now()", "j.status || '' = 'running'"),
    Mutant("a claim is a new epoch", "store/jobs.py", '"epoch": jobs.c.epoch + 1,', '"epoch": jobs.c.epoch + 0,'),
    Mutant(
        "a claim is a new token", "store/jobs.py", '"lease_token": sa.func.gen_random_uuid(),', '"lease_token": jobs.c.id,',
    ),
    Mutant("a refused write is counted", "store/engine.py", "                self._count(lost)\n", ""),
]  # fmt: skip

CLAIM = [
    core("claim: id", "store/jobs.py", 'jobs.c.id == sa.bindparam("job_id")', after=",\n        is_state(State.QUEUED)"),
    Mutant("claim: queued", "store/jobs.py", "        is_state(State.QUEUED),\n        jobs.c.available_at", "        jobs.c.available_at"),
    core("claim: available_at", "store/jobs.py", "jobs.c.available_at <= NOW"),
    core("claim: queue_deadline_at", "store/jobs.py", "jobs.c.queue_deadline_at > NOW"),
    core("attempt: expected", "store/guards.py", 'jobs.c.attempt == sa.bindparam("expected_attempt")'),
    core("attempt: one left", "store/guards.py", "jobs.c.attempt < jobs.c.max_attempts"),
    Mutant("requeue_counted: attempt left", "store/jobs.py", "sa.and_(HELD, ATTEMPT_LEFT)", 'sa.and_(HELD, sa.or_(sa.literal_column("true"), ATTEMPT_LEFT))'),
    Mutant("requeue_counted: holder", "store/jobs.py", "sa.and_(HELD, ATTEMPT_LEFT)", 'sa.and_(sa.or_(sa.literal_column("true"), HELD), jobs.c.id == sa.bindparam("held_id"), ATTEMPT_LEFT)'),
    Mutant("requeue: holder", "store/jobs.py", "queued_again(HELD,", 'queued_again(sa.and_(sa.or_(sa.literal_column("true"), HELD), jobs.c.id == sa.bindparam("held_id")),'),
    Mutant("requeue_lost: lapsed", "store/jobs.py", "sa.and_(LAPSED, ATTEMPT_LEFT, NO_CALL)", 'sa.and_(sa.or_(sa.literal_column("true"), LAPSED), jobs.c.id == sa.bindparam("held_id"), ATTEMPT_LEFT, NO_CALL)'),
    Mutant("requeue_lost: attempt left", "store/jobs.py", "sa.and_(LAPSED, ATTEMPT_LEFT, NO_CALL)", f"sa.and_(LAPSED, {always('ATTEMPT_LEFT')}, NO_CALL)", GUARDS),
    Mutant("requeue_lost: no call", "store/jobs.py", "sa.and_(LAPSED, ATTEMPT_LEFT, NO_CALL)", "sa.and_(LAPSED, ATTEMPT_LEFT)"),
    Mutant("requeue_lost, safe: lapsed", "store/jobs.py", "sa.and_(LAPSED, ATTEMPT_LEFT, jobs.c.retry_safe", 'sa.and_(sa.or_(sa.literal_column("true"), LAPSED), jobs.c.id == sa.bindparam("held_id"), ATTEMPT_LEFT, jobs.c.retry_safe'),
    Mutant("requeue_lost, safe: attempt left", "store/jobs.py", "sa.and_(LAPSED, ATTEMPT_LEFT, jobs.c.retry_safe", f"sa.and_(LAPSED, {always('ATTEMPT_LEFT')}, jobs.c.retry_safe", GUARDS),
    Mutant("requeue_lost, safe: retry_safe", "store/jobs.py", "ATTEMPT_LEFT, jobs.c.retry_safe,", "ATTEMPT_LEFT,"),
    Mutant("requeue_lost, safe: once", "store/jobs.py", "    retry_safe=ONCE_MORE,\n    queue", "    queue", GUARDS),
    Mutant("requeue_unknown: safe", "store/jobs.py", "sa.and_(HELD, ATTEMPT_LEFT, jobs.c.retry_safe)", "sa.and_(HELD, ATTEMPT_LEFT)", GUARDS),
    Mutant("requeue_unknown: once", "store/jobs.py", "attempt=jobs.c.attempt + 1, retry_safe=ONCE_MORE\n", "attempt=jobs.c.attempt + 1\n", GUARDS),
    Mutant("requeue_overdue: once", "store/deadlines.py", "retry_safe=sa.or_(ONCE_MORE, sa.and_(jobs.c.retry_safe, NO_CALL)),", "", DEADLINES),
    Mutant("requeue_lost, safe: not async", "store/jobs.py", """, jobs.c.mode != sa.literal_column("'async'")""", ""),
    Mutant("increment_attempt_if: open", "store/jobs.py", 'sa.bindparam("job_id"), IS_OPEN, ATTEMPT_LEFT', 'sa.bindparam("job_id"), ATTEMPT_LEFT'),
    core("increment_attempt_if: id", "store/jobs.py", 'jobs.c.id == sa.bindparam("job_id")', after=", IS_OPEN"),
    Mutant("increment_attempt_if: attempt left", "store/jobs.py", "IS_OPEN, ATTEMPT_LEFT", f"IS_OPEN, {always('ATTEMPT_LEFT')}"),
]  # fmt: skip

CALL = [
    Mutant("intent: no call yet", "store/calls.py", "FIRST_CALL = (HELD, NO_CALL)", "FIRST_CALL = (HELD,)"),
    Mutant("intent: a new generation", "store/calls.py", "jobs.c.call_generation + 1", "jobs.c.call_generation + 0"),
    Mutant("checkpoint: call started", "store/calls.py", ".where(HELD, CALL_STARTED, NO_TASK)", ".where(HELD, NO_TASK)"),
    Mutant("checkpoint: no task yet", "store/calls.py", ".where(HELD, CALL_STARTED, NO_TASK)", ".where(HELD, CALL_STARTED)"),
    Mutant("ambiguous: call started", "store/calls.py", "HELD, CALL_STARTED, NO_TASK, _ASYNC", "HELD, NO_TASK, _ASYNC"),
    Mutant("ambiguous: no task yet", "store/calls.py", "HELD, CALL_STARTED, NO_TASK, _ASYNC", "HELD, CALL_STARTED, _ASYNC"),
    Mutant("ambiguous: asynchronous", "store/calls.py", "HELD, CALL_STARTED, NO_TASK, _ASYNC", "HELD, CALL_STARTED, NO_TASK"),
    Mutant("resume_lost: call started", "store/calls.py", "LAPSED, CALL_STARTED, _ASYNC", "LAPSED, _ASYNC"),
    Mutant("resume_lost: asynchronous", "store/calls.py", "LAPSED, CALL_STARTED, _ASYNC", "LAPSED, CALL_STARTED"),
    Mutant("resume_lost: lapsed", "store/calls.py", "LAPSED, CALL_STARTED, _ASYNC", 'sa.or_(sa.literal_column("true"), LAPSED), jobs.c.id == sa.bindparam("held_id"), CALL_STARTED, _ASYNC'),
    Mutant("return_result: task known", "store/calls.py", ".where(HELD, TASK_KNOWN)", ".where(HELD)"),
    Mutant("adopt: no task yet", "store/calls.py", ".where(POLL_HELD, NO_TASK)", ".where(POLL_HELD)"),
    Mutant("a task has one job: by name", "store/calls.py", 'if name == "jobs_one_per_task" else error', 'if name == "nothing" else error'),
    Mutant(
        "receipt with the task: on conflict", "store/calls.py",
        '.on_conflict_do_nothing()\n        .cte("receipt")', '.cte("receipt")',
    ),
    Mutant("receipt kept late: on conflict", "store/receipts.py", "on conflict do nothing\n      returning", "returning"),
    Mutant("receipt kept late: id", "store/receipts.py", "where id = :job_id", "where id is not distinct from :job_id or true"),
    Mutant("return_result, counted: task known", "store/calls.py", "HELD, TASK_KNOWN, jobs.c.import", "HELD, jobs.c.import"),
    Mutant("return_result, counted: budget", "store/calls.py", 'jobs.c.import_failures + 1 < sa.bindparam("at_most", type_=sa.Integer)', 'sa.or_(sa.literal_column("true"), jobs.c.import_failures + 1 < sa.bindparam("at_most", type_=sa.Integer))'),
    Mutant("a new call counts its imports anew", "store/jobs.py", '    "import_failures": sa.literal_column("0"),\n', "", GUARDS),
]  # fmt: skip

_DUE = "where status = 'waiting' and next_poll_at <= now() and provider_kind = any(:kinds)"
_DUE_OUTER = "where j.id = due.id and j.status || '' = 'waiting' and j.next_poll_at <= now()"
_SKIP = "      for update skip locked\n"
POLL = [
    Mutant("due polls: waiting, in the index", "store/polls.py", _DUE, _DUE.replace("status = 'waiting' and ", ""), STATEMENTS),
    Mutant("due polls: kinds", "store/polls.py", _DUE, _DUE.replace("= any(:kinds)", "<> all(array['']) or '' = any(:kinds)")),
    Mutant(
        "due polls: next_poll_at, both", "store/polls.py", _DUE, _DUE.replace(" and next_poll_at <= now()", ""),
        also=((_DUE_OUTER, _DUE_OUTER.replace(" and j.next_poll_at <= now()", "")),),
    ),
    Mutant("due polls: skip locked", "store/polls.py", _SKIP, "      for update\n", RACES),
    Mutant(
        "due polls: lock and outer guard", "store/polls.py", _SKIP, "",
        RACES, also=((_DUE_OUTER, "where j.id = due.id"),),
    ),
    Mutant("record_polls: id", "store/polls.py", "where j.id = noted.id and j.epoch", "where j.epoch"),
    Mutant("record_polls: epoch", "store/polls.py", "j.epoch = noted.epoch and ", ""),
    Mutant("record_polls: token", "store/polls.py", "j.poll_token = noted.token and ", "", also=(("      where j.poll_token = n.token\n", ""),)),
    Mutant("record_polls: in the order of ids", "store/polls.py", "      order by j.id\n      for no key update of j\n    ), moved", "    ), moved", RACES),
    Mutant("record_polls: waiting", "store/polls.py", "j.poll_token = noted.token and j.status || '' = 'waiting'", "j.poll_token = noted.token", GUARDS),
    Mutant("record_polls: lets go", "store/polls.py", "noted.delay, poll_token = null,", "noted.delay,"),
    Mutant("record_polls: progress is a share", "store/polls.py", "when noted.progress between 0 and 1 then greatest(j.progress, noted.progress) else j.progress", "when true then greatest(j.progress, noted.progress) else j.progress"),
    Mutant("report_progress: a share", "store/jobs.py", "sa.case((_IS_SHARE, sa.func.greatest(jobs.c.progress, _SHARE)), else_=jobs.c.progress)", "sa.func.greatest(jobs.c.progress, _SHARE)", GUARDS),
    Mutant("result known: task known", "store/polls.py", "    .where(POLL_HELD, TASK_KNOWN)\n    .values(\n", "    .where(POLL_HELD)\n    .values(\n"),
    Mutant("result known: lets go", "store/polls.py", "        poll_token=None,\n", ""),
    core("take_result: id", "store/polls.py", 'jobs.c.id == sa.bindparam("job_id")'),
    Mutant("take_result: waiting", "store/polls.py", "        is_state(State.WAITING),\n        TASK_KNOWN,", "        TASK_KNOWN,"),
    Mutant("take_result: task known", "store/polls.py", "        TASK_KNOWN,\n        jobs.c.result_known_at", "        jobs.c.result_known_at", GUARDS),
    Mutant("take_result: result known", "store/polls.py", "        jobs.c.result_known_at.is_not(None),\n", ""),
    Mutant("take_polled: holder", "store/polls.py", "    .where(POLL_HELD, TASK_KNOWN)\n    .values(status", '    .where(sa.or_(sa.literal_column("true"), POLL_HELD), jobs.c.id == sa.bindparam("held_id"), TASK_KNOWN)\n    .values(status'),
    Mutant("take_polled: task known", "store/polls.py", "    .where(POLL_HELD, TASK_KNOWN)\n    .values(status", "    .where(POLL_HELD)\n    .values(status"),
    core("poll_now: kind", "store/polls.py", 'jobs.c.provider_kind == sa.bindparam("kind")'),
    core("poll_now: task", "store/polls.py", 'jobs.c.provider_task_id == sa.bindparam("task_id")'),
    Mutant("poll_now: waiting", "store/polls.py", "        is_state(State.WAITING),\n        jobs.c.next_poll_at > NOW", "        jobs.c.next_poll_at > NOW", GUARDS),
    core("poll_now: not due yet", "store/polls.py", "jobs.c.next_poll_at > NOW"),
]  # fmt: skip

_SETTLED = "charge.job_id = u.job_id and u.status = 'reserved'"
_COST = "least(coalesce(:cost, u.reserved_subscription + u.reserved_topup), u.reserved_subscription + u.reserved_topup)"
_CANCELS = ":abandons_call and provider_task_id is not null and result_known_at is null and mode = 'async' as leaves"
SETTLE = [
    Mutant("end_held: holder", "store/settle.py", "END_HELD = _end(HELD)", 'END_HELD = _end(sa.or_(sa.literal_column("true"), HELD), jobs.c.id == sa.bindparam("held_id"))'),
    Mutant("end_polled: holder", "store/settle.py", "END_POLLED = _end(POLL_HELD)", 'END_POLLED = _end(sa.or_(sa.literal_column("true"), POLL_HELD), jobs.c.id == sa.bindparam("held_id"))'),
    Mutant("end_lapsed: lapsed", "store/settle.py", "END_LAPSED = _end(LAPSED)", 'END_LAPSED = _end(sa.or_(sa.literal_column("true"), LAPSED), jobs.c.id == sa.bindparam("held_id"))'),
    core("cancel_at_rest: id", "store/settle.py", 'jobs.c.id == sa.bindparam("held_id")', after=", _AT_REST"),
    core("cancel_at_rest: at rest", "store/settle.py", "_AT_REST", before='jobs.c.id == sa.bindparam("held_id"), '),
    Mutant("cancel_at_rest: task known", "store/settle.py", "sa.and_(is_state(State.WAITING), jobs.c.provider_task_id.is_not(None))", "is_state(State.WAITING)"),
    Mutant("cancel_at_rest: waiting", "store/settle.py", "sa.and_(is_state(State.WAITING), jobs.c.provider_task_id.is_not(None))", "jobs.c.provider_task_id.is_not(None)"),
    core("end_overdue: id", "store/settle.py", 'jobs.c.id == sa.bindparam("held_id")', before="_AS_SEEN = ("),
    core("end_overdue: epoch", "store/settle.py", 'jobs.c.epoch == sa.bindparam("held_epoch")'),
    Mutant("end_overdue: open", "store/settle.py", "*_AS_SEEN, IS_OPEN, _PAST_DEADLINE", "*_AS_SEEN, _PAST_DEADLINE"),
    Mutant("end_overdue: past a deadline", "store/settle.py", "*_AS_SEEN, IS_OPEN, _PAST_DEADLINE", "*_AS_SEEN, IS_OPEN"),
    Mutant("end_overdue: queue deadline of the queued", "store/settle.py", "sa.and_(_QUEUED, jobs.c.queue_deadline_at <= NOW)", "jobs.c.queue_deadline_at <= NOW"),
    Mutant("settled: reserved", "store/aftermath.py", _SETTLED, "charge.job_id = u.job_id", SETTLEMENT),
    Mutant("paid: settled", "store/aftermath.py", "from charge join settled on settled.job_id = charge.job_id", "from charge", SETTLEMENT),
    Mutant("charge: never above the reservation", "store/aftermath.py", _COST, "coalesce(:cost, u.reserved_subscription + u.reserved_topup)"),
    Mutant("charge: only the completed", "store/aftermath.py", "select case when :completed", "select case when :completed or true"),
    Mutant("charge: subscription first", "store/aftermath.py", "least(c.charged, u.reserved_subscription) as committed_subscription", "greatest(c.charged - u.reserved_topup, 0) as committed_subscription", also=(("greatest(c.charged - u.reserved_subscription, 0) as committed_topup", "least(c.charged, u.reserved_topup) as committed_topup"),)),
    Mutant("signals are consumed", "store/aftermath.py", "where job_id = :job_id and consumed_at is null", "where job_id = :job_id and consumed_at is not null"),
    Mutant("response receipt: an id", "store/aftermath.py", "where :provider_id is not null and call_key is not null", "where call_key is not null"),
    Mutant("response receipt: a call", "store/aftermath.py", "where :provider_id is not null and call_key is not null", "where :provider_id is not null", SETTLEMENT),
    Mutant("response receipt: on conflict", "store/aftermath.py", "call_key is not null\n      on conflict do nothing", "call_key is not null"),
    Mutant("notice: on conflict", "store/aftermath.py", ") from job\n      on conflict (key) do nothing", ") from job", GUARDS),
    Mutant("upstream cancel: abandoned", "store/aftermath.py", _CANCELS, _CANCELS.replace(":abandons_call", "(:abandons_call or true)")),
    Mutant("upstream cancel: task known", "store/aftermath.py", _CANCELS, _CANCELS.replace("provider_task_id is not null and ", "")),
    Mutant("upstream cancel: not ended", "store/aftermath.py", _CANCELS, _CANCELS.replace(" and result_known_at is null", "")),
    Mutant("upstream cancel: asynchronous", "store/aftermath.py", _CANCELS, _CANCELS.replace(" and mode = 'async'", ""), GUARDS),
    Mutant("upstream cancel: on conflict", "store/aftermath.py", "where cancels\n      on conflict (key) do nothing", "where cancels", GUARDS),
    Mutant("upstream cancel: where the provider can", "store/aftermath.py", "      where cancels\n", "", SETTLEMENT),
    Mutant("orphan's cancel: not the job's own task", "store/aftermath.py", "(leaves or r.provider_task_id is distinct from job.provider_task_id)", "true"),
    Mutant("orphan's watch: on conflict", "store/aftermath.py", "join running_on o on o.job_id = job.id\n      on conflict do nothing", "join running_on o on o.job_id = job.id", RECEIPTS),
    Mutant("orphan's cancel: asynchronous", "store/aftermath.py", "where mode = 'async' and (leaves", "where (leaves"),
    Mutant("orphan's cancel: this call", "store/aftermath.py", "r.job_id = job.id and r.call_key = job.call_key", "r.job_id = job.id"),
    Mutant("late receipt: the job has ended", "store/receipts.py", "where job.status in ('completed', 'failed', 'timed_out', 'cancelled') and job.mode", "where job.mode"),
    Mutant("late receipt: asynchronous", "store/receipts.py", " and job.mode = 'async'", ""),
    Mutant("late receipt: a cancel where the provider can", "store/receipts.py", "      where coalesce((call_handle ->> 'cancels')::boolean, true)\n", "", RECEIPTS),
    Mutant("called back too late: a cancel where the provider can", "store/inbox.py", "named.orphan and coalesce((named.call_handle ->> 'cancels')::boolean, true)", "named.orphan", RECEIPTS),
    Mutant("a watch ends: its own spend", "store/watches.py", "        and coalesce(s.provider_task_id, ended.provider_task_id) = ended.provider_task_id\n        and cast(", "        and cast(", RECEIPTS),
    Mutant("a watch keeps: its own spend", "store/watches.py", "        and coalesce(s.provider_task_id, ended.provider_task_id) = ended.provider_task_id\n    )", "    )", RECEIPTS),
    Mutant("late receipt: not the job's own task", "store/receipts.py", "\n        and job.provider_task_id is distinct from r.provider_task_id", "", RECEIPTS),
    Mutant("late receipt: this call", "store/receipts.py", " and r.call_key = job.call_key", ""),
    Mutant("late receipt: the ending is waited for", "store/receipts.py", "      for no key update\n", "", RECEIPTS),
    Mutant("called back too late: the job has ended", "store/inbox.py", "j.provider_task_id is null and j.status in ('failed', 'timed_out', 'cancelled') as orphan", "j.provider_task_id is null as orphan", RECEIPTS),
    Mutant("end_overdue: its clock runs", "store/settle.py", "_PAST_DEADLINE, ~CLOCK_STANDS)", "_PAST_DEADLINE)", GATES),
    Mutant("clock stands: of its own kind", "store/guards.py", "provider_gates.c.provider_kind == jobs.c.provider_kind, provider", "provider", GATES),
    Mutant("overrun: completed", "store/aftermath.py", "where :completed and :cost > price", "where (:completed or true) and :cost > price", SETTLEMENT),
    Mutant("overrun: above the price", "store/aftermath.py", "where :completed and :cost > price", "where :completed and :cost is not null"),
    Mutant("overrun: one alert that counts", "store/aftermath.py", "set times = callkeeper.alerts.times + 1", "set times = callkeeper.alerts.times"),
    Mutant("last resort", "store/settle.py", "    except _UNWRITABLE as error:", "    except ZeroDivisionError as error:", SETTLEMENT),
    Mutant("last resort: never for a success", "store/settle.py", "outcome.status is State.COMPLETED or is_transient(error)", "is_transient(error)", SETTLEMENT),
]  # fmt: skip

_PAYER = "where id = :account_id and balance_subscription + balance_topup >= :price"
_GATE = "where not exists (select from used) and (:account_id is null or exists (select from payer))"
_KEY_CONFLICT = "\n      on conflict do nothing"
_USED = "where coalesce(user_id, '') = coalesce(:user_id, '') and idempotency_key = :idempotency_key\n        and status in ('queued', 'running', 'waiting', 'completed')"
SUBMITTING = [
    Mutant("submit: credits available", "store/submit.py", _PAYER, _PAYER.replace(">= :price", ">= :price - 5")),
    Mutant("submit: both pools", "store/submit.py", _PAYER, _PAYER.replace("balance_subscription + balance_topup", "balance_topup")),
    Mutant("submit: payer locked", "store/submit.py", ">= :price\n      for no key update", ">= :price", SUBMIT),
    Mutant("submit: a used key waits for nobody", "store/submit.py", _GATE, _GATE.replace("not exists (select from used) and ", ""), SUBMIT),
    Mutant("submit: payer's gate", "store/submit.py", _GATE, "where not exists (select from used)"),
    Mutant("submit: on conflict", "store/submit.py", _KEY_CONFLICT, "", SUBMIT),
    Mutant("submit: used by this user", "store/submit.py", _USED, _USED.replace("coalesce(user_id, '') = coalesce(:user_id, '') and ", "")),
    Mutant("submit: used key", "store/submit.py", _USED, _USED.replace("idempotency_key = :idempotency_key", "(idempotency_key = :idempotency_key or :idempotency_key is not null)")),
    Mutant("submit: used and not freed", "store/submit.py", _USED, _USED.replace("'completed')", "'completed', 'failed')"), SUBMIT),
    core("winner: user", "store/submit.py", """sa.func.coalesce(jobs.c.user_id, sa.literal_column("''")) == sa.bindparam("owner")"""),
    core("winner: key", "store/submit.py", 'jobs.c.idempotency_key == sa.bindparam("key")'),
    Mutant("winner: not freed", "store/submit.py", """for s in ("queued", "running", "waiting", "completed")""", """for s in ("queued", "running", "waiting", "completed", "failed", "cancelled", "timed_out")"""),
    Mutant("winner: same request", "store/submit.py", "if row.request_fingerprint != job.fingerprint:", "if row is None:"),
    Mutant("grant: on conflict", "store/ledger.py", "    .on_conflict_do_update(index_elements=[accounts.c.id], set_=_ADDED)\n", ""),
    Mutant("grant: not negative", "store/ledger.py", "subscription < 0 or topup < 0", "subscription is None", SUBMIT),
    Mutant("stop: this user's job", "store/signals.py", " and (cast(:user_id as text) is null or user_id = :user_id)", " and (true or cast(:user_id as text) is null)"),
    Mutant("stop: an open job", "store/signals.py", "select id, 'stop' from job where status in ('queued', 'running', 'waiting')", "select id, 'stop' from job"),
    Mutant("stop: locks the job", "store/signals.py", "      for update\n", "", RACES),
    Mutant("stop: on conflict", "store/signals.py", "      on conflict (job_id, kind) where consumed_at is null do nothing\n", ""),
]  # fmt: skip

_UNOWNED = """      where not exists (
        select from callkeeper.call_receipts r
        where r.provider_kind = named.provider_kind and r.provider_task_id = named.provider_task_id
      )
"""
_NAMED = (
    "where j.provider_kind = d.provider_kind and j.call_generation = d.call_generation and j.call_key is not null\n"
)
UNASKED = [
    Mutant("callback: kept once", "store/inbox.py", '    .on_conflict_do_nothing(index_elements=["provider_kind", "delivery_id"])\n', "", INBOX),
    Mutant("callback: applied once", "store/inbox.py", "where id = :delivery and applied_at is null", "where id = :delivery", INBOX, (("where w.id = d.id and w.applied_at is null", "where w.id = d.id"),)),
    Mutant("callback: names its own kind", "store/inbox.py", _NAMED, _NAMED.replace("j.provider_kind = d.provider_kind and ", ""), INBOX),
    Mutant("callback: names its own generation", "store/inbox.py", _NAMED, _NAMED.replace("j.call_generation = d.call_generation and ", ""), INBOX),
    Mutant("callback: no second task for a call", "store/inbox.py", "        and (j.provider_task_id is null or j.provider_task_id = d.provider_task_id)\n", "", INBOX),
    Mutant("callback: no task that has its job", "store/inbox.py", _UNOWNED, "", INBOX),
    Mutant("callback: its own task", "store/inbox.py", "join callkeeper.jobs j on j.provider_kind = d.provider_kind and j.provider_task_id = d.provider_task_id\n      union", "join callkeeper.jobs j on j.provider_kind = d.provider_kind\n      union", INBOX),
    core("gate: kind", "store/gates.py", 'provider_gates.c.provider_kind == sa.bindparam("kind")', by=GATES),
    core("gate: account", "store/gates.py", 'provider_gates.c.account == sa.bindparam("account")', by=GATES),
    core("gate: still closed", "store/gates.py", "provider_gates.c.closed_until > NOW", by=GATES),
    Mutant("gate: only lengthened", "store/gates.py", "greatest(g.closed_until, excluded.closed_until)", "excluded.closed_until", GATES),
    Mutant("gate: the graver reason stays", "store/gates.py", "case when g.closed_until > now() and g.stops_clocks then g.reason else excluded.reason end", "excluded.reason", GATES),
    Mutant("gate: clocks stand until it opens", "store/gates.py", "g.stops_clocks or excluded.stops_clocks", "excluded.stops_clocks", GATES),
    Mutant("reopen: this account", "store/gates.py", "where provider_kind = :kind and account = :account and (failures", "where provider_kind = :kind and (failures", GATES),
    Mutant("reopen: once", "store/gates.py", "and account = :account and (failures > 0 or stops_clocks)", "and account = :account", GATES, (("g.account = was.account and (g.failures > 0 or g.stops_clocks)", "g.account = was.account"), ("where stops_clocks) as reopened", "where true) as reopened"))),
    Mutant("reopen: a rate limit stopped no clock", "store/gates.py", "where o.stops_clocks and j.status", "where j.status", GATES),
    Mutant("reopen: jobs of that kind", "store/gates.py", " and j.provider_kind = :kind", "", GATES),
    Mutant("reopen: its own time only", "store/gates.py", "greatest(o.closed_at, j.created_at)", "o.closed_at", GATES),
]  # fmt: skip

_OWED_INNER = ".where(_open(table), table.c.available_at <= sa.func.now())"
_OWED_OUTER = ".where(table.c.key == due.c.key, _still_open(table), table.c.available_at <= sa.func.now())"
_QUIET = "where status in ('queued', 'running', 'waiting') and next_check_at <= now()\n"
_QUIET_OUTER = "where j.id = due.id and j.status || '' in ('queued', 'running', 'waiting') and j.next_check_at <= now()"
OUTBOX = [
    Mutant("outbox claim: not ended", "store/outbox.py", _OWED_INNER, _OWED_INNER.replace("_open(table), ", ""), GUARDS),
    Mutant("outbox claim: due, both", "store/outbox.py", _OWED_INNER, ".where(_open(table))", also=((_OWED_OUTER, ".where(table.c.key == due.c.key, _still_open(table))"),)),
    Mutant("outbox claim: skip locked", "store/outbox.py", ".with_for_update(skip_locked=True)", ".with_for_update()", RACES),
    Mutant("outbox claim: lock and outer guard", "store/outbox.py", "        .with_for_update(skip_locked=True)\n", "", RACES, also=((_OWED_OUTER, ".where(table.c.key == due.c.key)"),)),
    core("outbox later or dead: key", "store/outbox.py", 'table.c.key == sa.bindparam("owed_key")'),
    core("outbox later or dead: token", "store/outbox.py", 'table.c.claim_token == sa.bindparam("token")'),
    Mutant("outbox later or dead: not ended", "store/outbox.py", "            _open(table),\n        )\n", "        )\n", GUARDS),
    Mutant("outbox delivered: key", "store/outbox.py", ".where(table.c.key == done.c.key, table.c", ".where(table.c"),
    Mutant("outbox delivered: token", "store/outbox.py", "table.c.claim_token == done.c.token, _still_open(table)", "_still_open(table)"),
    Mutant("outbox delivered: not ended", "store/outbox.py", "table.c.claim_token == done.c.token, _still_open(table)", "table.c.claim_token == done.c.token", GUARDS),
    Mutant("quiet: open, in the index", "store/passes.py", _QUIET, "where next_check_at <= now()\n", STATEMENTS),
    Mutant("quiet: due, both", "store/passes.py", _QUIET, _QUIET.replace(" and next_check_at <= now()", ""), also=((_QUIET_OUTER, _QUIET_OUTER.replace(" and j.next_check_at <= now()", "")),)),
    Mutant("quiet: skip locked", "store/passes.py", _SKIP, "      for update\n", RACES),
    Mutant("lapsed leases: running, in the index", "store/passes.py", "is_state(State.RUNNING), jobs.c.lease_until < NOW", "jobs.c.lease_until < NOW", STATEMENTS),
    Mutant("lapsed leases: lapsed", "store/passes.py", "is_state(State.RUNNING), jobs.c.lease_until < NOW", "is_state(State.RUNNING)"),
    core("send_again: ids", "store/passes.py", 'jobs.c.id == sa.any_(sa.bindparam("job_ids", type_=pg.ARRAY(pg.UUID)))'),
    Mutant("send_again: queued", "store/passes.py", "        is_state(State.QUEUED),\n", ""),
    core("send_again: due", "store/passes.py", "jobs.c.available_at <= NOW"),
]  # fmt: skip

LOOKS_BY = "tests/store/test_looks.py"
_PROBED = "where id = any(:job_ids) and status || '' = 'waiting' and (poll_token is null or next_poll_at <= now())"
_PROBED_OUTER = (
    "where j.id = chosen.id and j.status || '' = 'waiting' and (j.poll_token is null or j.next_poll_at <= now())"
)
_EXHAUSTED = 'is_state(State.WAITING), jobs.c.reconcile_attempts >= sa.bindparam("cap"), ~CLOCK_STANDS'
_STRANDED = "is_state(State.QUEUED, State.WAITING),"
LOOKING = [
    Mutant("probe: named", "store/looks.py", _PROBED, _PROBED.replace("id = any(:job_ids)", "cast(:job_ids as uuid[]) is not null"), LOOKS_BY),
    Mutant("probe: waiting, both", "store/looks.py", _PROBED, _PROBED.replace(" and status || '' = 'waiting'", ""), LOOKS_BY, also=((_PROBED_OUTER, _PROBED_OUTER.replace(" and j.status || '' = 'waiting'", "")),)),
    Mutant("probe: nobody asks, both", "store/looks.py", _PROBED, "where id = any(:job_ids) and status || '' = 'waiting'", LOOKS_BY, also=((_PROBED_OUTER, "where j.id = chosen.id and j.status || '' = 'waiting'"),)),
    Mutant("counted: only open jobs", "store/looks.py", "where j.id = seen.id and j.status || '' in ('queued', 'running', 'waiting')", "where j.id = seen.id", LOOKS_BY),
    Mutant("quiet: busy kinds stay due", "store/passes.py", "and (provider_kind is null or provider_kind <> all(:busy))", "and (cast(:busy as text[]) is not null)", LOOKS_BY),
    Mutant("quiet: no kind is never busy", "store/passes.py", "(provider_kind is null or provider_kind <> all(:busy))", "(provider_kind <> all(:busy))", LOOKS_BY),
    Mutant("exhausted: waiting", "store/settle.py", _EXHAUSTED, _EXHAUSTED.replace("is_state(State.WAITING)", "IS_OPEN"), LOOKS_BY),
    Mutant("exhausted: at the cap", "store/settle.py", _EXHAUSTED, _EXHAUSTED.replace(">= sa.bind", ">= 0 * sa.bind"), LOOKS_BY),
    Mutant("exhausted: its clock runs", "store/settle.py", _EXHAUSTED, _EXHAUSTED.replace(", ~CLOCK_STANDS", ""), LOOKS_BY),
    Mutant("stranded: at rest", "store/settle.py", _STRANDED, "IS_OPEN,", LOOKS_BY),
    Mutant("stranded: past its threshold", "store/settle.py", "+ jobs.c.stale_after <= NOW,", "<= NOW,", LOOKS_BY),
    Mutant("effects: in their turn", "store/outbox.py", "        .where(*_its_turn(table))\n", "", LOOKS_BY),
    Mutant("spend: a call was started", "store/leftovers.py", "where id = :job_id and provider_call_started_at is not null and mode <> 'local'", "where id = :job_id", LOOKS_BY),
    Mutant("terms are frozen: visibility", "migrations/versions/0005_reconciliation.sql", "or old.visibility <> new.visibility ", "", "tests/store/test_verbs.py"),
]  # fmt: skip

_FINISHES = "where message_id = any(%(messages)s::uuid[]) and state = 'consumed' and worker_id = %(worker)s\n"


def _finishing(name: str, start: str) -> list[Mutant]:
    old = start + _FINISHES
    return [
        Mutant(f"{name}: consumed", "store/queue.py", old, old.replace("state = 'consumed' and ", ""), QUEUE),
        Mutant(f"{name}: by this worker", "store/queue.py", old, old.replace("worker_id = %(worker)s", "%(worker)s is not null"), QUEUE),
    ]  # fmt: skip


_MESSAGES_DUE = "where queue_name = %(queue)s and state = 'queued' and available_at <= now()"
MESSAGES = [
    Mutant("message claim: its queue", "store/queue.py", _MESSAGES_DUE, _MESSAGES_DUE.replace("queue_name = %(queue)s", "%(queue)s <> ''"), QUEUE),
    Mutant("message claim: queued, both", "store/queue.py", _MESSAGES_DUE, _MESSAGES_DUE.replace(" and state = 'queued'", ""), QUEUE, also=(("where q.message_id = due.message_id and q.state = 'queued'", "where q.message_id = due.message_id"),)),
    Mutant("message claim: due", "store/queue.py", _MESSAGES_DUE, _MESSAGES_DUE.replace(" and available_at <= now()", ""), QUEUE),
    Mutant("message claim: skip locked", "store/queue.py", "  for update skip locked\n", "  for update\n", QUEUE),
    Mutant("message claim: lock and outer guard", "store/queue.py", "  for update skip locked\n", "", QUEUE, also=(("where q.message_id = due.message_id and q.state = 'queued'", "where q.message_id = due.message_id"),)),
    *_finishing("ack", "delete from dramatiq.queue\n"),
    *_finishing("hand back", "    available_at = greatest(available_at, clock_timestamp() + %(delay)s)\n"),
    *_finishing("reject", "set state = 'rejected', worker_id = null, mtime = clock_timestamp()\n"),
    Mutant("tick: on conflict", "store/queue.py", "  on conflict do nothing\n  returning due_at", "  returning due_at", QUEUE),
    Mutant("send: on conflict", "store/queue.py", "  on conflict (message_id) do nothing\n", "", QUEUE),
]  # fmt: skip

ACCESS = [
    Mutant("identify: not revoked", "store/tokens.py", "    api_tokens.c.revoked_at.is_(None),\n", "", TOKENS),
    Mutant("identify: not expired", "store/tokens.py", "    sa.or_(api_tokens.c.expires_at.is_(None), api_tokens.c.expires_at > NOW),\n", "", TOKENS),
    Mutant("revoke: once", "store/tokens.py", ", api_tokens.c.revoked_at.is_(None))\n    .values", ")\n    .values", TOKENS),
    Mutant("page: its user's", "store/pages.py", "where user_id = :user_id\n", "where :user_id <> ''\n", TOKENS),
    Mutant("page: behind the last", "store/pages.py", "and (created_at, id)\n        < (", "and (created_at, id)\n        <= (", TOKENS),
]  # fmt: skip


_LATE_ID, _LATE_EPOCH = 'jobs.c.id == sa.bindparam("held_id")', 'jobs.c.epoch == sa.bindparam("held_epoch")'
_SAID = "and j.status = 'running'\n      and f.ephemeral_until > now()"
FOLLOWING = [
    core("overdue: running", "store/deadlines.py", "is_state(State.RUNNING)", before=".where(", after=", DUE_BY", by=DEADLINES),
    core("overdue: late", "store/deadlines.py", "DUE_BY <= NOW", by=DEADLINES),
    Mutant("overdue: its clock runs", "store/deadlines.py", "DUE_BY <= NOW, ~CLOCK_STANDS", "DUE_BY <= NOW", DEADLINES),
    core("requeue_overdue: id", "store/deadlines.py", _LATE_ID, by=DEADLINES),
    core("requeue_overdue: epoch", "store/deadlines.py", _LATE_EPOCH, by=DEADLINES),
    core("requeue_overdue: late", "store/deadlines.py", "jobs.c.attempt_deadline_at <= NOW", by=DEADLINES),
    core("requeue_overdue: not the whole job", "store/deadlines.py", "jobs.c.deadline_at > NOW", by=DEADLINES),
    Mutant("requeue_overdue: its clock runs", "store/deadlines.py", "    ~CLOCK_STANDS,\n)", ")", DEADLINES),
    Mutant("requeue_overdue: attempt left", "store/deadlines.py", "_ATTEMPT_OVERDUE, ATTEMPT_LEFT, _MAY", 'sa.and_(_ATTEMPT_OVERDUE, sa.or_(sa.literal_column("true"), ATTEMPT_LEFT)), _MAY', DEADLINES),
    core("requeue_overdue: may run again", "store/deadlines.py", "_MAY_RUN_AGAIN", before="ATTEMPT_LEFT, ", by=DEADLINES),
    core("requeue_overdue: safe", "store/deadlines.py", "jobs.c.retry_safe", before="sa.and_(", after=", jobs.c.mode", by=DEADLINES),
    core("requeue_overdue: nothing upstream", "store/deadlines.py", "jobs.c.mode != sa.literal_column(\"'async'\")", by=DEADLINES),
    Mutant("end_overdue: the attempt's deadline", "store/settle.py", "DUE_BY <= NOW)", "jobs.c.deadline_at <= NOW)", DEADLINES),
    core("milestone: holder", "store/milestones.py", "HELD", before=".where(", by=GUARDS),
    Mutant("say: job", "store/follow.py", "where j.id = :held_id and j.epoch", "where j.epoch", FOLLOW),
    Mutant("say: epoch", "store/follow.py", "and j.epoch = :held_epoch ", "and cast(:held_epoch as integer) > 0 ", FOLLOW),
    Mutant("say: token", "store/follow.py", "and j.lease_token = :held_token ", "and cast(:held_token as uuid) is not null ", FOLLOW),
    Mutant("say: somebody follows", "store/follow.py", _SAID, _SAID.replace("f.ephemeral_until > now()", "true"), FOLLOW),
]  # fmt: skip

_BUDGET = "sa.and_(ATTEMPT_LEFT, jobs.c.run_id.is_not(None), jobs.c.recreates < sa.literal_column(str(RECREATES)))"
ROLL_UP = "tests/runs/test_roll_up.py"
RESUME = "tests/runs/test_resume.py"
RUNS = [
    Mutant("claim: not held back", "store/jobs.py", "CLOCK_STANDS),\n        ~jobs.c.blocked,", "CLOCK_STANDS),", ROLL_UP),
    Mutant("send_again: not held back", "store/passes.py", "        ~jobs.c.blocked,\n", "", ROLL_UP),
    Mutant("settle: the run is locked", "store/settle.py", "        roll_up.lock_run(connection, row.run_id)\n", "", ROLL_UP),
    Mutant("settle: the run is rolled up", "store/settle.py", "        settle_run(connection, row.run_id)\n", "        pass\n", ROLL_UP),
    Mutant("settle_run: the rest hears", "store/settle.py", "    roll_up.signal_rest(connection, run_id)\n", "", ROLL_UP),
    Mutant("roll up: required ones only", "store/roll_up.py", "status <> 'completed' and not open and not optional", "status <> 'completed' and not open", ROLL_UP),
    Mutant("wait for more: its own run's", "store/roll_up.py", "where run_id = :run_id and status = 'queued' and blocked and :step", "where cast(:run_id as uuid) is not null and status = 'queued' and blocked and :step", ROLL_UP),
    Mutant("wait for more: what depends on it", "store/roll_up.py", "blocked and :step = any(depends_on)", "blocked and cast(:step as text) is not null", ROLL_UP),
    Mutant("wait for more: nothing waits for itself", "store/roll_up.py", "and step <> all(cast(:added as text[]))", "and true", ROLL_UP),
    Mutant("roll up: nothing open", "store/roll_up.py", "set status = case when d.open > 0 then 'running' else", "set status = case when d.open < 0 then 'running' else", ROLL_UP),
    Mutant("roll up: left out degrades", "store/roll_up.py", "case when seen.left_out > 0 then 3 else 1 end", "1", ROLL_UP),
    Mutant("roll up: an outage stops the clock", "store/roll_up.py", "when r.deadline_at <= now() and not seen.clock_stands then 'timed_out'", "when r.deadline_at <= now() then 'timed_out'", ROLL_UP),
    Mutant("roll up: who failed is told", "store/roll_up.py", "from moved m where m.status in ('failed', 'timed_out')", "from moved m where m.status = 'completed'", ROLL_UP),
    Mutant("roll up: once a run", "store/roll_up.py", "from moved m where m.status in ('failed', 'timed_out')\n      on conflict (key) do nothing", "from moved m where m.status in ('failed', 'timed_out')", RESUME),
    Mutant("release: needed ones have ended", "store/roll_up.py", "s.step is null or s.open or (s.status <> 'completed' and not s.optional)", "s.step is null or (s.status <> 'completed' and not s.optional and not s.open)", ROLL_UP),
    Mutant("release: not of a run that is ending", "store/roll_up.py", "if row.ending is None and row.open:", "if row.open:", ROLL_UP, also=(("r.status = 'running' and r.ending is null and j.status", "r.status = 'running' and j.status"),)),
    Mutant("progress: only what was earned", "store/roll_up.py", "when status = 'completed' or (optional and not open) then 1", "when not open then 1", "tests/runs/test_in_flight.py"),
    Mutant("reopen: failed", "store/resume.py", "r.status = 'failed' and r.failed_nodes", "r.status <> 'running' and r.failed_nodes", RESUME),
    Mutant("reopen: sole cause", "store/resume.py", "r.failed_nodes = array[late.step]", "late.step = any(r.failed_nodes)", RESUME),
    Mutant("reopen: key not used anew", "store/resume.py", "and other.status in ('running', 'completed')", "and other.status = 'lost'", RESUME),
    Mutant("resume: free of charge", "store/resume.py", 'price=0 if free else old["price"],', 'price=old["price"],', RESUME),
    Mutant("resume: the budget goes with it", "store/resume.py", '    connection.execute(CARRY_BUDGET, {"run_id": row.id, "round": row.round})\n', "", RESUME),
    Mutant("recreate: budget", "store/second_tries.py", _BUDGET, "sa.and_(ATTEMPT_LEFT, jobs.c.run_id.is_not(None))", RESUME),
    Mutant("reopened gate: runs get their time back", "store/gates.py", "set deadline_at = r.deadline_at + running.lost", "set deadline_at = r.deadline_at", ROLL_UP),
]  # fmt: skip

MUTANTS = [
    *LEASES,
    *CLAIM,
    *CALL,
    *POLL,
    *SETTLE,
    *SUBMITTING,
    *UNASKED,
    *OUTBOX,
    *LOOKING,
    *MESSAGES,
    *ACCESS,
    *FOLLOWING,
    *RUNS,
]
