"""Many due rows of mixed kinds, one provider among them that never answers: all are looked at, none is starved."""

import socket
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from actors.gates import Gates
from actors.reconcile import Pass
from tests.passes.conftest import Stand

# By share: a provider that answers, one that hangs, a live handler, a synchronous call with a dead worker, no message.
MADE = """
insert into callkeeper.jobs (job_type, queue, actor, mode, request_fingerprint, price, max_attempts, queue_limit, run_limit,
  available_at, queue_deadline_at, deadline_at, next_check_at, event_seq, epoch, status, provider_kind, provider_task_id,
  provider_call_started_at, call_key, call_handle, call_generation, next_poll_at, lease_owner, lease_token, lease_until)
select 'placard', 'calls', 'start_call', k.mode, 'backlog', 0, 3, '1 h', '1 h', now(), now() + interval '1 h',
  now() + interval '1 h', now() - interval '1 second' * (:count - n), 0, case k.status when 'queued' then 0 else 1 end, k.status,
  k.kind, case k.status when 'waiting' then k.kind || '-' || n end,
  case when k.called then now() - interval '40 minutes' end, case when k.called then gen_random_uuid() end,
  case when k.called then '{"account": "default", "model": "m", "target": "m", "output": "media"}'::jsonb end,
  case when k.called then 1 else 0 end, case k.status when 'waiting' then now() + interval '1 day' end,
  case k.status when 'running' then 'w' end, case k.status when 'running' then gen_random_uuid() end,
  case k.status when 'running' then now() + k.lease end
from generate_series(1, :count) n
join (values
  (0, 'async', 'waiting', 'replicate-prediction', true, interval '0'),
  (1, 'async', 'waiting', 'kie-standard', true, interval '0'),
  (2, 'local', 'running', 'local', true, interval '1 h'),
  (3, 'sync', 'running', 'anthropic-sync', true, interval '-1 second'),
  (4, 'async', 'queued', 'replicate-prediction', false, interval '0')
) as k (share, mode, status, kind, called, lease) on k.share = mod(n, 5)
"""


def backlog(stand: Stand, count: int) -> None:
    stand.steps.by_hand("set local statement_timeout = 0", MADE, count=count)


def due(stand: Stand) -> int:
    return stand.steps.count("callkeeper.jobs", "finished_at is null and next_check_at <= now()")


def passes_until_done(stand: Stand, *, budget: float, most: int) -> Counter[str]:
    """Passes within their budgets, back to back, until nothing is due."""
    total: Counter[str] = Counter()
    for _ in range(most):
        stand.rt.gates = Gates(stand.rt)
        total += stand.rt.submit(Pass(stand.rt).work(time.monotonic() + budget)).result()
        if not due(stand):
            break
    return total


@pytest.fixture
def deaf() -> Iterator[str]:
    """The address of a provider that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def hang(stand: Stand, deaf: str, *, poll_deadline: float) -> None:
    kinds = dict(stand.rt.options.kinds)
    kinds["kie-standard"] = kinds["kie-standard"].model_copy(update={"base_url": deaf, "poll_deadline": poll_deadline})
    kinds["replicate-prediction"] = kinds["replicate-prediction"].model_copy(update={"poll_deadline": 10.0})
    stand.rt.options = stand.rt.options.model_copy(update={"kinds": kinds})


def look_at_all(stand: Stand, count: int, *, budget: float, most: int) -> Counter[str]:
    backlog(stand, count)
    total = passes_until_done(stand, budget=budget, most=most)
    assert due(stand) == 0, total
    assert total["scanned"] >= count
    fifth = count // 5
    assert stand.steps.count("callkeeper.jobs", "error_code = 'reconcile_no_recovery'") == fifth, (
        "dead synchronous calls"
    )
    woken = "status = 'queued' and id::text in (select message -> 'args' ->> 0 from dramatiq.queue)"
    assert stand.steps.count("callkeeper.jobs", woken) == fifth
    assert stand.steps.count("callkeeper.jobs", "lease_owner = 'w' and status = 'running'") == fifth, "left alone"
    ended = stand.steps.count("callkeeper.jobs", "status = 'failed' and provider_kind like any (array['kie%', 'rep%'])")
    assert ended == 0, "what does not answer says nothing, and one miss is none"
    asked = "provider_kind = 'replicate-prediction' and status = 'waiting' and poll_misses + reconcile_deferrals >= 1"
    assert stand.steps.count("callkeeper.jobs", asked) == fifth, "each was asked about"
    stand.steps.by_hand("set local statement_timeout = 0", "delete from callkeeper.jobs")
    return total


def test_five_hundred_due_rows_with_an_unresponsive_provider_among_them(stand: Stand, deaf: str) -> None:
    hang(stand, deaf, poll_deadline=0.5)
    look_at_all(stand, 500, budget=120, most=2)


def test_a_provider_that_hangs_does_not_hold_up_the_one_that_answers(stand: Stand) -> None:
    """Its rows came first; they stand in a lane of their own."""
    hanging = [stand.waiting("postcard") for _ in range(3)]
    well = stand.waiting()
    stand.finish(well)
    stand.steps.by_hand(
        "update callkeeper.jobs set next_check_at = now() - interval '1 hour' where id = any(:ids)", ids=hanging
    )
    stand.sandbox.script({"rules": [{"when": {"route": "poll", "contains": "nano"}, "do": {"refuse": "hang"}}]})
    stand.pass_()
    assert stand.end(well) == ("completed", None)
    assert {stand.job(job)["status"] for job in hanging} == {"waiting"}
    assert {stand.job(job)["reconcile_deferrals"] for job in hanging} == {1}


@pytest.mark.slow
def test_ten_thousand_due_rows_within_two_periods(stand: Stand, deaf: str) -> None:
    """Two periods of five minutes, real deadlines and a real hang."""
    hang(stand, deaf, poll_deadline=10)
    started = time.monotonic()
    look_at_all(stand, 10_000, budget=240, most=2)
    assert time.monotonic() - started < 600
