"""A server that sends a byte at a time: no part of its response is late, and the response never ends."""

import contextlib
import socket
import threading
from collections.abc import Iterator

PAUSE_SECONDS = 0.02


@contextlib.contextmanager
def slow_server(beginning: bytes, then: bytes = b"") -> Iterator[int]:
    """Its port. The first response begins so, and goes on until the client closes it; the next one is `then`."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(beginning)
                while not ended.wait(PAUSE_SECONDS):
                    connection.sendall(b"x")
            if then:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(then)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        ended.set()
        thread.join(20)
