"""A worker process from boot to exit: what it starts beside the actors, and in which order it lets go."""

import importlib
import logging
from typing import Any

import psycopg

from actors.poll import Poller
from actors.recover import recover_lapsed
from actors.runtime import Every, Runtime, runtime
from actors.stop_listener import StopListener
from store.migrate import check_compatible

log = logging.getLogger("callkeeper.process")

_beside: list[Any] = []


def boot(broker: Any, worker: Any) -> None:
    """Refuse an older database, then start heartbeat, poller, rescuer and the listener for stops."""
    rt = runtime()
    for module in rt.options.modules:
        importlib.import_module(module)
    with rt.db.engine.connect() as connection:
        check_compatible(connection)
    broker.listen_for_messages()
    rt.start()
    _beside[:] = [
        Poller(rt),
        Every(rt.options.beat, lambda: _rescue(rt), name="callkeeper-rescue"),
        StopListener(rt),
    ]
    for part in _beside:
        part.start()
    log.info("process.ready owner=%s threads=%s", rt.owner, worker.worker_threads)


def drain(broker: Any) -> None:
    """Stop claiming. What runs may finish within the grace; what has not started goes back unspent."""
    rt = runtime()
    rt.draining.set()
    broker.draining = True
    for part in _beside:
        part.stop()
    log.info("process.draining held=%s", len(rt.keeper.all()))


def shut_down() -> None:
    """The grace is over. Whatever is still held is left to recovery now rather than after its term."""
    rt = runtime()
    from store import jobs

    for held in rt.keeper.all():
        held.tell(held.lost)
        try:
            rt.db.once(jobs.abandon, held.lease)
        except psycopg.Error:
            log.warning("process.abandon_failed job_id=%s", held.lease.job_id)
    rt.stop()


def _rescue(rt: Runtime) -> None:
    try:
        recover_lapsed(rt.db)
    except Exception as error:  # noqa: BLE001  # the next beat tries again; so does every other process
        log.warning("rescue.failed error=%s", type(error).__name__)
