"""What to do about media that is not as long as it should be. Pure: a probe goes in, a decision comes out.

Numbers: speech and lips come apart to the eye at 45 ms early and 125 ms late (ITU-R BT.1359), and are refused beyond 90
and 185; a voice changed by up to 5 % is not noticed, by 10 % it is; a picture that stands for three seconds alarms
broadcasters. Nothing is repaired by more than a quarter of its length: what needs more is not what was ordered.
"""

from actors.tour.timeline.words import Act, Decision, Edit, Need, Probe, Quality, Speech

SYNC = 0.045  # seconds: what nobody notices, and what every output keeps
LATE = 0.125  # sound behind lips
EARLY_LIMIT, LATE_LIMIT = 0.090, 0.185
SKEW = 0.250  # of two streams' starts
FREEZE = 0.5
LONGEST_FREEZE = 3.0
FADE = 0.25
SLOW, SLOWEST = 1.05, 1.10
HURRY, FASTEST = 1.05, 1.10
PAD = 1.5  # seconds of silence after the last word
SLIP = 2.0  # seconds a repair may move an end unnoticed
NEAR, FAR = 0.10, 0.25  # shares of the target
USABLE = 0.75
BLANK = 0.5

Warned = tuple[tuple[str, dict[str, float]], ...]


def decide(probe: Probe, need: Need) -> Decision:
    """Total: every probe has a decision. `Quality.UNUSABLE` says with `reason` what is wrong."""
    if (reason := _unusable(probe, need)) is not None:
        return Decision(Quality.UNUSABLE, reason=reason)
    match need.speech:
        case Speech.DIALOGUE:
            decision = _talking(probe, need)
        case Speech.NONE:
            decision = _silent(probe, need)
        case _ if probe.sound is None:
            decision = _without_sound(probe, need)
        case _:
            decision = _together(probe, need)
    return _bounded(_with_faults(decision, probe), probe, need)


def accepts(probe: Probe, decision: Decision, *, rate: float) -> str | None:
    """Whether a repaired file is what its decision promised; None if so, otherwise what is wrong with it."""
    frame = 1 / rate
    if probe.errors:
        return "it does not decode whole"
    if probe.picture is None:
        return "it has no picture"
    if abs(probe.picture.seconds - decision.picture) > frame + 0.001:
        return f"its picture lasts {probe.picture.seconds:.3f} s and not {decision.picture:.3f} s"
    if decision.sound is None:
        return None if probe.sound is None else "it has a sound that nobody asked for"
    if probe.sound is None:
        return "it has no sound"
    if abs(probe.sound.seconds - probe.picture.seconds) > SYNC:
        return f"sound and picture end {abs(probe.sound.seconds - probe.picture.seconds):.3f} s apart"
    if abs(probe.sound.start - probe.picture.start) > SYNC:
        return f"sound and picture start {abs(probe.sound.start - probe.picture.start):.3f} s apart"
    return None


def _unusable(probe: Probe, need: Need) -> str | None:
    picture, sound = probe.picture, probe.sound
    if picture is None or picture.frames < 1 or picture.seconds <= 0:
        return "no_picture"
    if picture.seconds < need.target * USABLE and need.speech is not Speech.DIALOGUE:
        return "too_short"
    if picture.black > picture.seconds * BLANK:
        return "black"
    if need.moves and picture.frozen > picture.seconds * BLANK:
        return "frozen"
    heard = sound is not None and sound.seconds > 0 and sound.loudest > 0
    if not heard and (need.sound_needed or need.speech is Speech.DIALOGUE):
        return "no_sound"
    return None


def _silent(probe: Probe, need: Need) -> Decision:
    """The picture alone, against the length it was planned to have."""
    assert probe.picture is not None  # noqa: S101  # `_unusable` came first
    edits, quality, warned = _fit_picture(probe.picture.seconds, need.target, need)
    return _decision(edits, quality, warned, picture=need.target if edits else probe.picture.seconds)


def _without_sound(probe: Probe, need: Need) -> Decision:
    base = _silent(probe, need)
    if base.quality is Quality.UNUSABLE:
        return base
    edits = (*base.edits, Edit(Act.SILENCE, base.picture))
    warned = (*base.warnings, ("sound_missing", {}))
    return _decision(edits, Quality.DEGRADED, warned, picture=base.picture, sound=base.picture)


