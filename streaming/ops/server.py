"""The endpoint for Prometheus and Kubernetes: /metrics, /healthz and /readyz."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from streaming.ops.health import Health
from streaming.settings import MetricsSettings, SettingsError

OFF = 0
ANSWER_SECONDS = 10.0  # for a request to be sent: slow ones must not pile up

Respond = Callable[[str, list[tuple[str, str]]], Any]


class _Handler(WSGIRequestHandler):
    timeout = ANSWER_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape is no news."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


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
        if path == "/healthz":
            return _text(respond, "200 OK", "alive")
        if path == "/readyz":
            problems = health.problems()
            if problems:
                return _text(respond, "503 Service Unavailable", "\n".join(problems))
            return _text(respond, "200 OK", "ready")
        return _text(respond, "404 Not Found", "there are /metrics, /healthz and /readyz")

    return app


def _text(respond: Respond, status: str, text: str) -> Iterable[bytes]:
    respond(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [text.encode() + b"\n"]
