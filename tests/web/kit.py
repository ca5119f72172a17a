"""The job types of an app whose jobs are submitted over HTTP, registered alike in web processes and workers."""

import time
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from actors import Context, job_type

PRICE = 4  # credits


class Sum(BaseModel):
    """Adds up. `gate`: only once this file is there. `secret`: named by reference, and told nobody."""

    model_config = ConfigDict(strict=True)

    numbers: Annotated[list[int], Field(max_length=20)]
    gate: Annotated[str, Field(max_length=200)] | None = None
    secret: dict[Literal["$secret"], str] | None = None


class Poem(BaseModel):
    model_config = ConfigDict(strict=True)

    about: Annotated[str, Field(max_length=100)]
    style: Literal["plain", "baroque"] = "plain"


@job_type("sum", request=Sum)
def add_up(context: Context, asked: Sum) -> dict[str, Any]:
    while asked.gate and not Path(asked.gate).exists():
        context.check()
        time.sleep(0.02)
    if asked.secret:
        raise RuntimeError(f"the vendor said no to {context.secret(asked.secret['$secret'])}")
    return {"sum": sum(asked.numbers)}


@job_type("paid-poem", request=Poem, price=PRICE)
def paid_poem(_context: Context, asked: Poem) -> dict[str, Any]:
    return {"poem": f"{asked.about}, {asked.style}ly"}
