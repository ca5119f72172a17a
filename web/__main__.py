"""`python -m web`: serve it with uvicorn. `callkeeper web` checks settings and schema first, and starts this."""

import argparse
import importlib
import logging
import os
import resource
import signal
import sys

import uvicorn
from starlette.applications import Starlette

from actors.settings import settings
from web.app import app

_BACKLOG = 2048


def make() -> Starlette:
    """What each process serves: with the app's own job types."""
    options = settings()
    logging.basicConfig(level=options.log_level, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if os.getcwd() not in sys.path:  # noqa: PTH109  # compared with strings
        sys.path.append(os.getcwd())  # noqa: PTH109
    for module in options.modules:
        importlib.import_module(module)
    return app(options)


def main() -> None:
    """Until SIGTERM or SIGINT. What is being answered may finish within the grace; event streams end at once."""
    parser = argparse.ArgumentParser(prog="python -m web", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    # Each event stream is an open file, and the usual soft limit is below what one process serves.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # uvicorn hands the signal that ended it on to these: an end in order is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.run(
        "web.__main__:make",
        factory=True,
        host=given.host,
        port=given.port,
        workers=given.processes,
        backlog=_BACKLOG,
        # Paths hold the tokens of callbacks, so uvicorn's own log of them stays off.
        access_log=False,
        log_config=None,
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=int(settings().grace),
    )


if __name__ == "__main__":
    main()
