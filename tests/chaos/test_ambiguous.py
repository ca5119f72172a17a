"""Creates whose outcome nobody knows, and answers that are not what was hoped for: resolved, never repeated.

One fleet works on all of a script's cases at once; the sandbox tells them apart by their prompts.
"""

from datetime import timedelta
from typing import Any

import pytest

from providers.sandbox import Sandbox
from tests.chaos.conftest import MakeFleet
from tests.chaos.harness import Fleet, until
from tests.chaos.kit import PICTURE, WORDS

PAGE = "<html>bad gateway</html>"
LOST: dict[str, dict[str, Any]] = {
    "hangs": {"accept_then": "hang"},
    "drops": {"accept_then": "drop"},
    "is cut": {"accept_then": "cut"},
    "says 502": {"accept_then": {"status": 502, "body": PAGE}},
    "says 502 bare": {"accept_then": {"status": 502}},
    "says 500 in its own words": {"accept_then": {"status": 500, "body": {"detail": "internal error", "status": 500}}},
    "names no id": {"accept_then": {"status": 201, "body": {}}},
}
NEVER_TAKEN: dict[str, dict[str, Any]] = {"is dropped untaken": {"refuse": "drop"}, "hangs untaken": {"refuse": "hang"}}


def rules(cases: dict[str, dict[str, Any]], *, route: str = "create") -> list[dict[str, Any]]:
    # Each prompt ends with a full stop, so that no case's words are the beginning of another's.
    return [{"name": name, "when": {"route": route, "contains": f"{name}."}, "do": do} for name, do in cases.items()]


def quiet_until(fleet: Fleet, job_id: Any) -> Any:
    (asked,) = fleet.rows(
        "select created_at from callkeeper.job_events where job_id = :id and kind = 'call_started'", id=job_id
    )
    return asked["created_at"] + timedelta(seconds=2.5)  # the harness's send_deadline and visibility_lag


def test_what_the_provider_accepted_is_found_and_completed(crew: Fleet) -> None:
    crew.sandbox.script({"rules": rules(LOST | NEVER_TAKEN)})
    jobs = {name: crew.picture(f"{name}.") for name in LOST | NEVER_TAKEN}
    crew.until_done(within=40)
    fired = crew.sandbox.stats()["rules"]
    for name, job_id in jobs.items():
        job = crew.job(job_id)
        assert fired[name] == 1, f"{name}: asked once, and never again"
        assert "call_ambiguous" in crew.events(job_id)
        assert job["attempt"] == 1
        if name in LOST:
            assert (job["status"], crew.creates(f"{name}.")) == ("completed", 1)
            assert "call_adopted" in crew.events(job_id)
            assert crew.charged(job_id) == ("committed", PICTURE)
        else:
            assert (job["status"], job["error_code"]) == ("failed", "reconcile_no_recovery")
            assert crew.creates(f"{name}.") == 0
            assert crew.charged(job_id) == ("refunded", 0)
            assert job["finished_at"] >= quiet_until(crew, job_id)
    crew.check()


def test_without_a_way_to_look_it_is_refunded_after_the_quiet_period_and_not_before(crew: Fleet) -> None:
    blind = {"name": "blind", "when": {"route": "list"}, "do": {"list_off": True}}
    crew.sandbox.script({"rules": [*rules(LOST), blind]})
    jobs = {name: crew.picture(f"{name}.") for name in LOST}
    crew.until_done(within=40)
    for name, job_id in jobs.items():
        job = crew.job(job_id)
        assert (job["status"], job["error_code"]) == ("failed", "reconcile_no_recovery")
        assert crew.creates(f"{name}.") == 1, "paid once, and never again"
        assert crew.charged(job_id) == ("refunded", 0)
        assert job["finished_at"] >= quiet_until(crew, job_id)
    assert crew.sandbox.stats()["rules"]["blind"] >= len(jobs)
    crew.check()


def test_a_list_that_lags_is_waited_for(make_fleet: MakeFleet) -> None:
    fleet = make_fleet()
    fleet.env["CALLKEEPER_KINDS"] = fleet.kinds(visibility_lag=2)
    late = {"name": "late", "when": {"route": "list"}, "do": {"list_lag": 1.5}}
    fleet.sandbox.script({"rules": [*rules({"drops": LOST["drops"]}), late]})
    job_id = fleet.picture("drops.")
    fleet.spawn()
    fleet.until_status(job_id, "completed", within=20)
    assert fleet.creates("drops.") == 1
    assert fleet.sandbox.stats()["rules"]["drops"] == 1
    fleet.check()


