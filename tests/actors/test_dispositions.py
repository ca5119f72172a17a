"""Every stage has an answer to everything, and what nobody has seen before is never the customer's fault."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.dispositions import Disposition, Stage, classify
from providers.contract import Failed, Missing, Running
from providers.errors import DownloadError, Fate, ProviderError, Remedy

D, S = Disposition, Stage


def request_error(fate: Fate, remedy: Remedy) -> ProviderError:
    return ProviderError("a_code", "words", fate=fate, remedy=remedy)


@pytest.mark.parametrize("remedy", list(Remedy))
def test_a_create_of_unknown_outcome_is_ambiguous_whatever_the_status_was(remedy: Remedy) -> None:
    assert classify(S.CREATE, request_error(Fate.AMBIGUOUS, remedy)) is D.AMBIGUOUS


@pytest.mark.parametrize(
    ("remedy", "disposition"),
    [
        (Remedy.RETRY, D.RETRY),
        (Remedy.THROTTLED, D.RETRY),
        (Remedy.CUSTOMER, D.CUSTOMER),
        (Remedy.OPERATOR, D.OPERATOR),
        (Remedy.NOBODY, D.TERMINAL),
    ],
)
def test_a_create_that_surely_was_not_taken(remedy: Remedy, disposition: Disposition) -> None:
    for stage, fate in product((S.PREPARE, S.CREATE), (Fate.NOT_SENT, Fate.REJECTED)):
        assert classify(stage, request_error(fate, remedy)) is disposition


@pytest.mark.parametrize(("fate", "remedy"), list(product(Fate, Remedy)))
def test_a_poll_that_failed_says_nothing_about_the_task(fate: Fate, remedy: Remedy) -> None:
    expected = D.OPERATOR if remedy is Remedy.OPERATOR else D.KEEP_POLLING
    assert classify(S.POLL, request_error(fate, remedy)) is expected


@pytest.mark.parametrize(("fate", "remedy"), list(product(Fate, Remedy)))
def test_a_cancel_that_failed_is_sent_again(fate: Fate, remedy: Remedy) -> None:
    expected = D.OPERATOR if remedy is Remedy.OPERATOR else D.RETRY
    assert classify(S.SETTLE, request_error(fate, remedy)) is expected


@pytest.mark.parametrize(
    ("evidence", "disposition"),
    [
        (Failed("content_policy", ""), D.CUSTOMER),
        (Failed("task_failed", ""), D.TERMINAL),
        (Failed("output_truncated", ""), D.REPAIR),
        (Failed("output_lost", ""), D.OPERATOR),
        (Failed("a_word_of_tomorrow", ""), D.TERMINAL),
        (Missing(), D.KEEP_POLLING),
        (Running(word="frozzled", known=False), D.KEEP_POLLING),
        (DownloadError("result_truncated", "", retryable=True), D.RETRY),
        (DownloadError("result_gone", "", retryable=False, gone=True), D.RETRY),
        (DownloadError("result_url_forbidden", "", retryable=False), D.OPERATOR),
    ],
)
def test_answers_about_a_task(evidence: object, disposition: Disposition) -> None:
    for stage in (S.POLL, S.IMPORT):
        assert classify(stage, evidence) is disposition


@pytest.mark.parametrize(
    ("stage", "disposition"),
    [(S.PREPARE, D.RETRY), (S.CREATE, D.AMBIGUOUS), (S.POLL, D.KEEP_POLLING), (S.IMPORT, D.RETRY), (S.SETTLE, D.RETRY)],
)
def test_what_nobody_has_seen_before(stage: Stage, disposition: Disposition) -> None:
    assert classify(stage, RuntimeError("?")) is disposition


def test_out_of_memory_wants_a_larger_machine_unless_money_may_be_spent() -> None:
    assert classify(S.IMPORT, MemoryError()) is D.LARGER_MACHINE
    assert classify(S.CREATE, MemoryError()) is D.AMBIGUOUS


@given(
    stage=st.sampled_from(Stage),
    error=st.sampled_from(
        [ValueError, KeyError, OSError, TimeoutError, ConnectionResetError, UnicodeError, BaseException]
    ),
)
def test_the_unknown_is_never_the_customers_fault(stage: Stage, error: type[BaseException]) -> None:
    assert classify(stage, error("words")) not in (D.CUSTOMER, D.TERMINAL)