def _talking(probe: Probe, need: Need) -> Decision:
    """A face that speaks: its streams may be shifted or ended together, never stretched against each other."""
    picture, sound = probe.picture, probe.sound
    assert picture is not None  # noqa: S101
    assert sound is not None  # noqa: S101
    skew, gap = sound.start - picture.start, sound.seconds - picture.seconds
    if abs(skew) > SKEW or not -EARLY_LIMIT <= gap <= LATE_LIMIT:
        return Decision(Quality.UNUSABLE, reason="lips_apart")
    # Streams that start apart start together again when both are counted from zero, as every one is here.
    apart: Warned = (("starts_apart", {"seconds": round(skew, 3)}),) if not -SYNC <= skew <= LATE else ()
    end = max(picture.seconds, sound.seconds) if abs(gap) > SYNC else picture.seconds
    act = Act.FREEZE if gap > 0 else Act.PAD_SOUND
    edits = (Edit(act, abs(gap)),) if abs(gap) > SYNC else ()
    off = abs(end - need.target)
    warned: Warned = (("length_off_plan", {"seconds": end, "planned": need.target}),) if off > need.target * FAR else ()
    quality = Quality.DEGRADED if warned else Quality.REPAIRED if edits or apart else Quality.STANDARD
    return _decision(edits, quality, (*apart, *warned), picture=end, sound=end)


def _together(probe: Probe, need: Need) -> Decision:
    """Picture and sound: the one that is further from the plan gives way to the other."""
    assert probe.picture is not None  # noqa: S101
    assert probe.sound is not None  # noqa: S101
    seen, heard = probe.picture.seconds, probe.sound.seconds
    gap = heard - seen
    if abs(gap) <= max(SYNC, 1 / need.rate):
        end = min(seen, heard)
        return _decision((), *_off_plan(end, need), picture=end, sound=end)
    if abs(gap) <= LATE:
        end = max(seen, heard)
        edit = Edit(Act.FREEZE if gap > 0 else Act.PAD_SOUND, abs(gap))
        return _decision((edit,), *_off_plan(end, need), picture=end, sound=end)
    if heard < seen * 0.5:  # not a voice-over of this tour, or only its beginning
        if need.speech is Speech.NARRATION:
            return Decision(Quality.UNUSABLE, reason="narration_cut")
        return _ambience(seen, heard)
    if need.speech is Speech.AMBIENCE:
        return _ambience(seen, heard)
    return _narrated(seen, heard, need)


def _off_plan(end: float, need: Need) -> tuple[Quality, Warned]:
    if abs(end - need.target) <= max(SLIP, need.target * NEAR):
        return Quality.STANDARD, ()
    return Quality.DEGRADED, (("length_off_plan", {"seconds": end, "planned": need.target}),)


def _ambience(seen: float, heard: float) -> Decision:
    if heard > seen:
        return _decision((Edit(Act.CUT_SOUND, seen),), Quality.REPAIRED, (), picture=seen, sound=seen)
    return _decision((Edit(Act.PAD_SOUND, seen - heard),), Quality.REPAIRED, (), picture=seen, sound=seen)


def _narrated(seen: float, heard: float, need: Need) -> Decision:
    """No word is cut: silence, tempo and the picture make up the difference."""
    if heard < seen:
        return _shorter_speech(seen, heard, need)
    if abs(seen - need.target) > abs(heard - need.target):
        # The picture is the one that is not as planned.
        edits, quality, warned = _fit_picture(seen, heard, need)
        if quality is not Quality.UNUSABLE:
            return _decision(edits, quality, warned, picture=heard, sound=heard)
    tempo = (heard - need.fixed) / (seen - need.fixed) if seen > need.fixed else FASTEST + 1
    if tempo <= FASTEST:
        quality = Quality.REPAIRED if tempo <= HURRY else Quality.DEGRADED
        hurried: Warned = (("speech_hurried", {"factor": round(tempo, 4)}),) if tempo > HURRY else ()
        return _decision((Edit(Act.TEMPO, tempo),), quality, hurried, picture=seen, sound=seen)
    edits, quality, warned = _fit_picture(seen, heard, need)
    if quality is Quality.UNUSABLE:
        return Decision(Quality.UNUSABLE, reason="speech_too_long")
    return _decision(edits, quality, warned, picture=heard, sound=heard)


