"""Commands that run something: migrations, a worker, the scheduler, the sandbox, the demo."""

import json
import os
import shlex
import signal
import socket
import sys
import tempfile
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from actors import job_types
from actors.broker import broker
from actors.cli import clock
from actors.cli.common import Modules, database, database_url, import_modules
from actors.cli.failures import Exit, Failure
from actors.cli.output import say
from actors.settings import VENDOR_KEYS, settings
from providers.registry import KINDS
from store import migrate as store_migrate


def migrate(
    *,
    sql: Annotated[bool, typer.Option("--sql", help="Print the SQL instead of running it; needs no database.")] = False,
) -> None:
    """Bring the database up to this code's schema. Safe to run at any time, from any number of places at once."""
    if sql:
        say(store_migrate.render_sql())
        return
    url = database_url()
    store_migrate.upgrade(url)
    with database():
        say(f"the database is at revision {store_migrate.newest_revision()}, as this code needs")


def worker(
    *,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=256, help="Worker processes.")] = 1,
    threads: Annotated[
        int | None, typer.Option("--threads", "-t", min=1, max=256, help="Threads a process; CALLKEEPER_THREADS.")
    ] = None,
    queues: Annotated[str | None, typer.Option(help="Only these queues, with commas between; by default all.")] = None,
    module: Modules = None,
) -> None:
    """Run a worker until SIGTERM: Dramatiq's own command line, after settings and schema were checked.

    Replaces this process, so signals reach Dramatiq, and its exit code is this command's.
    """
    options = settings()
    modules = import_modules(module)
    with database():
        chosen = _queues(queues)
    count = threads or options.threads
    command = worker_command(modules, processes=processes, threads=count, queues=chosen, grace=options.grace)
    # Pools are sized by the setting; the workers import the modules by theirs.
    environment = {**os.environ, "CALLKEEPER_THREADS": str(count), "CALLKEEPER_MODULES": ",".join(modules)}
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)  # noqa: S606  # our own interpreter, no shell


def worker_command(modules: list[str], *, processes: int, threads: int, queues: list[str], grace: float) -> list[str]:
    """What runs a worker: Dramatiq's command line over the actors."""
    command = [sys.executable, "-m", "dramatiq", "actors", *modules, "--processes", str(processes)]
    command += ["--threads", str(threads), "--worker-shutdown-timeout", str(int(grace * 1_000))]
    return [*command, "--queues", *queues] if queues else command


def _queues(given: str | None) -> list[str]:
    names = [name.strip() for name in (given or "").split(",") if name.strip()]
    if given is not None and not names:
        raise Failure("--queues is empty: name queues, or leave it out for all", Exit.USAGE)
    # A queue that no actor here declares yet may be one that job types name.
    known = sorted({*broker.get_declared_queues(), *job_types.QUEUES})
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Failure(f"--queues: there is no queue {unknown[0]!r}; there are {', '.join(known)}", Exit.USAGE)
    return names


def scheduler(*, module: Modules = None) -> None:
    """Run the clock until SIGTERM: it sends each pass when it is due. Two of them never send one twice."""
    import_modules(module)
    with database():
        pass
    raise typer.Exit(clock.run())


def web(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65_535, help="The port to listen on.")] = 8080,
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=256, help="Web processes.")] = 1,
    module: Modules = None,
) -> None:
    """Serve the web API until SIGTERM: jobs, events, callbacks, health and the operator's page.

    Job types of the app are offered; a provider kind's own name only if CALLKEEPER_WEB_JOB_TYPES lists it.
    """
    modules = import_modules(module)
    with database():
        pass
    if find_spec("sse_starlette") is None or find_spec("uvicorn") is None:
        raise Failure("the web API needs more packages: install callkeeper[web]", Exit.USAGE)
    job_types.offered(settings().web_job_types)
    # Without the working directory at the front, where an app's own `web` folder would be taken for ours.
    command = [sys.executable, "-P", "-m", "web", "--host", host, "--port", str(port), "--processes", str(processes)]
    sys.stdout.flush()
    os.execve(sys.executable, command, {**os.environ, "CALLKEEPER_MODULES": ",".join(modules)})  # noqa: S606  # our own


