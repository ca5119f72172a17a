"""The sandbox as an ASGI app and as a server."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from providers.sandbox import (
    anthropic,
    control,
    elevenlabs_dubbing,
    elevenlabs_speech,
    elevenlabs_voices,
    heygen,
    kie,
    kie_llm,
    openrouter,
    replicate,
    replicate_stream,
    replicate_training,
)
from providers.sandbox.faults import OpenProtocol
from providers.sandbox.script import Script
from providers.sandbox.world import World

# Made up for the sandbox; a real account has its own.
WEBHOOK_SECRET = "whsec_c2FuZGJveC13ZWJob29rLXNlY3JldC0wMDAx"  # noqa: S105
PARTS = (
    replicate,
    replicate_stream,
    replicate_training,
    elevenlabs_dubbing,
    elevenlabs_voices,
    elevenlabs_speech,
    anthropic,
    kie,
    kie_llm,
    openrouter,
    heygen,
    control,
)


def make_app(bill: Path, *, script: Script | None = None, webhook_secret: str = WEBHOOK_SECRET) -> Starlette:
    """The app, over a bill at a path that may exist already: its tasks go on."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        world = World.open(bill, script or Script(), webhook_secret)
        app.state.world = world
        courier = asyncio.create_task(world.courier.run())
        yield
        courier.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await courier
        world.bill.close()

    return Starlette(routes=[route for part in PARTS for route in part.ROUTES], lifespan=lifespan)


def serve(
    host: str,
    port: int,
    *,
    bill: Path,
    port_file: Path | None = None,
    script: Script | None = None,
    webhook_secret: str = WEBHOOK_SECRET,
    with_parent: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT. Port 0 picks a free one; `port_file` gets its number once requests are
    taken.

    `with_parent` also ends when standard input does, so that a killed test leaves no server behind.
    """
    listener = socket.create_server((host, port), backlog=2048)
    config = uvicorn.Config(
        make_app(bill, script=script, webhook_secret=webhook_secret),
        http=OpenProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="critical",
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config, listener, port_file, with_parent=with_parent)
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(
        self, config: uvicorn.Config, listener: socket.socket, port_file: Path | None, *, with_parent: bool
    ) -> None:
        super().__init__(config)
        self._listener, self._port_file, self._with_parent = listener, port_file, with_parent

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._with_parent:
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._leave)
        if self._port_file is not None:
            _tell(self._port_file, self._listener.getsockname()[1])

    def _leave(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True


def _tell(port_file: Path, port: int) -> None:
    if port_file.name == "-":
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        return
    # Renamed into place: whoever sees the file sees the whole number.
    draft = port_file.with_suffix(".draft")
    draft.write_text(str(port))
    draft.replace(port_file)
