"""The demo app's job types: a poster, rendered for some seconds, and a caption, answered at once. Workers import it."""

import math
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from actors import job_type

POSTER_PRICE, CAPTION_PRICE = 12, 3
CREDITS_PER_SECOND = 2


class Poster(BaseModel):
    number: int
    prompt: str


class Caption(BaseModel):
    number: int
    prompt: str


def cost_of_poster(usage: Mapping[str, Any]) -> int:
    """Two credits for each second that the provider says it worked."""
    return math.ceil(float(usage.get("predict_time", 0)) * CREDITS_PER_SECOND)


@job_type("poster", request=Poster, kind="replicate-prediction", price=POSTER_PRICE, cost=cost_of_poster)
def poster(order: Poster) -> dict[str, Any]:
    return {"model": "demo/painter", "input": {"order": order.number, "prompt": order.prompt}}


@job_type("caption", request=Caption, kind="anthropic-sync", price=CAPTION_PRICE)
def caption(order: Caption) -> dict[str, Any]:
    words = f"Order {order.number}: write a caption for {order.prompt}."
    return {"model": "demo-writer", "max_tokens": 100, "messages": [{"role": "user", "content": words}]}
