"""Which scenes a tour is made of, and how long each is. Pure: what was planned and what came goes in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from actors.tour.timeline.policy import LONGEST_FREEZE, USABLE, decide
from actors.tour.timeline.words import Decision, Need, Probe, Quality, Speech, worst

STRETCH = 1.2  # times as long as planned, at most, when a scene is missing
STANDING = 0.25  # share of scenes that may stand still too long


@dataclass(frozen=True, slots=True)
class Shot:
    """A scene as it was planned. `moves` is false for a camera that stands: such a picture can also begin again."""

    id: str
    seconds: float
    optional: bool = False
    moves: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """A scene that is in the tour, and what is done to it."""

    shot: Shot
    decision: Decision


@dataclass(frozen=True, slots=True)
class Arrangement:
    """`dropped` scenes with the reason of each. Without `placed`, `reason` says why there is no tour."""

    quality: Quality
    placed: tuple[Placed, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    reason: str = ""

    @property
    def seconds(self) -> float:
        return sum(one.decision.picture for one in self.placed)


def arrange(shots: Sequence[Shot], came: Mapping[str, Probe | None], *, speech: float, rate: float) -> Arrangement:
    """Every scene that can be shown, in order. One that may be missing and is makes the others longer.

    `came` has a probe for each scene that exists; `speech` is how long the tour will talk, in seconds.
    """
    decided = {shot.id: _decided(shot, came.get(shot.id), shot.seconds, rate) for shot in shots}
    gone = [shot for shot in shots if decided[shot.id].quality is Quality.UNUSABLE]
    dropped = tuple((shot.id, decided[shot.id].reason) for shot in gone)
    if gone and (reason := _cannot_miss(shots, gone)) is not None:
        return Arrangement(Quality.UNUSABLE, dropped=dropped, reason=reason)
    kept = [shot for shot in shots if shot not in gone]
    if _stand_still(kept, came):
        return Arrangement(Quality.UNUSABLE, dropped=dropped, reason="frozen")
    placed = tuple(Placed(shot, decided[shot.id]) for shot in kept)
    if gone:
        placed = _longer(placed, came, speech=speech, rate=rate)
    quality = worst(*(one.decision.quality for one in placed), *([Quality.DEGRADED] if gone else []))
    return Arrangement(quality, placed, dropped)


def _decided(shot: Shot, probe: Probe | None, seconds: float, rate: float) -> Decision:
    if probe is None:
        return Decision(Quality.UNUSABLE, reason="missing")
    return decide(probe, Need(seconds, rate, Speech.NONE, loopable=not shot.moves, moves=shot.moves))


def _cannot_miss(shots: Sequence[Shot], gone: Sequence[Shot]) -> str | None:
    """One scene may be missing if nobody needs it, it is neither the first nor the last, and enough is left."""
    if any(not shot.optional for shot in gone):
        return "scene_needed"
    if shots[0] in gone or shots[-1] in gone:
        return "first_or_last_missing"
    if len(gone) > 1 or sum(shot.seconds for shot in gone) > (1 - USABLE) * sum(shot.seconds for shot in shots):
        return "too_little_left"
    return None


def _stand_still(kept: Sequence[Shot], came: Mapping[str, Probe | None]) -> bool:
    still = 0
    for shot in kept:
        probe = came[shot.id]
        assert probe is not None  # noqa: S101  # what is kept was decided on
        assert probe.picture is not None  # noqa: S101
        still += shot.moves and probe.picture.longest_frozen > LONGEST_FREEZE
    return still > STANDING * len(kept)


def _longer(
    placed: tuple[Placed, ...], came: Mapping[str, Probe | None], *, speech: float, rate: float
) -> tuple[Placed, ...]:
    """Scenes take over some of the time of the missing one, as far as there is something to say and each can."""
    there = sum(one.decision.picture for one in placed)
    factor = min(STRETCH, speech / there)
    if factor <= 1:
        return placed
    longer = []
    for one in placed:
        decision = _decided(one.shot, came[one.shot.id], one.decision.picture * factor, rate)
        usable = decision.quality is not Quality.UNUSABLE
        longer.append(Placed(one.shot, decision) if usable else one)
    return tuple(longer)
