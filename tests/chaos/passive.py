"""Loaded into a worker: it does what messages ask for, and nothing by itself."""

from actors import process
from actors.poll import Poller


def _nothing(*_: object) -> None:
    return


process._rescue = _nothing
Poller.start = _nothing  # type: ignore[method-assign]
Poller.stop = _nothing  # type: ignore[method-assign]
