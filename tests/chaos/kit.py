"""The job types of an imaginary app, registered alike in the tests and in the workers they start."""

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from actors import Context, job_type
from tests.chaos.faults import write_line

PICTURE, WORDS, CHORE = 5, 3, 2  # credits


class Picture(BaseModel):
    prompt: str
    video: bool = False


class Words(BaseModel):
    prompt: str


class Chore(BaseModel):
    """`starts`: a file that gets a line for every start. `gate`: work until this file is there. `spin`: do not let go."""

    starts: str
    gate: str | None = None
    seconds: float = 0
    spin: bool = False
    deaf: bool = False
    fail: str | None = None


@job_type("picture", request=Picture, kind="replicate-prediction", price=PICTURE)
def picture(asked: Picture) -> dict[str, Any]:
    return {"model": "acme/video" if asked.video else "acme/draw", "input": {"prompt": asked.prompt}}


@job_type("large-picture", request=Picture, kind="replicate-prediction", price=PICTURE, queue="large")
def large_picture(asked: Picture) -> dict[str, Any]:
    return picture(asked)


@job_type(
    "hasty-picture",
    request=Picture,
    kind="replicate-prediction",
    price=PICTURE,
    deadline=timedelta(seconds=2),
    may_abandon=True,
)
def hasty_picture(asked: Picture) -> dict[str, Any]:
    return picture(asked)


@job_type(
    "impatient-picture",
    request=Picture,
    kind="replicate-prediction",
    price=PICTURE,
    queue_deadline=timedelta(seconds=1),
)
def impatient_picture(asked: Picture) -> dict[str, Any]:
    return picture(asked)


def _message(asked: Words) -> dict[str, Any]:
    return {"model": "claude-x", "max_tokens": 10, "messages": [{"role": "user", "content": asked.prompt}]}


@job_type("words", request=Words, kind="anthropic-sync", price=WORDS)
def words(asked: Words) -> dict[str, Any]:
    return _message(asked)


@job_type("words-again", request=Words, kind="anthropic-sync", price=WORDS, retry_safe=True)
def words_again(asked: Words) -> dict[str, Any]:
    return _message(asked)


def _work(context: Context, asked: Chore) -> dict[str, Any]:
    write_line(asked.starts, f"{os.getpid()} {context.attempt}")
    if asked.fail:
        raise RuntimeError(asked.fail)
    end = time.monotonic() + asked.seconds
    while time.monotonic() < end or (asked.gate and not Path(asked.gate).exists()):
        if not asked.deaf:
            context.check()
        if not asked.spin:
            time.sleep(0.02)
    return {"pid": os.getpid(), "attempt": context.attempt}


@job_type("hasty-chore", request=Chore, price=CHORE, deadline=timedelta(seconds=2))
def hasty_chore(context: Context, asked: Chore) -> dict[str, Any]:
    return _work(context, asked)


@job_type("chore", request=Chore, price=CHORE)
def chore(context: Context, asked: Chore) -> dict[str, Any]:
    return _work(context, asked)


@job_type("chore-again", request=Chore, price=CHORE, retry_safe=True)
def chore_again(context: Context, asked: Chore) -> dict[str, Any]:
    return _work(context, asked)
