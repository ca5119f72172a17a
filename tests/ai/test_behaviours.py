"""The behaviours of AI tasks, by their numbers in docs/ai-tasks.md, through real workers against the sandbox."""

import json
import threading
from typing import Any
from uuid import UUID

import pytest

import actors
from actors.ai import profiles
from actors.settings import Settings
from tests.ai.conftest import CHOICES, Tasks
from tests.ai.kit import CREDITS
from tests.chaos.harness import until

SERVER_ERROR = {"reply": {"status": 500, "body": {"type": "error", "error": {"type": "api_error", "message": "no"}}}}
GOOD = {"text": '{"choice": "praise"}'}
MISFIT = {"answer": "misfits"}
MALFORMED = {"answer": "malformed"}


def test_t01_one_key_twice_at_once_is_one_task_and_one_charge(crew: Tasks) -> None:
    ids: list[UUID] = []
    at_once = threading.Barrier(4)

    def submit() -> None:
        at_once.wait()
        ids.append(crew.classify("once", key="k"))

    threads = [threading.Thread(target=submit) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert (len(ids), len(set(ids))) == (4, 1)
    assert crew.fleet.until_done() == {"completed": 1}
    assert crew.fleet.charged(ids[0]) == ("committed", CREDITS)
    assert crew.fleet.creates("once") == 1
    crew.fleet.check()


def test_t02_a_key_with_another_question_is_refused_and_changes_nothing(crew: Tasks) -> None:
    first = crew.classify("asked", key="k")
    before = crew.fleet.until_status(first, "completed")
    with pytest.raises(actors.IdempotencyConflict):
        crew.classify("asked otherwise", key="k")
    # The same one in another order of its fields is the same.
    again = crew.fleet.submit("priced", key="k", model="small", choices=CHOICES, text="asked", task="classify")
    assert (again, crew.fleet.status(first)) == (first, before)
    assert crew.fleet.one("select count(*) as n from callkeeper.jobs")["n"] == 1


def test_t06_stopped_while_queued_it_makes_no_call(tasks: Tasks) -> None:
    job_id = tasks.classify("unasked")
    assert tasks.fleet.stop(job_id) is actors.State.CANCELLED
    later = tasks.classify("after it")
    tasks.work()
    tasks.fleet.until_status(later, "completed")
    assert (tasks.fleet.status(job_id), tasks.fleet.creates("unasked")) == ("cancelled", 0)
    assert tasks.calls(job_id) == []
    assert tasks.fleet.charged(job_id) == ("refunded", 0)
    tasks.fleet.check()


def test_t07_stopped_during_the_call_it_ends_at_once_and_gives_its_hold_back(crew: Tasks) -> None:
    crew.script({"reply_delay": 60})
    job_id = crew.classify("slow")
    until(lambda: crew.fleet.creates("slow") == 1, what="the call")
    crew.fleet.stop(job_id)
    crew.fleet.until_status(job_id, "cancelled", within=10)
    job = crew.fleet.job(job_id)
    assert (job["error_code"], job["result"]) == ("cancelled", None)
    assert crew.fleet.charged(job_id) == ("refunded", 0)
    (call,) = crew.calls(job_id)
    assert (call["status"], call["error"]) == ("open", "cancelled"), "nobody knows whether the provider hung up too"
    crew.fleet.check()


def test_t08_a_stop_and_a_late_answer_end_it_in_one_way(tasks: Tasks) -> None:
    fleet = tasks.fleet
    job_id = tasks.classify("late")
    worker = tasks.work(env={"CALLKEEPER_LEASE": "60", "PAUSE_AT": "after_accept"})
    worker.until_frozen()
    fleet.stop(job_id)
    worker.thaw()
    ended = fleet.until_status(job_id, "completed", "cancelled")
    job = fleet.job(job_id)
    assert (job["result"] is not None) is (ended == "completed") is (job["error_code"] is None)
    assert fleet.charged(job_id) == (("committed", CREDITS) if ended == "completed" else ("refunded", 0))
    assert sum(kind in ("completed", "cancelled", "failed") for kind in fleet.events(job_id)) == 1
    fleet.check()


def test_t08_a_stop_after_the_end_changes_nothing(crew: Tasks) -> None:
    job_id = crew.classify("early")
    crew.fleet.until_status(job_id, "completed")
    assert crew.fleet.stop(job_id) is actors.State.COMPLETED
    assert crew.fleet.charged(job_id) == ("committed", CREDITS)
    assert crew.result(job_id)["output"]["choice"] in CHOICES
    crew.fleet.check()


def test_t09_a_stop_and_a_late_failure_is_a_stop(tasks: Tasks) -> None:
    """The provider's refusal is in hand when somebody asks for the end."""
    tasks.script({"times": 3, "answer": "misfits"})
    job_id = tasks.classify("refused late")
    worker = tasks.work(env={"CALLKEEPER_LEASE": "60", "PAUSE_AT": "after_result"})
    worker.until_frozen()
    tasks.fleet.stop(job_id)
    worker.thaw()
    tasks.fleet.until_status(job_id, "cancelled")
    assert tasks.fleet.job(job_id)["error_code"] == "cancelled"
    tasks.fleet.check()


def test_t11_two_failures_and_a_success_are_three_attempts_and_three_rows(crew: Tasks) -> None:
    crew.script({**SERVER_ERROR, "times": 2}, GOOD)
    job_id = crew.classify("third time")
    crew.fleet.until_status(job_id, "completed")
    assert crew.fleet.job(job_id)["attempt"] == 3
    assert [call["status"] for call in crew.calls(job_id)] == ["failed", "failed", "ok"]
    assert crew.result(job_id)["output"] == {"choice": "praise"}
    assert (crew.result(job_id)["calls"], crew.fleet.creates("third time")) == (3, 1)
    began = [call["started_at"] for call in crew.calls(job_id)]
    assert (began[1] - began[0]).total_seconds() >= 1
    assert (began[2] - began[1]).total_seconds() >= 2
    crew.fleet.check()


def test_t12_three_failures_are_the_end(crew: Tasks) -> None:
    crew.script({**SERVER_ERROR, "times": 9})
    job_id = crew.classify("never well")
    crew.fleet.until_status(job_id, "failed")
    job = crew.fleet.job(job_id)
    assert (job["error_code"], job["attempt"], len(crew.calls(job_id))) == ("provider_unavailable", 3, 3)
    assert crew.fleet.charged(job_id) == ("refunded", 0)
    crew.fleet.check()


def test_t13_an_answer_that_does_not_fit_fails_at_once_after_two_repairs(crew: Tasks) -> None:
    crew.script({**MISFIT, "times": 9})
    job_id = crew.classify("misfit")
    crew.fleet.until_status(job_id, "failed")
    job = crew.fleet.job(job_id)
    assert (job["error_code"], job["attempt"]) == ("invalid_output", 1)
    assert [call["generation"] for call in crew.calls(job_id)] == [1, 2, 3]
    assert crew.fleet.creates("misfit") == 3
    assert crew.fleet.events(job_id).count("call_started") == 3
    # Where, and by which rule; nothing that the model or the user wrote.
    assert "the answer: additionalProperties" in job["error_message"]
    assert not any(word in job["error_message"] for word in ("unasked", *CHOICES))
    crew.fleet.check()


def test_a_repaired_answer_completes_in_one_attempt(crew: Tasks) -> None:
    crew.script(MALFORMED, MISFIT, GOOD)
    job_id = crew.classify("mended", model="other")
    crew.fleet.until_status(job_id, "completed")
    calls, result = crew.calls(job_id), crew.result(job_id)
    assert (crew.fleet.job(job_id)["attempt"], len(calls), result["calls"]) == (1, 3, 3)
    assert result["usage"]["input_tokens"] == sum(call["input_tokens"] for call in calls) > 0
    assert result["usage"]["cost_micro_usd"] == sum(call["cost"] for call in calls) > 0
    assert len({call["price"]["input"] for call in calls}) == 1


def test_another_try_after_what_was_paid_for_in_an_attempt_costs_an_attempt(crew: Tasks) -> None:
    """A provider that is full is waited for without one, but not where its waiting room has to be paid for each time."""
    full = {"reply": {"status": 429, "body": {"type": "error", "error": {"type": "rate_limit_error", "message": "no"}}}}
    crew.script(full, MISFIT, full, GOOD)
    job_id = crew.classify("full house")
    crew.fleet.until_status(job_id, "completed", within=30)
    assert (crew.fleet.job(job_id)["attempt"], crew.result(job_id)["calls"]) == (2, 4)
    assert [call["status"] for call in crew.calls(job_id)] == ["failed", "ok", "failed", "ok"]
    assert crew.calls(job_id)[0]["cost"] == 0


def test_no_json_at_all_is_tried_in_another_attempt(crew: Tasks) -> None:
    crew.script({**MALFORMED, "times": 2}, {"stop_reason": "max_tokens"}, GOOD)
    job_id = crew.classify("prose")
    crew.fleet.until_status(job_id, "completed")
    assert (crew.fleet.job(job_id)["attempt"], crew.result(job_id)["calls"]) == (2, 4)
    assert crew.result(job_id)["usage"]["cost_micro_usd"] == sum(call["cost"] for call in crew.calls(job_id))


def test_a_loop_that_never_brings_json_fails_for_it(crew: Tasks) -> None:
    crew.script({**MALFORMED, "times": 20})
    job_id = crew.classify("only prose")
    crew.fleet.until_status(job_id, "failed")
    job = crew.fleet.job(job_id)
    assert (job["error_code"], job["attempt"], len(crew.calls(job_id))) == ("loop_failed", 3, 9)


@pytest.mark.parametrize(
    ("do", "code"), [({"stop_reason": "refusal"}, "content_policy"), ({"reply": {"status": 413}}, "request_too_large")]
)
def test_what_will_never_pass_is_asked_once(crew: Tasks, do: dict[str, Any], code: str) -> None:
    crew.script({**do, "times": 9})
    job_id = crew.classify("no")
    crew.fleet.until_status(job_id, "failed")
    job = crew.fleet.job(job_id)
    assert (job["error_code"], job["attempt"], len(crew.calls(job_id))) == (code, 1, 1)


def test_t17_a_result_whose_saving_fails_is_saved_again_and_not_asked_for_again(crew: Tasks) -> None:
    fleet = crew.fleet
    fleet.do("create sequence public.saves")
    fleet.do(
        "create function public.fail_twice() returns trigger language plpgsql as $$ begin"
        " if nextval('public.saves') < 3 then raise exception 'not now' using errcode = '40001'; end if;"
        " return new; end $$"
    )
    fleet.do(
        "create trigger fail_twice before insert on callkeeper.job_events for each row"
        " when (new.kind = 'completed') execute function public.fail_twice()"
    )
    try:
        job_id = crew.classify("saved")
        fleet.until_status(job_id, "completed")
    finally:
        fleet.do("drop trigger fail_twice on callkeeper.job_events")
        fleet.do("drop function public.fail_twice")
    assert fleet.one("select last_value from public.saves")["last_value"] == 3
    assert (fleet.creates("saved"), fleet.job(job_id)["attempt"]) == (1, 1)


def test_t21_a_changed_model_fails_before_any_call_and_a_changed_label_or_price_does_not(tasks: Tasks) -> None:
    fleet = tasks.fleet
    changed, relabelled, gone = (tasks.classify("pinned", model=name) for name in ("small", "large", "other"))
    new = {
        "small": {"kind": "anthropic-sync", "model": "claude-smaller", "price_in": 1, "price_out": 1},
        "large": {"kind": "kie-llm", "model": "claude-large", "price_in": 7, "price_out": 9, "label": "Our best"},
    }
    tasks.work(env={"CALLKEEPER_AI_PROFILES": json.dumps(new), "OTHER_IS_GONE": "1"})
    assert fleet.until_done() == {"failed": 2, "completed": 1}
    for job_id in (changed, gone):
        assert (fleet.job(job_id)["error_code"], fleet.job(job_id)["attempt"]) == ("model_changed", 1)
        assert tasks.calls(job_id) == []
    (call,) = tasks.calls(relabelled)
    assert call["price"] == {"input": 7, "output": 9}
    assert fleet.creates("pinned") == 1
    fleet.check()


def test_t22_another_default_leaves_queued_tasks_with_their_model(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "settings", lambda: Settings(ai_profile="small"))
    job_id = tasks.fleet.submit("priced", task="classify", text="by default", choices=CHOICES)
    tasks.work(env={"CALLKEEPER_AI_PROFILE": "large"})
    tasks.fleet.until_status(job_id, "completed")
    (call,) = tasks.calls(job_id)
    assert (tasks.result(job_id)["profile"], call["provider_model"]) == ("small", "claude-small")


def test_t31_a_crash_right_after_the_settlement_leaves_nobody_waiting(tasks: Tasks) -> None:
    fleet, thanked = tasks.fleet, tasks.fleet.folder / "thanked"
    fleet.env["THANKED"] = str(thanked)
    job_id = tasks.classify("told")
    tasks.work(env={"CRASH_AT": "after_settle"}).until_dead()
    assert fleet.status(job_id) == "completed"
    frames = list(actors.follow(fleet.db.engine, job_id))
    assert frames[-1].kind == "completed", "a follower reads the rows"
    tasks.work()
    until(lambda: thanked.exists() and thanked.read_text().split() == [str(job_id)], what="the consequence")
    assert fleet.creates("told") == 1


def test_t32_a_lost_answer_is_asked_for_again_only_where_that_was_declared(tasks: Tasks) -> None:
    fleet = tasks.fleet
    tasks.script({"reply_delay": 60, "times": 2})
    pure = tasks.classify("ask again")
    once = tasks.classify("ask never again", job_type="asked-once")
    assert [fleet.job(job_id)["retry_safe"] for job_id in (pure, once)] == [True, False]
    worker = tasks.work()
    until(lambda: fleet.creates("ask again") == fleet.creates("ask never again") == 1, what="both calls")
    worker.kill()
    tasks.work()
    assert fleet.until_done() == {"completed": 1, "failed": 1}
    assert (fleet.status(pure), fleet.creates("ask again")) == ("completed", 2)
    assert not fleet.job(pure)["retry_safe"], "once more, and no more"
    assert (fleet.job(once)["error_code"], fleet.creates("ask never again")) == ("reconcile_no_recovery", 1)
    fleet.check()
