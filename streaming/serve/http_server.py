"""The HTTP server: uvicorn, whose loop runs in a thread of its own, as signals are the main thread's."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
import uvloop

from streaming.serve.connections import Connections
from streaming.serve.protocol import protocol

DRAIN_SECONDS = 5


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the main thread."""
        yield


class HttpServer:
    """Serves an ASGI application on a socket that is bound. `tls`: the context, None without TLS."""

    def __init__(
        self, app: Any, socket_: socket.socket, connections: Connections, tls: ssl.SSLContext | None = None
    ) -> None:
        config = uvicorn.Config(
            app,
            http=protocol(connections, tls),
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=DRAIN_SECONDS,
        )
        self._server, self._socket, self._connections = _Server(config), socket_, connections
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: float | None = None

    def run(self) -> None:
        """Serve until `stop` is called."""
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        watch = self._loop.create_task(self._connections.watch())
        await self._server.serve([self._socket])
        watch.cancel()

    def stop(self) -> None:
        """Finish what is under way, and end."""
        self._server.should_exit = True

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call it in the loop's thread, if the loop runs."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(function, *arguments)

    def ask(self) -> None:
        """Ask the loop for a sign of life; `silent` says how long it has been due."""
        if self._asked is None and self._loop is not None:
            self._asked = time.monotonic()
            self.call(self._answer)

    def _answer(self) -> None:
        self._asked = None

    def silent(self) -> float:
        """For how long the loop has not answered `ask`, s."""
        asked = self._asked
        return 0.0 if asked is None else time.monotonic() - asked
