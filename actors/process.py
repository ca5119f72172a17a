"""A worker process from boot to exit: what it starts beside the actors, and in which order it lets go."""

import importlib
import logging
import sys
import time
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from actors.deadlines import end_overdue
from actors.poll import Poller
from actors.recover import recover_lapsed
from actors.runtime import Every, Runtime, runtime
from actors.settings import SettingsError
from actors.stop_listener import StopListener
from store import jobs, shutdown
from store.engine import Database
from store.errors import SchemaBehind
from store.migrate import check_compatible

log = logging.getLogger("callkeeper.process")

EXIT_SETTINGS = 2
EXIT_DATABASE = 5
_LAST_WORDS = 5.0  # seconds that a leaving process tries to tell the database what it leaves


class Process:
    """The parts of one worker process, and when it must be gone."""

    def __init__(self, rt: Runtime) -> None:
        self.rt = rt
        self.poller = Poller(rt)
        self.rescuer = Every(rt.options.beat, lambda: _rescue(rt), name="callkeeper-rescue")
        self.stops = StopListener(rt)
        self.gone_by = 0.0

    def start(self) -> None:
        self.rt.start()
        self.rt.on_waiting = self.poller.nudge
        for part in (self.poller, self.rescuer, self.stops):
            part.start()

    def drain(self) -> None:
        """Claim nothing more. What runs may finish within the grace."""
        self.gone_by = time.monotonic() + self.rt.options.grace
        self.rt.draining.set()
        self.poller.end()
        self.rescuer.stop()
        log.info("process.draining held=%s", len(self.rt.keeper.all()))

    def shut_down(self) -> None:
        """Wait out the grace for imports; then whatever is still held goes back before this process does."""
        self.poller.wait(self.gone_by - time.monotonic())
        _let_go(self.rt)
        self.stops.stop()
        self.rt.stop()


def _let_go(rt: Runtime) -> None:
    """Queue again what may run again, and leave the rest to recovery now rather than after its term.

    If the database cannot be told, the leases run out by themselves.
    """
    held = rt.keeper.all()
    if not held:
        return
    for one in held:
        one.tell(one.lost)
    leases = [one.lease for one in held]
    try:
        queued = Database(rt.db.engine, patience=_LAST_WORDS).once(shutdown.hand_over, leases)
        # One after the other, but the first that cannot be told is the last that is tried.
        left = sum(Database(rt.db.engine, patience=0).once(jobs.abandon, lease) for lease in leases)
        log.info("process.let_go queued=%s left_to_recovery=%s", queued, left)
    except SQLAlchemyError:
        log.warning("process.let_go_failed held=%s: they are recovered when their leases end", len(held))


_process: Process | None = None


def boot(broker: Any, worker: Any) -> None:
    """Refuse an older database, then start heartbeat, poller, rescuer and the listener for stops.

    Exits the process when it cannot work: Dramatiq would go on without us.
    """
    global _process  # noqa: PLW0603  # one a process, by design
    try:
        rt = runtime()
        for module in rt.options.modules:
            importlib.import_module(module)
        rt.db.once(check_compatible)
    except (SettingsError, ImportError) as error:
        log.critical("process.refused %s", error)
        sys.exit(EXIT_SETTINGS)
    except (SchemaBehind, SQLAlchemyError) as error:
        log.critical("process.refused %s", error)
        sys.exit(EXIT_DATABASE)
    # A dead worker's messages wait no longer than its leases do.
    broker.heartbeat_interval, broker.heartbeat_ttl = rt.options.beat / 2, rt.options.lease
    broker.maintenance_interval = rt.options.beat
    broker.listen_for_messages()
    _process = Process(rt)
    _process.start()
    log.info("process.ready owner=%s threads=%s", rt.owner, worker.worker_threads)


def drain(broker: Any) -> None:
    broker.draining = True
    if _process is not None:
        _process.drain()


def shut_down() -> None:
    if _process is not None:
        _process.shut_down()


def _rescue(rt: Runtime) -> None:
    try:
        end_overdue(rt.db)  # first: what is late has timed out, whoever was lost with it
        recover_lapsed(rt.db)
    except Exception as error:  # noqa: BLE001  # the next beat tries again; so does every other process
        log.warning("rescue.failed error=%s", type(error).__name__)
