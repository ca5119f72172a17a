"""Loaded into a worker: nobody listens for stops there; the heartbeat and the rows are all that is left."""

from actors.stop_listener import StopListener


def _nothing(self: StopListener) -> None:
    return


StopListener.start = _nothing  # type: ignore[method-assign]
StopListener.stop = _nothing  # type: ignore[method-assign]