def test_identical_twins_each_get_their_own(crew: Fleet) -> None:
    crew.sandbox.script({"rules": rules({"twin": {"accept_then": "drop"}})})
    jobs = [crew.picture("twin.") for _ in range(4)]
    assert crew.until_done(within=40) == {"completed": len(jobs)}
    assert crew.sandbox.stats()["rules"]["twin"] == len(jobs)
    bill = {line["task_id"] for line in crew.sandbox.bill(containing="twin.")}
    assert {crew.job(job_id)["provider_task_id"] for job_id in jobs} == bill
    assert len(bill) == len(jobs)
    crew.check()


def test_an_ambiguous_sync_call_is_refunded_or_repeated_only_where_that_is_harmless(crew: Fleet) -> None:
    faults = {name: LOST[name] for name in ("drops", "says 502")}
    once = {"route": "message", "nth": [1], "contains": "vanishes once."}
    always = {"route": "message", "contains": "vanishes always."}
    crew.sandbox.script(
        {
            "rules": [
                {"name": "once", "when": once, "do": faults["drops"]},
                {"name": "always", "when": always, "do": faults["drops"]},
                *rules(faults, route="message"),
            ]
        }
    )
    plain = {name: crew.words(f"{name}.") for name in faults}
    for name, job_id in plain.items():
        crew.until_status(job_id, "failed")
        assert crew.job(job_id)["error_code"] == "reconcile_no_recovery"
        assert (crew.creates(f"{name}."), crew.charged(job_id)) == (1, ("refunded", 0))
    again = crew.words("vanishes once.", job_type="words-again")
    never = crew.words("vanishes always.", job_type="words-again")
    crew.until_status(again, "completed")
    assert (crew.job(again)["attempt"], crew.creates("vanishes once.")) == (2, 2)
    assert crew.charged(again) == ("committed", WORDS)
    crew.until_status(never, "failed")
    assert (crew.job(never)["error_code"], crew.job(never)["attempt"]) == ("reconcile_no_recovery", 2)
    assert (crew.creates("vanishes always."), crew.charged(never)) == (2, ("refunded", 0))
    crew.check()


def test_what_was_not_sent_is_sent_later(make_fleet: MakeFleet, sandbox: Sandbox) -> None:
    """The provider is down: connections are refused, so nothing was taken, and trying again is safe."""
    fleet = make_fleet(CALLKEEPER_RETRY_BASE="2", CALLKEEPER_RETRY_CAP="4")
    sandbox.stop()
    try:
        jobs = [fleet.picture("not sent a."), fleet.words("not sent b.")]
        fleet.spawn()
        for job_id in jobs:
            fleet.until_event(job_id, "requeued")
    finally:
        sandbox.start()
    assert fleet.until_done(within=30) == {"completed": 2}
    for job_id, prompt in zip(jobs, ("not sent a.", "not sent b."), strict=True):
        assert fleet.job(job_id)["attempt"] == 1  # it said something about the network, and nothing about the job
        assert fleet.creates(prompt) == 1
    fleet.check()


@pytest.mark.slow
def test_attempts_end(make_fleet: MakeFleet, sandbox: Sandbox) -> None:
    """Refused every time in a way that may pass: after three attempts the job fails, refunded, nothing billed."""
    fleet = make_fleet()
    body = {"type": "error", "error": {"type": "conflict_error", "message": "busy with another"}}
    sandbox.script(
        {"rules": [{"name": "busy", "when": {"route": "message"}, "do": {"reply": {"status": 409, "body": body}}}]}
    )
    job_id = fleet.words("refused three times.")
    fleet.spawn()
    fleet.until_status(job_id, "failed")
    assert (fleet.job(job_id)["error_code"], fleet.job(job_id)["attempt"]) == ("request_conflict", 3)
    assert (fleet.creates("refused three times."), fleet.charged(job_id)) == (0, ("refunded", 0))
    fleet.check()


