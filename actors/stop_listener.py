"""Hearing a stop at once: one LISTEN connection a process. The heartbeat hears it too, should this one be deaf."""

import logging
import threading
from uuid import UUID

import psycopg

from actors.runtime import Runtime
from store.engine import libpq_url
from store.signals import CHANNEL

log = logging.getLogger("callkeeper.stop")


class StopListener:
    def __init__(self, rt: Runtime) -> None:
        self._rt = rt
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="callkeeper-stops", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(timeout=3)

    def _run(self) -> None:
        url = libpq_url(self._rt.options.require_database_url())
        while not self._ended.is_set():
            try:
                with psycopg.connect(
                    url, autocommit=True, application_name="callkeeper stops", connect_timeout=5
                ) as link:
                    link.execute(f"listen {CHANNEL}")
                    while not self._ended.is_set():
                        for note in link.notifies(timeout=1):
                            self._rt.keeper.stop_wanted(UUID(note.payload))
            except (psycopg.Error, ValueError) as error:
                log.warning("stop.listener_lost error=%s", type(error).__name__)
                self._ended.wait(1)
