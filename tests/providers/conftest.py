"""Real servers for the provider tests: the sandbox, and sockets that misbehave below HTTP."""

import asyncio
import contextlib
import queue
import socket
import struct
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from providers.contract import Account, Call
from providers.sandbox import Sandbox

KEY = "r8_canarySecretKey0123456789abcdefABCDEF"
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="session")
def _sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def sandbox(_sandbox: Sandbox) -> Sandbox:
    _sandbox.reset()
    return _sandbox


@pytest.fixture
def key() -> str:
    return KEY


@pytest.fixture
def replicate_account(sandbox: Sandbox) -> Account:
    return Account("test", sandbox.replicate_url, KEY)


@pytest.fixture
def anthropic_account(sandbox: Sandbox) -> Account:
    return Account("test", sandbox.url, KEY)


@pytest.fixture
def elevenlabs_account(sandbox: Sandbox) -> Account:
    return Account("test", sandbox.elevenlabs_url, KEY)


@pytest.fixture
def openrouter_account(sandbox: Sandbox) -> Account:
    return Account("test", sandbox.openrouter_url, KEY)


@pytest.fixture
def heygen_account(sandbox: Sandbox) -> Account:
    return Account("test", sandbox.heygen_url, KEY)


@pytest.fixture
def make_call():
    def make(request, *, handle=None, callback_url=None, started_at=None):
        moment = started_at or datetime.now(UTC)
        return Call(request, handle or {}, "call-key-1", moment, callback_url)

    return make


@pytest.fixture
def raw_server():
    """An async context manager: serves each connection with the handler, yields http://host:port."""

    @contextlib.asynccontextmanager
    async def serve(handler: Handler) -> AsyncIterator[str]:
        tasks: set[asyncio.Task[None]] = set()

        async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            tasks.add(asyncio.current_task())
            try:
                with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                    await handler(reader, writer)
            finally:
                writer.transport.abort() if asyncio.current_task().cancelling() else writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(tracked, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    return serve


@pytest.fixture
def reset_connection():
    """Makes closing a stream send RST instead of FIN."""

    def reset(writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    return reset


@pytest.fixture
def full_listener() -> Iterator[str]:
    """The URL of a listener whose queue is full: a connect to it gets no answer at all."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def receiver():
    """A server that puts every callback into a queue and answers with the next of its statuses (200 when none is left)."""
    calls, statuses = queue.Queue(), queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            calls.put((dict(self.headers), body))
            self.send_response(200 if statuses.empty() else statuses.get())
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.calls, server.statuses = calls, statuses
    server.url = f"http://127.0.0.1:{server.server_address[1]}/hook?call=1"
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