@pytest.mark.parametrize("job_type", ["picture", "words"])
def test_throttled_waits_as_long_as_it_was_told_and_costs_no_attempt(crew: Fleet, job_type: str) -> None:
    route = {"picture": "create", "words": "message"}[job_type]
    body = {"picture": {"detail": "Request was throttled.", "status": 429}}.get(
        job_type, {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
    )
    reply = {"status": 429, "headers": {"retry-after": "2"}, "body": body}
    crew.sandbox.script(
        {"rules": [{"name": "slow down", "when": {"route": route, "nth": [1]}, "do": {"reply": reply}}]}
    )
    job_id = crew.submit(job_type, prompt="throttled.")
    crew.until_event(job_id, "requeued")
    waiting = crew.one("select status, available_at, attempt from callkeeper.jobs where id = :id", id=job_id)
    (told,) = crew.rows(
        "select created_at from callkeeper.job_events where job_id = :id and kind = 'requeued'", id=job_id
    )
    if waiting["status"] == "queued":
        assert timedelta(seconds=1.9) <= waiting["available_at"] - told["created_at"] <= timedelta(seconds=2.1)
    crew.until_status(job_id, "completed")
    starts = crew.rows(
        "select created_at from callkeeper.job_events where job_id = :id and kind = 'started' order by seq", id=job_id
    )
    assert len(starts) == 2
    assert starts[1]["created_at"] - told["created_at"] >= timedelta(seconds=1.9)
    assert crew.job(job_id)["attempt"] == 1
    assert crew.creates("throttled.") == 1
    assert crew.sandbox.stats()["rules"]["slow down"] == 1
    crew.check()


@pytest.mark.slow
def test_a_revoked_key_fails_no_job_and_alerts_once(make_fleet: MakeFleet) -> None:
    fleet = make_fleet(CALLKEEPER_OPERATOR_WAIT="0.5")
    revoked = fleet.spawn(env={"REPLICATE_API_TOKEN": "revoked", "ANTHROPIC_API_KEY": "revoked"})
    jobs = [fleet.picture("revoked a."), fleet.picture("revoked b."), fleet.words("revoked c.")]
    for job_id in jobs:
        fleet.until_event(job_id, "requeued")
    subjects = {"replicate-prediction:provider_auth_invalid", "anthropic-sync:provider_auth_invalid"}
    until(lambda: set(fleet.alerts()) == subjects, what="one alert for each provider")
    assert fleet.sandbox.totals()["all"] == 0
    # The operator sets a good key and restarts the workers.
    revoked.terminate()
    revoked.wait(20)
    assert all(fleet.status(job_id) == "queued" for job_id in jobs), "no job failed for it"
    fleet.spawn()
    assert fleet.until_done() == {"completed": 3}
    assert all(fleet.job(job_id)["attempt"] == 1 for job_id in jobs)
    assert fleet.sandbox.totals()["all"] == 3
    assert set(fleet.alerts()) == subjects
    fleet.check()


def test_a_worker_without_a_key_gives_the_job_back(fleet: Fleet) -> None:
    keyless = fleet.spawn(env={"REPLICATE_API_TOKEN": ""})
    job_id = fleet.picture("no key.")
    until(lambda: "job.given_back" in keyless.text(), what="the job given back")
    assert fleet.creates("no key.") == 0
    keyless.kill()
    fleet.spawn()
    fleet.until_status(job_id, "completed")
    assert fleet.job(job_id)["attempt"] == 1
    fleet.check()


def test_odd_answers(crew: Fleet) -> None:
    """Words nobody knows, success without a result, results that are gone or broken, a failure in the provider's words."""
    polls = {
        "odd word": {"when": {"nth": [1, 2]}, "do": {"word": "thinking"}},
        "poll 500": {"when": {"nth": [1, 2]}, "do": {"reply": {"status": 500, "body": PAGE}}},
    }
    downloads = {
        "gone once": {"when": {"nth": [1]}, "do": {"download": "gone"}},
        "truncated once": {"when": {"nth": [1]}, "do": {"download": "truncated"}},
    }
    creates = {
        "no output": {"succeed_without_output": True},
        "removed": {"result_life": 0.0},
        "refused by policy": {"fail": "NSFW content detected"},
        "failed": {"fail": "CUDA out of memory"},
    }
    script = rules(creates)
    for route, cases in (("poll", polls), ("download", downloads)):
        script += [
            {"name": name, "when": {**case["when"], "route": route, "contains": f"{name}."}, "do": case["do"]}
            for name, case in cases.items()
        ]
    crew.sandbox.script({"rules": script})
    names = {
        "odd word": None,
        "poll 500": None,
        "gone once": None,
        "truncated once": None,
        "no output": "output_missing",
        "removed": "output_lost",
        "refused by policy": "content_policy",
        "failed": "task_failed",
    }
    jobs = {name: crew.picture(f"{name}.") for name in names}
    crew.until_done(within=40)
    fired = crew.sandbox.stats()["rules"]
    for name, code in names.items():
        job = crew.job(jobs[name])
        assert fired[name] >= 1, name
        assert (job["status"], job["error_code"]) == (("completed", None) if code is None else ("failed", code)), name
        assert crew.creates(f"{name}.") == 1, name
        assert crew.charged(jobs[name])[0] == ("committed" if code is None else "refunded")
    assert "replicate-prediction:unknown_status:thinking" in crew.alerts()
    assert "result_returned" in crew.events(jobs["gone once"])
    crew.check()
