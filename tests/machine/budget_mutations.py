"""The guards of budgets, turns and going away, and how to take each of them away."""

from pathlib import Path

from tests.machine.mutations import Mutant

ROOT = Path(__file__).parents[2]
TURNS = str(next((ROOT / "migrations/versions").glob("*_budgets.sql")).relative_to(ROOT))

LIMITS = "tests/budgets/test_limits.py"
LINE = "tests/budgets/test_line.py"
REFUSALS = "tests/budgets/test_submit.py"
HANDING = "tests/budgets/test_shutdown.py::test_only_what_is_held_is_handed_over"
LEDGER = "tests/budgets/test_ledger.py"
STOP = "tests/budgets/test_emergency_stop.py"
SLOTS = str(next((ROOT / "migrations/versions").glob("*_call_ledger.sql")).relative_to(ROOT))
_MAY = " and (j.provider_call_started_at is null or (j.retry_safe and j.mode <> 'async'))"

BUDGETS = [
    Mutant("next: nothing is limited", "store/line.py", "~jobs.c.blocked,\n        _UNLIMITED,", "~jobs.c.blocked,", LIMITS),
    Mutant("next: only what this process can run", "store/line.py", "and line.actor = any(:actors)", "and (true or line.actor = any(:actors))", LINE),
    Mutant("next: before its queue deadline", "store/line.py", "line.queue_deadline_at > now() or exists", "true or exists", LINE),
    Mutant("next: its own queue", "store/line.py", "where line.queue = (select own.queue from callkeeper.jobs own where own.id = :job_id)", "where (select own.queue from callkeeper.jobs own where own.id = :job_id) is not null", LINE),
    Mutant("ripe: for a second", "store/line.py", "available_at <= now() - interval '1 second'", "available_at <= now()", LINE),
    Mutant("turns: behind one's own last", TURNS, "select max(base) + 1.0 / coalesce((", "select min(base) - 1.0 / coalesce((", LINE),
    Mutant("turns: not before the head", TURNS, "select min(base) from (", "select 0 * min(base) from (", LINE),
    Mutant("start: budgets are locked", "store/admission.py", "'spend') and {_NEW}\n    order by b.id for update of b", "'spend') and {_NEW}\n    order by b.id", LIMITS),
    Mutant("start: what is full", "store/admission.py", "self.used + self.needs(price) > self.at_most", "self.used > self.at_most", LIMITS),
    Mutant("start: what never fits", "store/admission.py", "return self.needs(price) > self.at_most", "return self.needs(price) > self.at_most + 1", LIMITS),
    Mutant("start: paid for once", "store/admission.py", "return 0 if self.paid else price", "return price", LIMITS),
    Mutant("queue: its cap is locked", "store/admission.py", "'queued' and {_NEW} order by b.id for update of b", "'queued' and {_NEW} order by b.id", REFUSALS),
    Mutant("submit: budgets are asked", "store/submit.py", "(:admitted or not exists (select from callkeeper.budgets where measure <> 'weight'))", "(:admitted or true)", REFUSALS),
    Mutant("released: where there is room", "store/parking.py", "limit least(greatest(room.jobs, 0), 500)", "limit 500", LIMITS),
    Mutant("released: not those on their way", "store/parking.py", "limit b.at_most\n", "limit 0\n", LIMITS),
    Mutant("released: on behind those that were looked at", "store/parking.py", "and j.parked_on > :after", "and (j.parked_on > '' or :after = '')", LIMITS),
    Mutant("never fits: queued", "store/settle.py", 'END_QUEUED = _end(jobs.c.id == sa.bindparam("held_id"), _QUEUED)', 'END_QUEUED = _end(jobs.c.id == sa.bindparam("held_id"))', LIMITS),
    Mutant("handed over: epoch", "store/shutdown.py", "j.epoch = held.epoch and ", "", HANDING),
    Mutant("handed over: token", "store/shutdown.py", "and j.lease_token = held.token ", "", HANDING),
    Mutant("handed over: may run again", "store/shutdown.py", _MAY, "", HANDING),
    Mutant("ledger: no stop is set", "store/call_ledger.py", "_beginning(*FIRST_CALL, _UNLIMITED)", "_beginning(*FIRST_CALL)", STOP),
    Mutant("ledger: no stop is set, next call", "store/call_ledger.py", "_beginning(*_NEXT_CALL, _UNLIMITED)", "_beginning(*_NEXT_CALL)", STOP),
    Mutant("ledger: a next call has one before", "store/call_ledger.py", "(HELD, CALL_STARTED, NO_TASK, ", "(HELD, NO_TASK, ", LEDGER),
    Mutant("ledger: no next call of an asynchronous one", "store/call_ledger.py", """, jobs.c.mode != sa.literal_column("'async'"))""", ")", LEDGER),
    Mutant("ledger: booked once", "store/call_ledger.py", "and status = 'open'\n      returning job_id, cost", "\n      returning job_id, cost", LEDGER),
    Mutant("ledger: its own generation", "store/call_ledger.py", "and generation = :generation and status = 'open'\n      returning job_id", "and :generation > 0 and status = 'open'\n      returning job_id", LEDGER),
    Mutant("ledger: a late word changes nothing", "store/call_ledger.py", "and generation = :generation and status = 'open'\n    returning id", "and generation = :generation\n    returning id", LEDGER),
    Mutant("lost calls: past their time", "store/call_ledger.py", "where status = 'open' and until <= now()\n      order", "where status = 'open'\n      order", LEDGER, also=((" and l.until <= now()", ""),)),
    Mutant("lost calls: each once", "store/call_ledger.py", " for update skip locked", "", LEDGER, also=((" and l.status = 'open' and l.until", " and l.until"),)),
    Mutant("emergency stop: locked", "store/emergency_stop.py", "emergency_stop for update", "emergency_stop", STOP),
    Mutant("emergency stop: reserves count", "store/emergency_stop.py", "stop.used + stop.reserved + needed > stop.amount", "stop.used + needed > stop.amount", STOP),
    Mutant("emergency stop: what never fits", "store/emergency_stop.py", "if stop.used + needed > stop.amount", "if False", STOP),
    Mutant("emergency stop: one alert", "store/emergency_stop.py", "coalesce(warned_at, clock_timestamp()) where latched_at is null", "coalesce(warned_at, clock_timestamp())", STOP, also=(("if stop.latched_at is not None:\n        return True", "if False:\n        return True"),)),
    Mutant("emergency stop: reached, it is not released", "store/emergency_stop.py", "_reasoned(by, why)\n    if stop.reached", "_reasoned(by, why)\n    if False", STOP),
    Mutant("emergency stop: released where it latched", "store/emergency_stop.py", "if stop is None or stop.latched_at is None", "if stop is None", STOP, also=(("latched_at = null where latched_at is not null", "latched_at = null"),)),
    Mutant("emergency stop: the window's hours", "store/emergency_stop.py", "where h.hour > clock_timestamp() - s.per - interval '1 hour'", "", STOP),
    Mutant("slots: a stray call takes one", SLOTS, "where l.status = ''open'' and l.until", "where false and l.status = ''open'' and l.until", LEDGER),
    Mutant("slots: its job's own call takes no other", SLOTS, "j.status = ''running'' and j.call_generation = l.generation", "j.status = ''queued'' and j.call_generation = l.generation", LEDGER),
    Mutant("slots: before its next call, too", SLOTS, " and j.provider_call_started_at is not null'\n", "'\n", LEDGER),
]  # fmt: skip
