"""`lockkeeper serve` as a process: follows the topics, answers over HTTP by `streaming.serve.application`, and ends."""

import gc
import socket
import threading
import time
from collections.abc import Callable

from streaming.errors import JobStopped
from streaming.ops.health import serving
from streaming.pdp.follower import Follower
from streaming.pdp.reading import Read
from streaming.pdp.recording import open_recorder
from streaming.serve.access_log import AccessLog
from streaming.serve.application import Application
from streaming.serve.authentication import Authentication
from streaming.serve.callers import load_callers
from streaming.serve.connections import MOST_CONNECTIONS, Connections, room_for
from streaming.serve.ext_authz import load_routes
from streaming.serve.http_server import HttpServer
from streaming.serve.keys import IssuerKeys
from streaming.serve.metrics import ServeHealth, ServeMetrics
from streaming.serve.tls import Tls
from streaming.serve.tracing import open_request_tracing
from streaming.settings import Settings, SettingsError
from streaming.settings.urls import is_url

WATCH_SECONDS = 0.1
KERNEL_BUFFER = 128 << 10  # bytes, of each direction; Linux doubles it


class Server:
    """One process that follows the topics and answers. Raises SettingsError when the address cannot be bound."""

    def __init__(
        self,
        settings: Settings,
        socket_: socket.socket | None = None,
        health: ServeHealth | None = None,
        connections: Connections | None = None,
    ) -> None:
        serve = settings.serve
        self._settings, self._stop = settings, threading.Event()
        health = health or ServeHealth(serve.max_staleness_seconds)
        self._metrics = ServeMetrics(settings.systems, health)
        self._connections = connections or Connections(room_for(MOST_CONNECTIONS))
        self._connections.on_closed = self._metrics.connection_closed
        self._metrics.connected(self._connections)
        self._follower = Follower(
            settings, self._stop, self._on_read, self._on_failure, self._metrics.compiled, ends_without_login=True
        )
        self._authentication = Authentication(settings)
        self._tls = tls = Tls(serve.tls) if serve.tls.certificate else None
        self._access_log = AccessLog() if serve.access_log else None
        self._tracing = open_request_tracing(settings.tracing, settings.job_name)
        self._recorder = open_recorder(settings)
        if self._recorder is not None:
            self._metrics.recording(self._recorder)
        self._app = Application(
            settings,
            self._metrics,
            self._authentication,
            self._connections,
            self._follower.ask,
            lambda: self._follower.stuck,
            self._access_log,
            self._tracing,
            self._recorder,
        )
        health.watches(lambda: self._http.silent(), self._connections.refusals, self._app.refusals)
        self._socket = socket_ or bind(serve.address, serve.port)
        self._http = HttpServer(self._app, self._socket, self._connections, tls.context if tls else None)
        self.port: int = self._socket.getsockname()[1]
        host = f"[{serve.address}]" if ":" in serve.address else serve.address
        self.url = f"{'https' if tls else 'http'}://{host}:{self.port}"
        self._app.url = self._app.url or self.url

    def run(self, stop: threading.Event, on_ready: Callable[[], None] = lambda: None) -> None:
        """Answer until `stop` is set, then finish what is under way. `on_ready`: the policies were read first.

        Raises what ended the follower: topics that were re-created, a newer format, a refused login. Nothing is decided
        from then on. JobStopped: the HTTP server ended.
        """
        thread = threading.Thread(target=self._http.run, name="http", daemon=True)
        with serving(self._settings.metrics, self._metrics.registry, self._metrics.health):
            thread.start()
            self._follower.start()
            is_ready = False
            while not stop.wait(WATCH_SECONDS) and self._works(thread):
                if self._follower.read is not None and not is_ready:
                    is_ready = True
                    # Policies hold no cycles, and all answers wait while the collector looks for some: 0.15 s of CPU
                    # with 20,000 statements, and more with more.
                    gc.freeze()
                    on_ready()
            self._drain(thread)
            self._http.stop()
            thread.join()
            self._app.close()
            self._stop.set()
            self._follower.close()
            self._close()
        if self._follower.failure is not None:
            raise self._follower.failure
        if not stop.is_set():
            raise JobStopped("the HTTP server ended by itself; the log says why. Start it again")

    def _works(self, thread: threading.Thread) -> bool:
        """Whether it goes on; look after what changes beside requests."""
        self._http.ask()
        self._metrics.looked_at(self._follower)
        self._authentication.reread()
        if self._tls is not None:
            self._tls.reread()
        if self._access_log is not None:
            self._access_log.flush()
        return self._follower.failure is None and thread.is_alive()

    def _drain(self, thread: threading.Thread) -> None:
        """Be not ready, and go on answering until those that choose where to ask know it."""
        self._metrics.health.running = False
        self._app.draining = True
        end = time.monotonic() + self._settings.serve.drain_seconds
        while time.monotonic() < end and self._works(thread):
            time.sleep(WATCH_SECONDS)

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        if self._access_log is not None:
            self._access_log.flush()
        if self._tracing is not None:
            self._tracing.close()

    def _on_read(self, read: Read) -> None:
        self._metrics.read(read)
        self._http.call(self._app.take, read)

    def _on_failure(self) -> None:
        self._http.call(self._app.take, None)


def check_files(settings: Settings) -> None:
    """Raise SettingsError for a file of the settings that cannot be used: that can be said without Kafka."""
    serve = settings.serve
    load_routes(settings)
    if serve.callers:
        load_callers(settings)
    if serve.tls.certificate:
        Tls(serve.tls)
    if serve.jwt.jwks and not is_url(serve.jwt.jwks):
        IssuerKeys(serve.jwt.jwks).load()


def bind(address: str, port: int) -> socket.socket:
    """A socket for `Server`. Raises SettingsError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Of each connection: the kernel would hold up to 4 MiB of responses that nobody reads, and 6 MiB of requests
        # that wait (`tcp_wmem`, `tcp_rmem`).
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            listener.setsockopt(socket.SOL_SOCKET, buffer, KERNEL_BUFFER)
        listener.bind((address, port))
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"serve: {address} port {port} cannot be listened on: {error.strerror}. Choose another port or address "
            "(LOCKKEEPER_SERVE_PORT, LOCKKEEPER_SERVE_ADDRESS)"
        ) from error
    return listener
