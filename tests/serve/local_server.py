"""The HTTP server with policies of its own, without Kafka; and clients that write bytes as they like."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

from policy import compile_documents
from streaming.pdp.reading import Read, suspend_aware_clock
from streaming.serve.admission import MOST_REQUESTS
from streaming.serve.application import Application
from streaming.serve.authentication import Authentication
from streaming.serve.connections import MOST_CONNECTIONS, REQUEST_SECONDS, Connections
from streaming.serve.http_server import HttpServer
from streaming.serve.metrics import ServeHealth, ServeMetrics
from streaming.serve.server import bind
from streaming.serve.tls import Tls
from streaming.settings import ServeSettings, Settings
from tests.stream.world import SYSTEM, group, role
from tests.waiting import wait_until

PATH = b"/access/v1/evaluation"
ASKED = {
    "subject": {"type": "user", "id": "user:dana"},
    "action": {"name": "kafka:GetTopicDetails"},
    "resource": {"type": "lrn", "id": "kafka:topic:prod/main/orders"},
}
BODY = json.dumps(ASKED).encode()
HEAD = b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n" % PATH
DAY = 86_400.0


def request(*headers: bytes, body: bytes = BODY, head: bytes = HEAD) -> bytes:
    """A request whose length is said."""
    return head + b"".join(headers) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", head: bytes = HEAD) -> bytes:
    """A request in chunks."""
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"transfer-encoding: chunked\r\n\r\n" + parts + end


class Parts:
    """An application with policies of its own, without a server."""

    def __init__(self, connections: Connections, requests: int = MOST_REQUESTS, **serve: Any) -> None:
        self.settings = Settings(serve=ServeSettings(port=0, **{**DEFAULTS, **serve}))
        self.health = ServeHealth(DAY)
        self.metrics = ServeMetrics(self.settings.systems, self.health)
        authentication = Authentication(self.settings)
        self.app = Application(
            self.settings,
            self.metrics,
            authentication,
            connections,
            lambda: None,
            lambda: 0,
            most_requests=requests,
        )
        self.app.url = "http://localhost"
        snapshot = compile_documents([role("readers", "kafka:topic:prod/main/orders"), group("readers", "user:dana")])
        self.app.take(Read(snapshot, suspend_aware_clock(), {}, -1, {}))
        self.health.policies_read()


class LocalServer:
    """A server of an application, with bounds of its connections and requests, and settings of `serve`."""

    def __init__(
        self,
        connections: int = MOST_CONNECTIONS,
        seconds: float = REQUEST_SECONDS,
        requests: int = MOST_REQUESTS,
        **serve: Any,
    ) -> None:
        self.connections = Connections(connections, seconds)
        parts = Parts(self.connections, requests, **serve)
        self.app, self.health, tls = parts.app, parts.health, parts.settings.serve.tls
        self.socket = bind("127.0.0.1", 0)
        self.port: int = self.socket.getsockname()[1]
        self.http = HttpServer(self.app, self.socket, self.connections, Tls(tls).context if tls.certificate else None)
        self.health.watches(self.http.silent, self.connections.refusals, self.app.refusals)

    def connect(self) -> socket.socket:
        """A connection that is there before this returns."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def send(self, *parts: bytes) -> bytes:
        """What comes back until the server closes the connection."""
        with self.connect() as one:
            for part in parts:
                with contextlib.suppress(ConnectionError):
                    one.sendall(part)
            return received(one)

    def answers(self, *, timeout: float = 20.0) -> bool:
        """Whether a new client gets its allow."""
        with contextlib.suppress(OSError), self.connect() as one:
            one.settimeout(timeout)
            one.sendall(request(b"connection: close\r\n"))
            return received(one).startswith(b"HTTP/1.1 200 ")
        return False


DEFAULTS = {"default_system": SYSTEM, "record": "none", "max_staleness_seconds": DAY}


@contextlib.contextmanager
def local_server(**chosen: Any) -> Iterator[LocalServer]:
    """A server that answers; see `LocalServer` for what may be chosen."""
    server = LocalServer(**chosen)
    thread = threading.Thread(target=server.http.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.http._server.started, "the server has started")
        yield server
    finally:
        server.http.stop()
        thread.join(20)
        server.app.close()
    assert not thread.is_alive()


def received(one: socket.socket) -> bytes:
    """What comes until the connection is closed."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := one.recv(65536):
            data += part
    return data


def statuses(data: bytes) -> list[int]:
    """The statuses of responses, one after the other; each has a length."""
    found = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status = int(head[9:12])
        if status != 100:
            found.append(status)
        lengths = [line for line in head.split(b"\r\n") if line.startswith(b"content-length: ")]
        length = int(lengths[0][16:]) if lengths else 0
        assert len(rest) >= length, "a response is cut off"
        data = rest[length:]
    return found


def closed_by_server(one: socket.socket) -> bool:
    """Whether the server has closed it; nothing is read."""
    state: int = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    return state != ESTABLISHED


ESTABLISHED = 1
