"""What an app calls: a tour, submitted as a run in the app's own transaction."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actors.runs import submit_run
from actors.steps import Step
from actors.tour import jobs as _job_types  # noqa: F401  # registers them
from actors.tour import orders
from actors.tour.check import problems
from actors.tour.plan import Tour
from store.models import SubmittedRun

RUN_TYPE = "tour"


def start(
    connection: sa.Connection | Session,
    tour: Tour | Mapping[str, Any],
    *,
    user_id: str | None = None,
    account_id: str | None = None,
    idempotency_key: str | None = None,
    email: str | None = None,
    reuse: bool = False,
) -> SubmittedRun:
    """Submit a render. A good plan reserves all of its credits at once, or nothing is submitted.

    Any other plan begins with a step that asks how it might be mended, or fails with a notice, before anything is
    rendered. `reuse` allows scenes of the user's other tours; by default everything is made fresh, and only what this
    very run has made already is used again. Raises pydantic's ValidationError and SubmitRefused.
    """
    asked = tour if isinstance(tour, Tour) else Tour.model_validate(tour)
    good = not problems(asked)
    return submit_run(
        connection,
        RUN_TYPE,
        orders.steps(asked) if good else [Step(orders.PLAN, "tour.plan", asked)],
        user_id=user_id,
        account_id=account_id,
        idempotency_key=idempotency_key,
        result_step=orders.FINAL,
        email=email,
        reuse=reuse,
    )