def _shorter_speech(seen: float, heard: float, need: Need) -> Decision:
    gap = seen - heard
    if gap <= PAD:
        return _decision((Edit(Act.PAD_SOUND, gap),), Quality.REPAIRED, (), picture=seen, sound=seen)
    # Silence after the last word, and the pictures end with it.
    end = max(heard + PAD, seen - (need.target * FAR))
    if end - heard > seen * FAR:
        return Decision(Quality.UNUSABLE, reason="narration_cut")
    edits, quality, warned = _fit_picture(seen, end, need)
    if end - heard > PAD:
        quality, warned = Quality.DEGRADED, (*warned, ("speech_short", {"silence": round(end - heard, 3)}))
    return _decision((*edits, Edit(Act.PAD_SOUND, end - heard)), quality, warned, picture=end, sound=end)


def _fit_picture(seen: float, end: float, need: Need) -> tuple[tuple[Edit, ...], Quality, Warned]:
    """Steps that make a picture of `seen` seconds last `end`."""
    gap, share = abs(end - seen), abs(end - seen) / need.target
    if gap <= 1 / need.rate:
        return (), Quality.STANDARD, ()
    if end < seen:
        if gap <= SLIP or share <= NEAR:
            return (Edit(Act.CUT_PICTURE, end),), Quality.REPAIRED, ()
        return (Edit(Act.CUT_PICTURE, end),), Quality.DEGRADED, (("picture_cut", {"seconds": round(gap, 3)}),)
    if gap <= FREEZE:
        return (Edit(Act.FREEZE, gap),), Quality.REPAIRED, ()
    if gap <= SLIP and share <= NEAR and gap - FREEZE <= seen * (SLOW - 1):
        return _slowed(seen, gap, FREEZE), Quality.REPAIRED, ()
    warned: Warned = (("picture_stretched", {"seconds": round(gap, 3)}),)
    if share > FAR:
        return (), Quality.UNUSABLE, ()
    if need.loopable:
        return (Edit(Act.LOOP, end),), Quality.DEGRADED, warned
    frozen = max(0.0, gap - seen * (SLOWEST - 1))
    if frozen > LONGEST_FREEZE:
        return (), Quality.UNUSABLE, ()
    return _slowed(seen, gap, frozen), Quality.DEGRADED, warned


def _slowed(seen: float, gap: float, frozen: float) -> tuple[Edit, ...]:
    slow = Edit(Act.SLOW, (seen + gap - frozen) / seen)
    return (slow, Edit(Act.FREEZE, frozen)) if frozen > 0 else (slow,)


def _decision(
    edits: tuple[Edit, ...], quality: Quality, warned: Warned, *, picture: float, sound: float | None = None
) -> Decision:
    if quality is Quality.UNUSABLE:
        return Decision(quality, reason="too_far_off")
    return Decision(quality, edits, warned, picture, sound)


def _with_faults(decision: Decision, probe: Probe) -> Decision:
    """What could not be decoded is missing from what comes out, and said."""
    if not probe.errors or decision.quality is Quality.UNUSABLE:
        return decision
    warned = (*decision.warnings, ("damaged_media", {"packets": float(probe.errors)}))
    return Decision(Quality.DEGRADED, decision.edits, warned, decision.picture, decision.sound)


def _bounded(decision: Decision, probe: Probe, need: Need) -> Decision:
    """A repair that changes more than a quarter of what is seen or heard is none."""
    if decision.quality is Quality.UNUSABLE or probe.picture is None:
        return decision
    seen = abs(decision.picture - probe.picture.seconds)
    heard = 0.0
    if decision.sound is not None and probe.sound is not None and need.speech is Speech.NARRATION:
        heard = abs(decision.sound - probe.sound.seconds)
    if max(seen, heard) > need.target * FAR + SYNC:
        return Decision(Quality.UNUSABLE, reason="too_far_off")
    return decision
