"""Callbacks over real HTTP: early, doubled, forged, replayed; a hint to look, and for a lost call the only way home."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from actors.callbacks import make_token
from providers.sandbox.app import WEBHOOK_SECRET
from providers.webhooks import ELEVENLABS, sign_stamped
from tests.kinds.operations import Operation
from tests.kinds.play import Play
from tests.kinds.world import OURS

Act = Callable[[Play], None]
UNTIMED = ("heygen-video",)  # nothing says when it was signed: a copy stays good for ever, and is known by its name


def of(operation: Operation) -> Iterator[tuple[str, Act]]:
    if operation.vendor == "elevenlabs" and not operation.sync and operation.asks:
        yield "of the workspace", _of_the_workspace
    if not operation.calls_back:
        return
    yield "doubled", _doubled
    yield "early", _early
    yield "after the end", _after_the_end
    yield "early, and the answer lost", partial(_names_the_lost, webhook="early")
    yield "late, and the answer lost", partial(_names_the_lost, webhook="on_completion")
    yield "awaited, and never comes", _never_comes
    yield "forged", partial(_refused, webhook="forged")
    yield "unsigned", partial(_refused, webhook="unsigned")
    yield "replayed", _replayed
    yield "at another's address", _misled


def _deliveries(play: Play) -> list[str | None]:
    return [row["outcome"] for row in play.world.rows("select outcome from callkeeper.webhook_deliveries order by id")]


def _home_by_hint(play: Play) -> None:
    """Nobody's time has come: what is due now is due because of the callback."""
    play.world.work()
    for _ in range(3):
        play.world.poll()
        play.world.work()


def _start(play: Play, *rules: tuple[str, dict], webhook: str = "on_completion", **defaults: object) -> None:
    play.world.listen()
    play.script(*rules, webhook=webhook, **defaults)
    play.start()


def brings_it_home(play: Play) -> None:
    _start(play)
    play.world.poll()
    assert play.status == "waiting"
    play.run_out()
    assert play.told() == [200]
    _home_by_hint(play)
    assert _deliveries(play) == ["polled"]
    play.ends_well()


def _doubled(play: Play) -> None:
    _start(play, webhook="twice")
    play.run_out()
    assert play.told(2) == [200, 200]
    _home_by_hint(play)
    assert _deliveries(play) == ["polled"], "kept once"
    play.ends_well()


def _after_the_end(play: Play) -> None:
    _start(play, webhook="late", webhook_late=60)
    play.run_out()
    play.go_home()
    assert play.status == "completed"
    play.world.sandbox.advance(60)
    assert play.told() == [200]
    play.world.work()
    assert _deliveries(play) == ["known"]
    play.ends_well()


def _early(play: Play) -> None:
    """It comes, and is applied, before the create's answer has put the id onto the row."""
    play.world.at("after_accept", lambda _: play.world.work() and None)
    _start(play, webhook="early")
    assert play.told() == [200]
    assert _deliveries(play) == ["known"]
    receipts = play.world.rows("select source from callkeeper.call_receipts")
    assert [row["source"] for row in receipts] == ["callback"]
    play.run_out()
    assert play.told(2) == [200, 200]
    _home_by_hint(play)
    play.go_home()  # a vendor without names for its deliveries may have seemed to repeat itself
    play.ends_well()


def _names_the_lost(play: Play, *, webhook: str) -> None:
    _start(play, ("create", {"accept_then": "drop"}), ("list", {"list_off": True}), webhook=webhook)
    assert (play.status, play.row["provider_task_id"]) == ("waiting", None)
    play.run_out()
    play.told(2 if webhook == "early" else 1)
    _home_by_hint(play)
    play.go_home()
    assert "call_adopted" in play.events()
    play.ends_well()


def _never_comes(play: Play) -> None:
    """Where only a callback could name the call, it is waited for until the call is stale; a list tells sooner."""
    _start(play, ("create", {"accept_then": "drop"}), ("list", {"list_off": True}), webhook="off")
    play.world.end_quiet()
    play.rounds(1)
    assert play.is_open != play.operation.finds
    play.world.age(120)
    play.rounds(1)
    play.ends_badly("reconcile_no_recovery", creates=1)


def _refused(play: Play, *, webhook: str) -> None:
    _start(play, webhook=webhook)
    play.run_out()
    assert play.told()[0] == 401
    play.world.work()
    assert _deliveries(play) == []
    play.go_home()
    play.ends_well()


def _replayed(play: Play) -> None:
    _start(play)
    play.run_out()
    play.told()
    (path, headers, body) = play.letters()[0]
    door = play.world.door
    assert door.let_in(path, headers, body) == 200
    later = door.let_in(path, headers, body, now=datetime.now(UTC) + timedelta(hours=1))
    assert later == (200 if play.kind in UNTIMED else 401)
    _home_by_hint(play)
    assert door.let_in(path, headers, body) == 200
    assert _deliveries(play) == ["polled"]
    play.ends_well()


def _misled(play: Play) -> None:
    """Another job lost its call, and gets to hear of ours, well signed: it must not take what is not its own."""
    _start(play, ("create", {"refuse": "drop", "nth": [2]}), ("list", {"list_off": True}))
    other = Play(play.world, play.operation)
    other.start()
    assert (other.status, other.row["provider_task_id"]) == ("waiting", None)
    play.run_out()
    play.told()
    _, headers, body = play.letters()[0]
    play.world.do("delete from callkeeper.webhook_deliveries")
    play.world.do("delete from dramatiq.queue")
    assert play.world.door.let_in(_address(play.kind, other.job_id), headers, body) == 200
    _home_by_hint(play)
    assert other.row["provider_task_id"] is None
    play.go_home(rounds=3)
    assert other.row["provider_task_id"] is None
    other.world.end_quiet()
    other.world.age(120)
    other.rounds(1)
    assert other.row["error_code"] == "reconcile_no_recovery"
    play.ends_well()


def _of_the_workspace(play: Play) -> None:
    """No operation has a callback of its own; what the workspace's says is a hint all the same."""
    play.world.listen()
    play.script()
    play.start()
    task_id = play.row["provider_task_id"]
    play.run_out()
    named = "voice_id" if task_id and "voice" in play.operation.name else "dubbing_id"
    event = {"type": "told", "event_timestamp": 1, "data": {named: task_id}}
    body = json.dumps(event).encode()
    headers = sign_stamped(ELEVENLABS, WEBHOOK_SECRET, int(datetime.now(UTC).timestamp()), body)
    assert play.world.door.let_in(_address(play.kind, play.job_id), headers, body) == 200
    assert play.world.door.let_in(_address(play.kind, play.job_id), headers, body + b" ") == 401
    _home_by_hint(play)
    assert _deliveries(play) == ["polled"]
    play.ends_well()


def _address(kind: str, job_id: UUID) -> str:
    return f"/webhooks/{kind}/{make_token(OURS, job_id, 1)}"
