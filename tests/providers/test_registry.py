"""Kinds keep their own promises; a kind that cannot is refused when it is declared."""

from dataclasses import replace
from datetime import timedelta

import pytest

from providers.contract import AsyncProvider, Mode, SyncProvider
from providers.registry import KINDS, UnknownKind, check, get_kind

REPLICATE, ANTHROPIC = get_kind("replicate-prediction"), get_kind("anthropic-sync")


def test_kinds_are_known_by_their_name():
    assert {name: kind.name for name, kind in KINDS.items()} == {name: name for name in KINDS}
    assert isinstance(REPLICATE.provider, AsyncProvider)
    assert isinstance(ANTHROPIC.provider, SyncProvider)


def test_an_unknown_kind_is_told_which_there_are():
    with pytest.raises(UnknownKind, match=", ".join(sorted(KINDS))):
        get_kind("kie-video")


def test_replicates_hour_binds():
    assert REPLICATE.stale_after + timedelta(minutes=5) <= REPLICATE.result_life / 2


@pytest.mark.parametrize(
    ("kind", "change", "error"),
    [
        (REPLICATE, {"stale_after": timedelta(minutes=26)}, ValueError),
        (REPLICATE, {"result_life": timedelta(minutes=40)}, ValueError),
        (REPLICATE, {"provider": ANTHROPIC.provider}, TypeError),
        (REPLICATE, {"mode": Mode.SYNC}, TypeError),
        (REPLICATE, {"send_deadline": timedelta(0)}, ValueError),
        (REPLICATE, {"base_url": "https://api.replicate.com/v1/"}, ValueError),
        (REPLICATE, {"base_url": "http://api.replicate.com/v1"}, ValueError),
        (REPLICATE, {"finds_lost": False, "signs_callbacks": False}, ValueError),
        (REPLICATE, {"max_run": timedelta(minutes=19)}, ValueError),
        (ANTHROPIC, {"finds_lost": True}, ValueError),
        (ANTHROPIC, {"cancels": True}, ValueError),
        (ANTHROPIC, {"max_bytes": 0}, ValueError),
    ],
)
def test_a_kind_that_cannot_keep_its_word_is_refused(kind, change, error):
    assert check(kind) is kind
    with pytest.raises(error):
        check(replace(kind, **change))
