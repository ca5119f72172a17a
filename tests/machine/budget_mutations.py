"""The guards of budgets, turns and going away, and how to take each of them away."""

from pathlib import Path

from tests.machine.mutations import Mutant

ROOT = Path(__file__).parents[2]
TURNS = str(next((ROOT / "migrations/versions").glob("*_budgets.sql")).relative_to(ROOT))

LIMITS = "tests/budgets/test_limits.py"
LINE = "tests/budgets/test_line.py"
REFUSALS = "tests/budgets/test_submit.py"
HANDING = "tests/budgets/test_shutdown.py::test_only_what_is_held_is_handed_over"
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
    Mutant("never fits: queued", "store/settle.py", 'END_QUEUED = _end(jobs.c.id == sa.bindparam("held_id"), _QUEUED)', 'END_QUEUED = _end(jobs.c.id == sa.bindparam("held_id"))', LIMITS),
    Mutant("handed over: epoch", "store/shutdown.py", "j.epoch = held.epoch and ", "", HANDING),
    Mutant("handed over: token", "store/shutdown.py", "and j.lease_token = held.token ", "", HANDING),
    Mutant("handed over: may run again", "store/shutdown.py", _MAY, "", HANDING),
]  # fmt: skip
