"""The job types of an imaginary app, one for each way to run."""

from typing import Any

from pydantic import BaseModel

from actors import job_type

POSTER, SAYING = 5, 3  # credits


class Asked(BaseModel):
    prompt: str


@job_type("placard", request=Asked, kind="replicate-prediction", price=POSTER)
def poster(asked: Asked) -> dict[str, Any]:
    return {"model": "acme/draw", "input": {"prompt": asked.prompt}}


@job_type("postcard", request=Asked, kind="kie-standard", price=POSTER)
def card(asked: Asked) -> dict[str, Any]:
    return {"model": "nano-banana-pro", "input": {"prompt": asked.prompt}}


@job_type("motto", request=Asked, kind="anthropic-sync", price=SAYING)
def saying(asked: Asked) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 10, "messages": [{"role": "user", "content": asked.prompt}]}


@job_type("chore-of-passes", request=Asked, price=2)
def errand(_context: object, asked: Asked) -> dict[str, Any]:
    return {"done": asked.prompt}
