"""One try of a language model to mend a plan: what it is asked, and whether its answer may be used. Pure."""

import json
from dataclasses import dataclass

from pydantic import ValidationError

from actors.tour.capabilities import MODELS, MOVES
from actors.tour.check import Problem, problems
from actors.tour.plan import Plan, Tour

MODEL = "claude-sonnet-4-5"
MAX_TOKENS = 8_000

_SYSTEM = (
    "You mend plans of real-estate listing videos. You get a plan as JSON, what is wrong with it, and what is allowed."
    " Answer with the whole mended plan as one JSON object and nothing else. Change only what is wrong. Never change"
    " the title, the language, or any id, never add scenes, and leave out none but optional ones."
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of a mended plan: the tour to make, or why it is refused (`why` is a code, `left` what is still wrong)."""

    tour: Tour | None
    why: str = ""
    left: tuple[Problem, ...] = ()


def question(tour: Tour, found: tuple[Problem, ...]) -> dict[str, object]:
    """The request to `anthropic-sync`. Names of photos go along, their addresses do not."""
    model = MODELS[tour.video_model]
    allowed = {
        "camera": list(MOVES),
        "seconds": list(model.seconds),
        "photo": sorted(tour.photos),
        "seconds_together_at_most": tour.longest,
    }
    asked = {
        "plan": tour.plan.model_dump(mode="json"),
        "wrong": [{"field": one.field, "value": one.value, "remedy": one.remedy} for one in found],
        "allowed": allowed,
    }
    return {
        "model": MODEL,
        "max_tokens": MAX_TOKENS,
        "system": _SYSTEM,
        "messages": [{"role": "user", "content": json.dumps(asked, ensure_ascii=False, sort_keys=True)}],
    }


def is_mendable(found: tuple[Problem, ...]) -> bool:
    """Whether another plan for the same listing could be without these problems."""
    return all(one.repairable for one in found)


def judge(tour: Tour, answer: str) -> Verdict:
    """Take the mended plan only if nothing is wrong with it any more and nothing was touched that was not to be."""
    try:
        mended = Plan.model_validate_json(_only_json(answer))
    except ValidationError:
        return Verdict(None, "not_a_plan", problems(tour))
    if (touched := _touched(tour.plan, mended)) is not None:
        return Verdict(None, f"changed_{touched}", problems(tour))
    after = tour.model_copy(update={"plan": mended})
    before, left = problems(tour), problems(after)
    if len(left) > len(before) or {one.code for one in left} - {one.code for one in before}:
        return Verdict(None, "made_it_worse", left)
    return Verdict(after) if not left else Verdict(None, "still_wrong", left)


def _only_json(answer: str) -> str:
    """Models like to wrap what they were asked for."""
    start, end = answer.find("{"), answer.rfind("}")
    return answer[start : end + 1] if 0 <= start < end else "null"


def _touched(before: Plan, after: Plan) -> str | None:
    """What a repair has no business to change: who speaks and how, and that there is no more to pay for."""
    if (before.title, before.language) != (after.title, after.language):
        return "title_or_language"
    if (before.avatar is None) != (after.avatar is None):
        return "avatar"
    if before.avatar is not None and after.avatar is not None:
        kept = ("avatar_id", "voice_id", "optional")
        if any(getattr(before.avatar, name) != getattr(after.avatar, name) for name in kept):
            return "avatar"
    if (before.voice.voice_id, before.voice.model_id) != (after.voice.voice_id, after.voice.model_id):
        return "voice"
    known, needed = (
        {one.id for one in before.scenes if everything or not one.optional} for everything in (True, False)
    )
    there = [one.id for one in after.scenes]
    if len(there) > len(set(there)) or set(there) - known or needed - set(there):
        return "scenes"
    return "optional" if {one.id for one in after.scenes if one.optional} & needed else None
