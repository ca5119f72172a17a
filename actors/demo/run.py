"""`callkeeper demo`: 40 paid calls, two workers killed at the worst moments, and the books at the end."""

import signal
import sys
import time
from types import FrameType

from actors.cli.failures import INTERRUPTED
from actors.cli.output import say, warn
from actors.demo import report, script, shop
from actors.demo.kills import Kills
from actors.demo.shop import Order
from actors.demo.snapshot import Snapshot, Watcher
from actors.demo.stage import Stage
from actors.demo.view import View, make_view
from store import ledger
from store.binaries import ServerUnavailable
from store.states import State

_LONGEST = 120.0  # seconds from the first order to the end of the last call
_LOOK_EVERY = 0.02  # seconds; a create is in flight for half a second


def run(*, keep: bool, seed: int) -> int:
    """The exit code: 0 when everything holds, 1 when not, 130 after Ctrl-C."""
    signal.signal(signal.SIGTERM, terminated)
    stage = Stage(keep=keep, modules=["actors.demo.jobs"], script=script.script(seed), kinds=script.KINDS)
    try:
        say("callkeeper demo: a Postgres, fake providers, a scheduler and workers of its own")
        with stage:
            return _play_or_explain(stage, seed)
    except KeyboardInterrupt:
        warn("callkeeper: stopped; nothing is left running")
        return INTERRUPTED
    except (ServerUnavailable, RuntimeError) as error:
        warn(f"callkeeper: the demo could not start: {error}")
        return 1


def _play_or_explain(stage: Stage, seed: int) -> int:
    try:
        code = _play(stage, seed)
    except RuntimeError as error:
        warn(f"callkeeper: the demo could not go on: {error}")
        code = 1
    if code and not stage.keep:
        stage.keep = True
        warn(f"callkeeper: the logs of its processes are kept in {stage.folder}")
    return code


def _play(stage: Stage, seed: int) -> int:
    began = time.monotonic()
    with make_view() as view:
        view.tell(f"PostgreSQL {stage.postgres} is migrated, providers and scheduler are up")
        shop.open_shop(stage.engine)
        before = stage.db.once(ledger.balance, shop.ACCOUNT)
        assert before is not None  # noqa: S101  # the shop was opened two lines above
        orders = shop.make_orders(seed)
        leftovers = _change_mind(stage, orders[0], view)
        for order in orders:
            shop.place(stage.engine, order)
        view.tell(f"{len(orders)} orders placed, each with its paid call in one transaction")
        kills = Kills(stage, view.tell)
        kills.begin()
        last = _watch(stage, kills, view)
    books = report.take(stage, last, kills, before, leftovers)
    report.show(books, kills, time.monotonic() - began)
    if stage.keep:
        linger(stage)
    return 1 if books.problems else 0


def _change_mind(stage: Stage, order: Order, view: View) -> int:
    try:
        shop.place(stage.engine, order, change_mind=True)
    except shop.ChangedTheirMind:
        view.tell("an order was rolled back after its call was submitted")
    return shop.leftovers(stage.engine, order)


def _watch(stage: Stage, kills: Kills, view: View) -> Snapshot:
    """Until every call has ended, killing on the way. RuntimeError when it takes too long."""
    watcher = Watcher(stage.engine)
    explained = False
    give_up = time.monotonic() + _LONGEST
    while True:
        kills.step()
        kills.check()
        snapshot = watcher.look()
        view.show(snapshot)
        if not snapshot.open:
            return snapshot
        if not explained and kills.done and snapshot.open == snapshot.count(State.QUEUED):
            explained = True
            view.tell("what is queued was in the hands of dead workers, unbegun: its messages come back within 30 s")
        if time.monotonic() > give_up:
            raise RuntimeError(f"{snapshot.open} calls have not ended after {_LONGEST:.0f} s")
        time.sleep(_LOOK_EVERY)


def linger(stage: Stage) -> None:
    """Leave everything up until Ctrl-C."""
    say(f"kept: {stage.folder} (logs, media, the provider's bill)")
    if not sys.stdin.isatty():
        return
    say("its database is up until you press Ctrl-C; from another shell:")
    say(f"  export DATABASE_URL='{stage.url}'")
    say("  callkeeper jobs")
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        say("")


def terminated(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM is a Ctrl-C."""
    raise KeyboardInterrupt
