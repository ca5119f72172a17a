"""Hearing a stop at once: one LISTEN connection a process. The heartbeat hears it too, should this one be deaf."""

from uuid import UUID

from actors.listening import Listening
from actors.runtime import Runtime
from store.signals import CHANNEL


class StopListener:
    def __init__(self, rt: Runtime) -> None:
        def heard(_channel: str, payload: str) -> None:
            rt.keeper.stop_wanted(UUID(payload))

        self._listening = Listening(rt.options.require_database_url(), [CHANNEL], heard, name="callkeeper stops")

    def start(self) -> None:
        self._listening.start()

    def stop(self) -> None:
        self._listening.stop()
