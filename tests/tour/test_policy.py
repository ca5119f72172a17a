"""The timeline policy as a function: total, honest, and never making a mismatch worse."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.tour.timeline.policy import SYNC, accepts, decide
from actors.tour.timeline.words import Act, Decision, Edit, Need, Picture, Probe, Quality, Sound, Speech, worst

RATE = 24.0
SECONDS = st.floats(min_value=0, max_value=600, allow_nan=False)
STARTS = st.floats(min_value=-1, max_value=1, allow_nan=False)


def probe(seen: float | None, heard: float | None = None, *, skew: float = 0.0, errors: int = 0, **picture) -> Probe:
    return Probe(
        None if seen is None else Picture(seen, 0.0, max(1, round(seen * RATE)), 160, 90, RATE, **picture),
        None if heard is None else Sound(heard, skew, 48_000, 2),
        errors,
    )


def need(target: float, speech: Speech = Speech.NARRATION, **more) -> Need:
    return Need(target, RATE, speech, **more)


@st.composite
def pictures(draw) -> Picture | None:
    seconds = draw(SECONDS)
    shares = [draw(st.floats(0, 1)) for _ in range(2)]
    made = Picture(
        seconds,
        draw(STARTS),
        draw(st.integers(0, 20_000)),
        160,
        90,
        draw(st.sampled_from([10.0, 24.0, 30.0, 60.0])),
        gap=draw(st.floats(0, 2)),
        black=seconds * shares[0] * draw(st.booleans()),
        frozen=seconds * shares[1] * draw(st.booleans()),
    )
    return draw(st.sampled_from([made, made, made, None]))


@st.composite
def sounds(draw) -> Sound | None:
    made = Sound(draw(SECONDS), draw(STARTS), 48_000, 2, draw(st.sampled_from([0.0, 0.4, 1.0])))
    return draw(st.sampled_from([made, made, made, None]))


PROBES = st.builds(Probe, pictures(), sounds(), st.sampled_from([0, 0, 0, 3]))
NEEDS = st.builds(
    Need,
    st.floats(min_value=0.5, max_value=600),
    st.sampled_from([10.0, 24.0, 30.0, 60.0]),
    st.sampled_from(list(Speech)),
    loopable=st.booleans(),
    moves=st.booleans(),
    fixed=st.sampled_from([0.0, 0.0, 2.0]),
    sound_needed=st.booleans(),
)


@st.composite
def near(draw) -> tuple[Probe, Need]:
    """Media not far from what was wanted: where the policy has something to do."""
    wanted = draw(NEEDS)
    made = draw(st.builds(Probe, pictures(), sounds()))
    seen, heard = (wanted.target * draw(st.floats(0.7, 1.35)) for _ in range(2))
    picture = Picture(seen, 0.0, max(1, round(seen * wanted.rate)), 160, 90, wanted.rate)
    return replace(made, picture=picture, sound=made.sound and replace(made.sound, seconds=heard)), wanted


def played(one: Probe, edits: tuple[Edit, ...], fixed: float) -> tuple[float, float | None]:
    """How long both streams are when each edit has done what it says."""
    assert one.picture is not None
    seen = one.picture.seconds
    heard = one.sound.seconds if one.sound else None
    for edit in edits:
        match edit.act:
            case Act.FREEZE:
                seen += edit.number
            case Act.SLOW:
                seen *= edit.number
            case Act.LOOP | Act.CUT_PICTURE:
                seen = edit.number
            case Act.SILENCE | Act.CUT_SOUND:
                heard = edit.number
            case Act.PAD_SOUND:
                heard = (heard or 0.0) + edit.number
            case Act.TEMPO:
                heard = fixed + ((heard or 0.0) - fixed) / edit.number
    return seen, heard


def holds(one: Probe, wanted: Need) -> Decision:
    """Everything that is true of each decision."""
    decision = decide(one, wanted)
    if decision.quality is Quality.UNUSABLE:
        assert decision.reason
        assert not decision.edits
        return decision
    assert one.picture is not None
    seen, heard = played(one, decision.edits, wanted.fixed)
    slack = max(SYNC, 1 / wanted.rate) + 1e-6
    assert abs(seen - decision.picture) <= slack
    if decision.sound is None:
        assert wanted.speech is Speech.NONE
    else:
        assert heard is not None
        assert abs(decision.sound - decision.picture) <= 1e-6
        assert abs(heard - decision.sound) <= slack
        if one.sound is not None:
            before = abs(one.sound.seconds - one.picture.seconds)
            assert abs(heard - seen) <= before + 1e-6
    assert abs(decision.picture - one.picture.seconds) <= wanted.target * 0.25 + slack
    assert (decision.quality is Quality.STANDARD) <= (not decision.warnings)
    assert one.errors == 0 or decision.quality is Quality.DEGRADED
    for edit in decision.edits:
        assert edit.number > 0
        if edit.act in (Act.SLOW, Act.TEMPO):
            assert 1 <= edit.number <= 1.1 + 1e-9
        if edit.act is Act.FREEZE:
            assert edit.number <= 3.0 + 1e-9
        if edit.act is Act.CUT_SOUND:
            assert wanted.speech is Speech.AMBIENCE
    return decision


@settings(max_examples=400, deadline=None)
@given(PROBES, NEEDS)
def test_every_probe_has_a_decision_and_none_makes_a_mismatch_worse(one: Probe, wanted: Need) -> None:
    holds(one, wanted)


@settings(max_examples=600, deadline=None)
@given(near())
def test_the_same_where_media_is_nearly_as_wanted(both: tuple[Probe, Need]) -> None:
    holds(*both)


@settings(max_examples=200, deadline=None)
@given(PROBES, NEEDS)
def test_a_decision_depends_on_nothing_but_the_probe(one: Probe, wanted: Need) -> None:
    assert decide(one, wanted) == decide(replace(one, sha256="other"), wanted)


@settings(max_examples=300, deadline=None)
@given(PROBES, near())
def test_only_what_is_as_promised_is_accepted(came: Probe, both: tuple[Probe, Need]) -> None:
    """An output that is not usable never passes for the decision that led to it."""
    decision = decide(*both)
    if decision.quality is Quality.UNUSABLE or accepts(came, decision, rate=both[1].rate) is not None:
        return
    assert came.errors == 0
    assert came.picture is not None
    assert abs(came.picture.seconds - decision.picture) <= 1 / both[1].rate + 0.001
    assert (came.sound is None) == (decision.sound is None)
    if came.sound is not None:
        assert abs(came.sound.seconds - came.picture.seconds) <= SYNC


ROWS = [
    ("a frame apart is nothing", probe(10.0, 10.04), need(10), Quality.STANDARD, []),
    ("an eighth of a second is filled", probe(10.0, 10.1), need(10), Quality.STANDARD, [Act.FREEZE]),
    ("the same the other way", probe(10.1, 10.0), need(10), Quality.STANDARD, [Act.PAD_SOUND]),
    ("picture a little short", probe(9.6, 10.0), need(10), Quality.REPAIRED, [Act.FREEZE]),
    ("picture shorter: slower too", probe(19.0, 20.0), need(20), Quality.REPAIRED, [Act.SLOW, Act.FREEZE]),
    ("much shorter", probe(17.5, 20.0), need(20), Quality.DEGRADED, [Act.SLOW, Act.FREEZE]),
    ("much shorter, and it may begin again", probe(17, 20.0), need(20, loopable=True), Quality.DEGRADED, [Act.LOOP]),
    ("a quarter of a long one cannot be filled", probe(75.5, 100.0), need(100), Quality.UNUSABLE, []),
    ("picture long", probe(21.9, 20.0), need(20), Quality.REPAIRED, [Act.CUT_PICTURE, Act.PAD_SOUND]),
    ("silence after the last word", probe(20, 18.6), need(20), Quality.REPAIRED, [Act.PAD_SOUND]),
    ("too much silence", probe(20, 16.0), need(20), Quality.DEGRADED, [Act.CUT_PICTURE, Act.PAD_SOUND]),
    ("half of the narration", probe(20, 9.0), need(20), Quality.UNUSABLE, []),
    ("words hurried a little", probe(20, 20.8), need(20), Quality.REPAIRED, [Act.TEMPO]),
    ("words hurried", probe(20, 21.8), need(20), Quality.DEGRADED, [Act.TEMPO]),
    ("words that no hurry fits", probe(20, 23.5), need(20), Quality.DEGRADED, [Act.SLOW, Act.FREEZE]),
    ("far too many words", probe(20, 26.0), need(20), Quality.UNUSABLE, []),
    ("music may be cut", probe(20, 26.0), need(20, Speech.AMBIENCE), Quality.REPAIRED, [Act.CUT_SOUND]),
    ("music may end early", probe(20, 12.0), need(20, Speech.AMBIENCE), Quality.REPAIRED, [Act.PAD_SOUND]),
    ("no sound where none is needed", probe(20), need(20, Speech.AMBIENCE), Quality.DEGRADED, [Act.SILENCE]),
    ("no narration", probe(20), need(20, sound_needed=True), Quality.UNUSABLE, []),
    ("lips in time", probe(5, 5.03), need(5, Speech.DIALOGUE), Quality.STANDARD, []),
    ("lips nearly", probe(5, 5.15), need(5, Speech.DIALOGUE), Quality.REPAIRED, [Act.FREEZE]),
    ("lips apart", probe(5, 5.3), need(5, Speech.DIALOGUE), Quality.UNUSABLE, []),
    ("lips start apart", probe(5, 5, skew=0.2), need(5, Speech.DIALOGUE), Quality.REPAIRED, []),
    ("lips start far apart", probe(5, 5, skew=0.3), need(5, Speech.DIALOGUE), Quality.UNUSABLE, []),
    ("a face without a voice", probe(5), need(5, Speech.DIALOGUE), Quality.UNUSABLE, []),
    ("a scene as planned", probe(6), need(6, Speech.NONE), Quality.STANDARD, []),
    ("a scene too short", probe(4.4), need(6, Speech.NONE), Quality.UNUSABLE, []),
    ("a scene much too long", probe(10), need(6, Speech.NONE), Quality.UNUSABLE, []),
    ("a scene longer", probe(7.4), need(6, Speech.NONE), Quality.REPAIRED, [Act.CUT_PICTURE]),
    ("black", probe(6, black=3.1), need(6, Speech.NONE), Quality.UNUSABLE, []),
    ("frozen", probe(6, frozen=3.1), need(6, Speech.NONE), Quality.UNUSABLE, []),
    ("meant to stand", probe(6, frozen=6.0), need(6, Speech.NONE, moves=False), Quality.STANDARD, []),
    ("damaged", probe(6, errors=2), need(6, Speech.NONE), Quality.DEGRADED, []),
    ("no picture", probe(None, 6.0), need(6), Quality.UNUSABLE, []),
]


@pytest.mark.parametrize(("one", "wanted", "quality", "acts"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_row(one: Probe, wanted: Need, quality: Quality, acts: list[Act]) -> None:
    decision = holds(one, wanted)
    assert (decision.quality, [edit.act for edit in decision.edits]) == (quality, acts)


def test_a_greeting_is_not_hurried_with_the_rest() -> None:
    decision = decide(probe(10, 10.3), need(10, fixed=4))
    assert decision.edits == (Edit(Act.TEMPO, pytest.approx(6.3 / 6)),)


def test_the_worst_part_is_the_whole() -> None:
    assert worst(Quality.REPAIRED, Quality.DEGRADED, Quality.STANDARD) is Quality.DEGRADED
    assert worst() is Quality.STANDARD
