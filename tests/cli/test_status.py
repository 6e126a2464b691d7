"""`lockkeeper status` beside something else than the job's metrics endpoint."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from streaming.cli.doctor import _group_lines
from streaming.decision_log.status import NO_ANSWER, GroupStatus, _ready


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


def test_a_port_at_which_nothing_listens_is_said_without_words_of_python() -> None:
    said = _ready("http://127.0.0.1:1")
    assert said.startswith(f"{NO_ANSWER} from http://127.0.0.1:1/readyz: [Errno ")
    assert said.endswith("] Connection refused")


def test_a_group_that_has_committed_where_it_begins_has_no_batch_yet() -> None:
    """What it commits then has no batch and no checkpoint."""
    lines = [next(_group_lines("monitor", GroupStatus("g", *newest, None, ()))) for newest in ((None, ""), (-1, ""))]
    assert lines == ["monitor g: nothing committed, lag 0 records", "monitor g: no batch yet, lag 0 records"]
