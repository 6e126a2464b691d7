"""Whether the job is fit to decide, by its last report, and the endpoint that says so.

It answers /metrics, /healthz and /readyz, for Prometheus and Kubernetes.
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from streaming.settings import MetricsSettings, SettingsError

HUNG_DEADLINES = 3  # without a decision: a restart reads little at first, which may help a job that is too slow


class Health:
    """Written by the job's threads, read by the server's: each field is replaced as a whole.

    `bound`: seconds for which the policies may stay unread; `progress_deadline`: for which records may wait while none
    is decided. `clock`: monotonic, s. `waits_since`, `undecided_since`, `no_executors_since`: the same; None: not so.
    """

    def __init__(
        self, bound: float, clock: Callable[[], float] = time.monotonic, progress_deadline: float = math.inf
    ) -> None:
        self._bound, self._clock, self.progress_deadline = bound, clock, progress_deadline
        self.running = False
        self.stuck = 0
        self.waits_since: float | None = None
        self.undecided_since: float | None = None
        self.no_executors_since: float | None = None
        self._read = False
        self._unread_since: float | None = None

    def policies_read(self) -> None:
        """They were read up to their end."""
        self._read, self._unread_since = True, None

    def policies_unread(self, since: float) -> None:
        """They cannot be read since then (monotonic, s)."""
        self._unread_since = since

    def stale(self) -> bool:
        """Whether policies may have been published that the job could not read for longer than the bound.

        A long batch is not staleness: it is decided under the policies read for it.
        """
        waits = [since for since in (self._unread_since, self.waits_since) if since is not None]
        return bool(self.stuck) or any(self._clock() - since >= self._bound for since in waits)

    def waited(self) -> float:
        """For how long it has waited for Kafka, s; 0: it does not wait."""
        return self._lasting(self.waits_since)

    def undecided(self) -> float:
        """For how long records have waited while none was decided, s; 0: none waits."""
        return self._lasting(self.undecided_since)

    def without_executors(self) -> float:
        """For how long Spark has had no executors, s; 0: it has some."""
        return self._lasting(self.no_executors_since)

    def _lasting(self, since: float | None) -> float:
        return 0.0 if since is None else max(self._clock() - since, 0.0)

    def decided(self) -> None:
        """Records were decided, or none waits."""
        self.undecided_since = None

    def undecided_now(self) -> None:
        """Records wait."""
        self.undecided_since = self.undecided_since or self._clock()

    def executors(self, count: int) -> None:
        """Spark has so many."""
        self.no_executors_since = None if count else self.no_executors_since or self._clock()

    def is_hung(self) -> bool:
        """Whether a restart may help: the job does nothing for very long, though Kafka answers and records wait."""
        return self.waits_since is None and self.undecided() >= HUNG_DEADLINES * self.progress_deadline

    def problems(self) -> list[str]:
        """Why it is not ready, each as a sentence; none: it is."""
        return list(self._problems())

    def note(self) -> None:
        """Called from time to time: others may want to know."""

    def _problems(self) -> Iterator[str]:
        if not self._read:
            yield "the policies have not been read up to their end yet"
        yield from self._query_problems("the query", "nothing is decided", "decided")
        if self.stuck:
            yield (
                f"{self.stuck} partitions of policies or facts cannot be read on: a transaction on them is not ended. "
                "The alert policy-stale names them"
            )
        elif self.stale():
            yield f"the policies could not be read for more than {self._bound:g} s: does Kafka answer?"

    def _query_problems(self, query: str, left_undone: str, done: str) -> Iterator[str]:
        if not self.running:
            yield f"{query} does not run"
        if self.waits_since is not None:
            yield f"Kafka is unavailable; waiting for it since {self.waited():.0f} s, and {left_undone} meanwhile"
        elif self.undecided() >= self.progress_deadline:
            yield f"records wait since {self.undecided():.0f} s, and none was {done}; the log names the step it is in"
        if self.without_executors():
            yield f"Spark has had no executors for {self.without_executors():.0f} s"


class MonitorHealth(Health):
    """Of the monitor as an application of its own, which reads no policies."""

    def __init__(self, progress_deadline: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(math.inf, clock, progress_deadline)

    def _problems(self) -> Iterator[str]:
        return self._query_problems("the monitor's query", "no alert is raised", "read")


OFF = 0
SCRAPES = 32  # at once
ANSWER_SECONDS = 10.0  # for a request to be sent: slow ones must not pile up

HEALTHY = {"/healthz": "alive", "/readyz": "ready"}

Respond = Callable[[str, list[tuple[str, str]]], Any]


class _Handler(WSGIRequestHandler):
    timeout = ANSWER_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    """Each request has a thread, and unknown clients may connect: the oldest one makes room for a new one."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._open: dict[socket.socket, None] = {}
        super().__init__(*arguments, **named)

    def process_request(self, request: Any, client_address: Any) -> None:
        """See `socketserver.BaseServer`."""
        if len(self._open) >= SCRAPES:
            oldest = next(iter(list(self._open)), None)
            if oldest is not None:
                self._open.pop(oldest, None)
                with contextlib.suppress(OSError):  # it has just ended
                    oldest.shutdown(socket.SHUT_RDWR)  # which ends its thread
        self._open[request] = None
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """See `socketserver.BaseServer`."""
        self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a client that goes away is no news."""


class _ServerV6(_Server):
    address_family = socket.AF_INET6


@contextlib.contextmanager
def serving(settings: MetricsSettings, registry: CollectorRegistry, health: Health) -> Iterator[int]:
    """Serve while the context is open; yields the port, 0 where the endpoint is off.

    Raises SettingsError when the address cannot be listened on.
    """
    if settings.port == OFF:
        yield OFF
        return
    server = _listen(settings, endpoint(registry, health))
    thread = threading.Thread(target=server.serve_forever, args=(0.1,), name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listen(settings: MetricsSettings, app: Any) -> WSGIServer:
    family = _ServerV6 if ":" in settings.address else _Server
    try:
        return make_server(settings.address, settings.port, app, family, _Handler)
    except OSError as error:
        raise SettingsError(
            f"metrics: {settings.address} port {settings.port} cannot be listened on: {error.strerror}. Choose another "
            "port or address (LOCKKEEPER_METRICS_PORT, LOCKKEEPER_METRICS_ADDRESS), or port 0 for none"
        ) from error


def endpoint(registry: CollectorRegistry, health: Health) -> Any:
    """The WSGI application."""
    metrics = make_wsgi_app(registry)

    def app(environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return metrics(environ, respond)  # type: ignore[no-any-return]
        if path not in HEALTHY:
            return _text(respond, "404 Not Found", "there are /metrics, /healthz and /readyz")
        problems = health.problems()
        if health.is_hung() if path == "/healthz" else problems:
            return _text(respond, "503 Service Unavailable", "\n".join(problems))
        return _text(respond, "200 OK", HEALTHY[path])

    return app


def _text(respond: Respond, status: str, text: str) -> Iterable[bytes]:
    respond(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode() + b"\n"]
