"""One LISTEN connection on a thread of its own, made again whenever it breaks. What it misses, others must look for."""

import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import sql

from store.engine import libpq_url

log = logging.getLogger("callkeeper.listen")

_AGAIN_AFTER = 1.0  # seconds
_LOOK_EVERY = 1.0


class Listening:
    """Calls `heard(channel, payload)` on its thread for each notification, `connected()` whenever it begins anew."""

    def __init__(
        self,
        url: str,
        channels: Sequence[str],
        heard: Callable[[str, str], None],
        *,
        name: str,
        connected: Callable[[], None] = lambda: None,
    ) -> None:
        self._url = libpq_url(url)
        self._channels = channels
        self._heard = heard
        self._connected = connected
        self._name = name
        self._ended = threading.Event()
        self._bell, self._pull = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=name.replace(" ", "-"), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends at once; the connection is gone then."""
        self._ended.set()
        self._pull.close()  # which makes the other end readable
        self._thread.join(timeout=7)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                with psycopg.connect(
                    self._url, autocommit=True, application_name=self._name, connect_timeout=5
                ) as link:
                    self._listen(link)
            except (psycopg.Error, ValueError) as error:
                log.warning("listen.lost name=%s error=%s", self._name, type(error).__name__)
                self._ended.wait(_AGAIN_AFTER)
        self._bell.close()

    def _listen(self, link: psycopg.Connection[Any]) -> None:
        for channel in self._channels:
            link.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
        self._connected()
        while not self._ended.is_set():
            for note in link.notifies(timeout=0):
                self._heard(note.channel, note.payload)
            # Not for ever: what TLS has read ahead does not show on the socket.
            select.select([link.fileno(), self._bell.fileno()], [], [], _LOOK_EVERY)
