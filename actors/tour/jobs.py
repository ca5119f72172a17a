"""A tour's job types. Workers import this module; what each does with media is in `make`, what it decides elsewhere."""

from datetime import timedelta
from typing import Any

from actors import Context, job_type
from actors.context import WorkFailed
from actors.rollout import Rollout
from actors.steps import Step
from actors.tour import make, orders, plan_repair
from actors.tour.check import Problem, problems
from actors.tour.orders import AvatarOrder, FinalOrder, JoinOrder, SceneOrder, VoiceOrder
from actors.tour.plan import Tour
from providers.anthropic import AnthropicRequest

_MEDIA_LIMIT = timedelta(minutes=60)
REPAIR_CREDITS = 2

# What a customer can do about: codes of their own. Any other problem is the planner's.
_CUSTOMERS = {"no_photos": "listing_photos_missing", "unsupported_language": "language_unsupported"}


@job_type("tour.scene", request=SceneOrder, kind="openrouter-video", price=lambda order: order.price, heavy=True)
def scene(order: SceneOrder) -> dict[str, Any]:
    """A scene is silent: what is heard in a tour is said by its voices."""
    return _video(order)


@job_type("tour.scene-again", request=SceneOrder, kind="openrouter-video", heavy=True)
def scene_again(order: SceneOrder) -> dict[str, Any]:
    """A scene that came and cannot be used, once more: the customer has paid for it."""
    return _video(order)


def _video(order: SceneOrder) -> dict[str, Any]:
    frames = [{"frame_type": "first_frame", "image_url": {"url": order.photo}}] if order.photo else None
    return {
        "model": order.model,
        "prompt": order.prompt,
        "duration": order.seconds,
        "aspect_ratio": order.aspect,
        "generate_audio": False,
        "frame_images": frames,
    }


# HeyGen may work for two hours, on films of half an hour: a greeting that is not there when its step's time is over is
# stuck.
@job_type(
    "tour.avatar",
    request=AvatarOrder,
    kind="heygen-video",
    price=lambda order: order.price,
    heavy=True,
    may_abandon=True,
)
def avatar(order: AvatarOrder) -> dict[str, Any]:
    """The person who greets."""
    return {
        "type": "avatar",
        "avatar_id": order.avatar.avatar_id,
        "voice_id": order.avatar.voice_id,
        "script": order.avatar.script,
        "title": order.title,
        "aspect_ratio": order.aspect,
        "resolution": "720p",
    }


@job_type("tour.voice", request=VoiceOrder, kind="elevenlabs-sync", price=lambda order: order.price)
def voice(order: VoiceOrder) -> dict[str, Any]:
    """The voice-over. Its call is answered in one piece, so a lost answer is never asked for again by itself."""
    return {
        "operation": "speech",
        "voice_id": order.voice.voice_id,
        "text": order.voice.script,
        "model_id": order.voice.model_id,
    }


@job_type("tour.plan-repair", request=AnthropicRequest, kind="anthropic-sync", price=REPAIR_CREDITS)
def ask_for_repair(question: AnthropicRequest) -> dict[str, Any]:
    """The one question to a language model."""
    return question.model_dump(mode="json")


@job_type("tour.plan", request=Tour, retry_safe=True)
def check_plan(context: Context, tour: Tour) -> dict[str, Any]:
    """Before any money: go on with a good plan, ask once about one that can be mended, fail with any other."""
    found = problems(tour)
    if not found:
        context.add_steps(orders.steps(tour, after=orders.PLAN))
        return {"problems": []}
    if not plan_repair.is_mendable(found):
        raise WorkFailed(_code(found), _words(found))
    codes = ",".join(sorted({one.code for one in found}))
    mode = context.rollout("plan_repair")
    if mode is not Rollout.ON:
        if mode is Rollout.SHADOW:
            context.shadowed("plan_repair", {"would": "ask", "problems": codes})
        raise WorkFailed("plan_invalid", _words(found))
    context.shadowed("plan_repair", {"would": "ask", "problems": codes}, did=True)
    ask = Step(orders.PLAN_REPAIR, "tour.plan-repair", plan_repair.question(tour, found), [orders.PLAN])
    context.add_steps([ask, Step(orders.PLAN_MENDED, "tour.plan-mended", tour, [orders.PLAN_REPAIR])])
    return {"problems": [str(one) for one in found]}


@job_type("tour.plan-mended", request=Tour, retry_safe=True)
def judge_repair(context: Context, tour: Tour) -> dict[str, Any]:
    """Go on with a plan that is good now. There is no second question."""
    answer = (context.outcomes()[orders.PLAN_REPAIR].result or {}).get("text")
    verdict = plan_repair.judge(tour, str(answer))
    if verdict.tour is None:
        raise WorkFailed("plan_unfixable", f"the repair was refused ({verdict.why}); {_words(verdict.left)}")
    count = len(problems(tour))
    context.warn(
        "plan_repaired", severity="info", customer_visible=False, quality="repaired", details={"faults": count}
    )
    context.add_steps(orders.steps(verdict.tour, after=orders.PLAN_MENDED))
    return {"plan": verdict.tour.plan.model_dump(mode="json")}


@job_type("tour.join", request=JoinOrder, retry_safe=True, heavy=True, deadline=_MEDIA_LIMIT)
def join(context: Context, order: JoinOrder) -> dict[str, Any]:
    """All scenes as one picture."""
    return make.joined(context, order)


@job_type("tour.final", request=FinalOrder, retry_safe=True, heavy=True, deadline=_MEDIA_LIMIT)
def final(context: Context, order: FinalOrder) -> dict[str, Any]:
    """The tour."""
    return make.final(context, order)


def _code(found: tuple[Problem, ...]) -> str:
    known = [_CUSTOMERS[one.code] for one in found if one.code in _CUSTOMERS]
    return known[0] if known else "plan_unfixable"


def _words(found: tuple[Problem, ...]) -> str:
    return "the plan cannot be made: " + "; ".join(map(str, found[:5]))
