"""`lockkeeper status` beside something else than the job's metrics endpoint."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from streaming.decision_log.status import NO_ANSWER, _ready


@contextlib.contextmanager
def _answering(data: bytes) -> Iterator[str]:
    """The address of a port that answers so, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(data)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(20)


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x01", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\na"]
)
def test_what_is_no_metrics_endpoint_gives_no_answer(data: bytes) -> None:
    with _answering(data) as address:
        assert _ready(address).startswith(f"{NO_ANSWER} from {address}/readyz: ")
