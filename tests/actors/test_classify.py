"""The decision tables, row by row: what an error proves about the money decides, not its number."""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.classify import (
    MISSES_TO_LOSE,
    Act,
    Patience,
    Recovery,
    after_download_error,
    after_lost_lease,
    after_poll,
    after_request_error,
    backoff,
)
from providers.contract import Failed, Missing, Mode, Running, Succeeded
from providers.errors import DownloadError, Fate, ProviderError, Remedy

PATIENCE = Patience(base=2, cap=300, throttled=15, operator=60)


def error(fate: Fate, remedy: Remedy, **more: Any) -> ProviderError:
    return ProviderError("some_code", "some words", fate=fate, remedy=remedy, **more)


def decide(
    problem: ProviderError, *, mode: Mode = Mode.ASYNC, attempt: int = 1, left: bool = True, safe: bool = False
) -> Any:
    return after_request_error(
        problem, mode=mode, attempt=attempt, attempts_left=left, retry_safe=safe, patience=PATIENCE, jitter=0.5
    )


@pytest.mark.parametrize(("remedy", "left", "safe"), [*product(Remedy, (True, False), (True, False))])
def test_an_unknown_outcome_of_an_async_create_is_only_ever_resolved(remedy: Remedy, left: bool, safe: bool) -> None:
    for attempt in (1, 2, 3):
        assert decide(error(Fate.AMBIGUOUS, remedy), attempt=attempt, left=left, safe=safe).act is Act.RESOLVE


@pytest.mark.parametrize(
    ("left", "safe", "act", "code"),
    [
        (True, True, Act.RETRY, "some_code"),
        (False, True, Act.FAIL, "reconcile_no_recovery"),
        (True, False, Act.FAIL, "reconcile_no_recovery"),
        (False, False, Act.FAIL, "reconcile_no_recovery"),
    ],
)
def test_an_unknown_outcome_of_a_sync_call_is_repeated_only_where_the_app_said_so(
    left: bool, safe: bool, act: Act, code: str
) -> None:
    for remedy in Remedy:
        decision = decide(error(Fate.AMBIGUOUS, remedy), mode=Mode.SYNC, left=left, safe=safe)
        assert (decision.act, decision.code) == (act, code)


@pytest.mark.parametrize(("safe", "code"), [(True, "some_code"), (False, "reconcile_no_recovery")])
def test_a_provider_that_answers_with_errors_to_the_last_is_named_where_asking_again_is_safe(
    safe: bool, code: str
) -> None:
    decision = decide(error(Fate.AMBIGUOUS, Remedy.RETRY, status=500), mode=Mode.SYNC, left=False, safe=safe)
    assert (decision.act, decision.code) == (Act.FAIL, code)


@pytest.mark.parametrize(("mode", "fate"), [*product(Mode, (Fate.NOT_SENT, Fate.REJECTED))])
@pytest.mark.parametrize(
    ("remedy", "left", "act"),
    [
        (Remedy.RETRY, True, Act.RETRY),
        (Remedy.RETRY, False, Act.FAIL),
        (Remedy.THROTTLED, True, Act.REQUEUE),
        (Remedy.THROTTLED, False, Act.REQUEUE),
        (Remedy.OPERATOR, True, Act.REQUEUE),
        (Remedy.OPERATOR, False, Act.REQUEUE),
        (Remedy.CUSTOMER, True, Act.FAIL),
        (Remedy.NOBODY, True, Act.FAIL),
    ],
)
def test_what_surely_was_not_taken(mode: Mode, fate: Fate, remedy: Remedy, left: bool, act: Act) -> None:
    decision = decide(error(fate, remedy), mode=mode, left=left)
    if fate is Fate.NOT_SENT and remedy is Remedy.RETRY:
        act = Act.REQUEUE  # it says something about the network and nothing about the job, so no attempt is spent
    assert decision.act is act
    assert decision.code == "some_code"
    assert (decision.alert is not None) is (remedy is Remedy.OPERATOR)
    assert (decision.delay is not None) is (act in (Act.RETRY, Act.REQUEUE))


def test_waiting_as_long_as_the_provider_asked() -> None:
    asked = error(Fate.REJECTED, Remedy.THROTTLED, retry_after=42)
    assert decide(asked).delay == 42
    assert decide(error(Fate.REJECTED, Remedy.THROTTLED)).delay == 15 * 1.5
    assert decide(error(Fate.REJECTED, Remedy.OPERATOR)).delay == 60
    assert decide(error(Fate.REJECTED, Remedy.RETRY, retry_after=42)).delay == 42
    assert decide(error(Fate.REJECTED, Remedy.RETRY, retry_after=0.1)).delay == 1.5, "never sooner than the backoff"


@given(st.integers(1, 10_000), st.floats(0.01, 60), st.floats(60, 3600), st.floats(0, 1, exclude_max=True))
def test_backoff_stays_between_half_and_whole(attempt: int, base: float, cap: float, jitter: float) -> None:
    seconds = backoff(attempt, base=base, cap=cap, jitter=jitter)
    ceiling = min(cap, base * 2.0 ** min(attempt - 1, 60))
    assert ceiling / 2 <= seconds <= ceiling


def test_backoff_doubles_up_to_its_cap() -> None:
    assert [backoff(attempt, base=2, cap=30, jitter=0) * 2 for attempt in range(1, 8)] == [2, 4, 8, 16, 30, 30, 30]