def sandbox(
    *,
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 picks a free one.")] = 8765,
    script: Annotated[Path | None, typer.Option(help="JSON file that says how the providers misbehave.")] = None,
    bill: Annotated[
        Path | None, typer.Option(help="SQLite file of what was accepted; kept between runs. By default temporary.")
    ] = None,
) -> None:
    """Serve the fake providers on this machine until SIGTERM. providers/sandbox/script.py describes their script."""
    try:
        from providers.sandbox.app import serve
        from providers.sandbox.script import Script
    except ImportError as error:
        raise Failure(
            f"the sandbox needs more packages ({error.name}): install callkeeper[sandbox]", Exit.USAGE
        ) from None
    try:
        text = script.read_bytes() if script else b"{}"
        rules = Script.model_validate_json(text)
    except (OSError, ValueError) as error:
        raise Failure(f"--script: {script} cannot be used: {error}", Exit.USAGE) from None
    port = _free_port(port)
    say(f"sandbox on http://127.0.0.1:{port} (any API key will do); for the workers:")
    for name, value in sandbox_environment(f"127.0.0.1:{port}").items():
        say(f"  export {name}={shlex.quote(value)}")
    with tempfile.TemporaryDirectory(prefix="callkeeper-sandbox-") as folder:
        # The server hands the signal that ended it on to these, and only then is the folder removed.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(Exit.OK))
        serve("127.0.0.1", port, bill=bill or Path(folder) / "bill.sqlite", script=rules)


def sandbox_environment(netloc: str) -> dict[str, str]:
    """The settings under which workers call a sandbox there instead of the providers; all kinds, so none is real."""
    kinds = {name: {"base_url": f"http://{netloc}{urlsplit(kind.base_url).path}"} for name, kind in KINDS.items()}
    # By its other name it plays the storage that a provider redirects to.
    elsewhere = f"localhost:{netloc.rpartition(':')[2]}"
    return {
        "CALLKEEPER_KINDS": json.dumps(kinds),
        "CALLKEEPER_INSECURE_MEDIA_HOSTS": f"{netloc},{elsewhere}",
        **dict.fromkeys(VENDOR_KEYS.values(), "sandbox"),
    }


def _free_port(port: int) -> int:
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError as error:
        raise Failure(f"--port {port} cannot be used: {error.strerror}; choose another, or 0", Exit.USAGE) from None


class Show(StrEnum):
    """What the demo shows."""

    CALLS = "calls"
    TOUR = "tour"


def demo(
    what: Annotated[Show, typer.Argument(help="calls: 40 paid calls. tour: one listing video of many.")] = Show.CALLS,
    *,
    keep: Annotated[bool, typer.Option("--keep", help="Keep its folder, and its database up until Ctrl-C.")] = False,
    seed: Annotated[int, typer.Option(help="Seeds what is asked for and how the fake providers behave.")] = 7,
) -> None:
    """Run paid calls on a Postgres and providers of its own, kill workers on the way, and show that nothing is lost.

    Needs nothing but this package with its extras `embedded` and `sandbox`, and `tour` for a tour; leaves nothing
    running. A tour's film is kept in .callkeeper/tour.mp4.
    """
    try:
        if what is Show.TOUR:
            import imageio_ffmpeg  # noqa: F401  # the sandbox and the workers need it

            from actors.demo.tour import run
        else:
            from actors.demo.run import run
    except ImportError as error:
        extras = "embedded,sandbox,tour" if what is Show.TOUR else "embedded,sandbox"
        raise Failure(
            f"the demo needs more packages ({error.name}): install callkeeper[{extras}]", Exit.USAGE
        ) from None
    raise typer.Exit(run(keep=keep, seed=seed))
