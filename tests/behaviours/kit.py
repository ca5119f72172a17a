"""Job types of an app that writes books, keeps secrets and loses its patience."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from actors import Context, RetryLater, job_type

SECRET = "correct-horse-battery-staple-4711"  # what must never be seen
# Not in the order of its keys, not in ASCII, and with what Postgres' JSON cannot hold.
ODD = {"zebra": "ñandú \N{LLAMA}", "a": [1.5, {"y": None, "b": "nul \x00 end"}], "\u2028": "line\nbreak"}


class Book(BaseModel):
    """`gate`: wait for this file before the first chapter. `pause`: seconds after each chapter."""

    chapters: int = 3
    tokens: int = 0
    gate: str | None = None
    pause: float = 0


@job_type("book", request=Book, retry_safe=True, max_attempts=50)
def book(context: Context, asked: Book) -> dict[str, Any]:
    while asked.gate and not Path(asked.gate).exists():
        context.check()
        time.sleep(0.01)
    for chapter in range(asked.chapters):
        for _ in range(asked.tokens):
            context.say("é ")
        context.milestone("chapter_done", {**ODD, "chapter": chapter})
        context.progress(min(1.0, (chapter + 1) / asked.chapters))
        time.sleep(asked.pause)
    return {"chapters": asked.chapters}


class Diary(BaseModel):
    ink: dict[str, str]
    again: bool = False
    broken: bool = False
    gate: str | None = None


@job_type("diary", request=Diary, retry_safe=True)
def diary(context: Context, asked: Diary) -> dict[str, Any]:
    while asked.gate and not Path(asked.gate).exists():
        time.sleep(0.01)
    value = context.secret(asked.ink["$secret"])
    context.milestone("opened", {"key": f"see https://files.example/d?token={value}", f"by {value}": [value]})
    context.say(f"I opened it with {value}, and ")
    if asked.broken:
        raise RuntimeError(f"{value} fits no lock")
    if asked.again and context.attempt == 1:
        raise RetryLater(0.01)
    return {"length": len(value), "key": f"it is {value}"}


class Wait(BaseModel):
    """`raises`: a TimeoutError instead of waiting. `gate`: until this file is there, deaf to everything."""

    raises: bool = False
    gate: str | None = None


def _wait(asked: Wait) -> dict[str, Any]:
    if asked.raises:
        raise TimeoutError("the kettle took too long")
    while asked.gate and not Path(asked.gate).exists():
        time.sleep(0.02)
    return {}


@job_type("hung", request=Wait, deadline=timedelta(seconds=2))
def hung(context: Context, asked: Wait) -> dict[str, Any]:  # it listens to nobody
    return _wait(asked)


@job_type("hung-attempt", request=Wait, attempt_deadline=timedelta(seconds=1), retry_safe=True, max_attempts=2)
def hung_attempt(context: Context, asked: Wait) -> dict[str, Any]:
    return {"attempt": context.attempt} if context.attempt > 1 else _wait(asked)


@job_type("hung-once", request=Wait, attempt_deadline=timedelta(seconds=1))
def hung_once(context: Context, asked: Wait) -> dict[str, Any]:  # it listens to nobody
    return _wait(asked)


class Text(BaseModel):
    prompt: str


@job_type("told", request=Text, kind="anthropic-sync", price=3)
def told(asked: Text) -> dict[str, Any]:
    return {
        "model": "claude-x",
        "max_tokens": 50,
        "messages": [{"role": "user", "content": asked.prompt}],
        "stream": True,
    }