@pytest.mark.parametrize(
    ("answer", "act", "missed"),
    [
        (Running(0.5, "processing"), Act.POLL_AGAIN, False),
        (Running(word="thinking", known=False), Act.POLL_AGAIN, False),
        (Succeeded(text="x"), Act.IMPORT, False),
        (Failed("task_failed", "words"), Act.FAIL, False),
        (Missing(), Act.POLL_AGAIN, True),
        (error(Fate.AMBIGUOUS, Remedy.RETRY), Act.POLL_AGAIN, None),
        (error(Fate.REJECTED, Remedy.OPERATOR), Act.POLL_AGAIN, None),
        (error(Fate.NOT_SENT, Remedy.RETRY), Act.POLL_AGAIN, None),
        (ProviderError("output_missing", "words", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY), Act.POLL_AGAIN, True),
    ],
    ids=lambda value: getattr(value, "code", str(value))[:30],
)
def test_one_look(answer: Any, act: Act, missed: bool | None) -> None:
    decision = after_poll(answer, misses=0)
    assert (decision.act, decision.missed) == (act, missed)


def test_only_consecutive_misses_end_it_and_no_error_of_ours_ever_does() -> None:
    gone = Missing()
    empty = ProviderError("output_missing", "words", fate=Fate.AMBIGUOUS, remedy=Remedy.RETRY)
    for answer, code in ((gone, "provider_task_lost"), (empty, "output_missing")):
        acts = [after_poll(answer, misses=misses).act for misses in range(MISSES_TO_LOSE)]
        assert acts == [Act.POLL_AGAIN] * (MISSES_TO_LOSE - 1) + [Act.FAIL]
        assert after_poll(answer, misses=MISSES_TO_LOSE - 1).code == code
    for fate, remedy in product(Fate, Remedy):
        assert after_poll(error(fate, remedy), misses=1_000).act is Act.POLL_AGAIN


def test_what_an_operator_should_know_is_named() -> None:
    assert after_poll(Running(word="x" * 200, known=False), misses=0).alert == "unknown_status:" + "x" * 40
    assert after_poll(error(Fate.REJECTED, Remedy.OPERATOR), misses=0).alert == "some_code"
    assert after_poll(error(Fate.REJECTED, Remedy.RETRY), misses=0).alert is None


@pytest.mark.parametrize(
    ("mode", "started", "safe", "left", "recovery"),
    [
        *(
            (mode, False, safe, True, Recovery.REQUEUE)
            for mode, safe in product(("async", "sync", "local"), (True, False))
        ),
        *(
            (mode, False, safe, False, Recovery.FAIL_LOST)
            for mode, safe in product(("async", "sync", "local"), (True, False))
        ),
        *(("async", True, safe, left, Recovery.RESUME) for safe, left in product((True, False), repeat=2)),
        ("sync", True, False, True, Recovery.FAIL_UNKNOWN),
        ("sync", True, False, False, Recovery.FAIL_UNKNOWN),
        ("sync", True, True, True, Recovery.REQUEUE),
        ("sync", True, True, False, Recovery.FAIL_LOST),
        ("local", True, False, True, Recovery.FAIL_LOST),
        ("local", True, True, True, Recovery.REQUEUE),
        ("local", True, True, False, Recovery.FAIL_LOST),
    ],
)
def test_the_recovery_table(mode: str, started: bool, safe: bool, left: bool, recovery: Recovery) -> None:
    assert after_lost_lease(mode=mode, call_started=started, retry_safe=safe, attempts_left=left) is recovery


def later(
    code: str = "result_corrupt", *, failures: int = 0, misses: int = 0, gone: bool = False, retryable: bool = True
) -> Any:
    broken = DownloadError(code, "half of it", retryable=retryable, gone=gone)
    return after_download_error(broken, misses=misses, failures=failures, at_most=5, patience=PATIENCE)


def test_a_broken_file_is_fetched_again_so_many_times_and_not_more() -> None:
    tries = [later(failures=failures) for failures in range(8)]
    assert [one.act for one in tries] == [Act.POLL_AGAIN] * 4 + [Act.FAIL] * 4
    assert [round(one.delay) for one in tries[:4]] == [4, 8, 16, 32]
    last = tries[4]
    assert (last.code, last.alert) == ("import_exhausted", "import_exhausted:result_corrupt")
    assert last.message == "not fetched whole in 5 tries; the last: result_corrupt: half of it"


def test_the_pauses_between_fetches_end_within_the_shortest_life_of_a_result() -> None:
    broken = DownloadError("result_corrupt", "half of it", retryable=True)
    tries = [after_download_error(broken, misses=0, failures=n, at_most=12, patience=PATIENCE) for n in range(11)]
    assert 20 * 60 < sum(one.delay or 0 for one in tries) < 30 * 60


def test_what_is_gone_is_lost_after_three_looks_and_what_was_refused_is_final() -> None:
    looks = [later("result_gone", misses=misses, failures=99, gone=True) for misses in range(MISSES_TO_LOSE)]
    assert [look.act for look in looks] == [Act.POLL_AGAIN] * (MISSES_TO_LOSE - 1) + [Act.FAIL]
    assert [(look.code, look.missed) for look in looks] == [
        ("output_lost", True),
        ("output_lost", True),
        ("output_lost", False),
    ]
    refused = later("result_wrong_type", failures=0, retryable=False)
    assert (refused.act, refused.code, refused.alert) == (
        Act.FAIL, "result_wrong_type", "import_refused:result_wrong_type",
    )  # fmt: skip
