"""What runs on for nobody: stopped where its provider can stop it, told to an operator where it cannot; for every kind."""

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import httpx
import pytest

from actors.outbox import deliver_due
from actors.settings import Settings
from providers.contract import Account, Mode
from providers.http import make_client
from providers.registry import KINDS, get_kind
from store import calls, receipts, settle, signals
from store.engine import Database, make_engine
from store.models import Settlement
from store.states import State
from tests.conftest import Server, scratch_database
from tests.store.steps import FAR, Steps

WAITING = [kind.name for kind in KINDS.values() if kind.mode is Mode.ASYNC]
every = pytest.mark.parametrize("kind", WAITING)
HANDLES: dict[str, dict[str, Any]] = {"elevenlabs-async": {"operation": "dubbing"}}


@pytest.fixture(scope="module")
def steps(server: Server, template: str) -> Iterator[Steps]:
    with scratch_database(server, template) as url:
        db = Database(make_engine(url, name="tests"))
        yield Steps(db)
        db.dispose()


def delivered(steps: Steps, answers: list[int]) -> list[str]:
    """Deliver what is owed, the provider giving each of these statuses in turn; the requests that it saw."""
    seen: list[str] = []

    def wire(request: httpx.Request) -> httpx.Response:
        seen.append(f"{request.method} {request.url.path}")
        return httpx.Response(answers.pop(0), json={"id": "t"})

    async def run(function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return function(*given, **named)

    async def main() -> None:
        async with make_client(transport=httpx.MockTransport(wire)) as client:
            rt: Any = SimpleNamespace(
                db=steps.db, on_thread=run, kind=get_kind, client=client, options=Settings(),
                account=lambda kind, name: Account(name, kind.base_url, "key"),
            )  # fmt: skip
            await deliver_due(rt, run)

    asyncio.run(main())
    return seen


def owed(steps: Steps, job_id: UUID) -> tuple[int, bool]:
    """How often its cancel was tried, and whether it was delivered."""
    row = steps.one(
        "select attempts, delivered_at is not null as done from callkeeper.consequences where job_id = :id", id=job_id
    )
    return row["attempts"], row["done"]


def alerts(steps: Steps) -> list[str]:
    return [row["subject"] for row in steps.all("select subject from callkeeper.alerts")]


def handle(kind: str) -> dict[str, Any]:
    return {"account": "default", "cancels": KINDS[kind].cancels, **HANDLES.get(kind, {})}


@every
def test_what_was_learned_too_late_is_stopped_or_told(steps: Steps, kind: str) -> None:
    lease = steps.running()
    call = steps.db.once(calls.mark_call_started, lease, kind=kind, handle=handle(kind), quiet=FAR)
    gone = Settlement(State.FAILED, error_code="reconcile_no_recovery")
    steps.db.transact(settle.end_held, lease, gone)
    steps.db.once(receipts.keep_receipt, lease.job_id, call, f"{kind}-late")
    seen = delivered(steps, [200])
    watched = steps.all("select * from callkeeper.upstream_watches where job_id = :id", id=lease.job_id)
    assert [row["provider_task_id"] for row in watched] == [f"{kind}-late"], "an operator hears of it if it runs"
    assert alerts(steps) == []
    if KINDS[kind].cancels:
        assert owed(steps, lease.job_id) == (1, True)
        assert len(seen) == 1
        assert f"{kind}-late" in seen[0]
    else:
        assert seen == []
        assert steps.count("callkeeper.consequences", "job_id = :id", id=lease.job_id) == 0


@every
def test_a_stop_ends_the_work_or_says_that_it_goes_on(steps: Steps, kind: str) -> None:
    lease = steps.running()
    steps.db.once(calls.mark_call_started, lease, kind=kind, handle=handle(kind), quiet=FAR)
    steps.db.once(calls.checkpoint_call, lease, f"{kind}-stopped", first_poll=FAR)
    assert steps.db.transact(signals.request_stop, lease.job_id) is State.CANCELLED
    (event,) = steps.all(
        "select data ->> 'upstream' as upstream from callkeeper.job_events where job_id = :id and kind = 'cancelled'",
        id=lease.job_id,
    )
    cancels = KINDS[kind].cancels
    assert event["upstream"] == ("cancel_owed" if cancels else "left_running")
    if not cancels:
        assert steps.count("callkeeper.consequences", "job_id = :id", id=lease.job_id) == 0
        return
    # A provider that is down is asked again, until it has heard.
    assert len(delivered(steps, [503])) == 1
    assert owed(steps, lease.job_id) == (1, False)
    steps.by_hand("update callkeeper.consequences set available_at = now() where job_id = :id", id=lease.job_id)
    assert len(delivered(steps, [200])) == 1
    assert owed(steps, lease.job_id) == (2, True)
