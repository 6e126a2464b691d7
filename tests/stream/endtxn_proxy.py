"""A TCP proxy before a broker that can hold back one EndTxn request, as a network does that delays it."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from tests.waiting import wait_until

END_TXN = 26
"""Its key in Kafka's protocol: https://kafka.apache.org/protocol#protocol_api_keys."""

HOST = "127.0.0.1"


class EndTxnProxy:
    """Forwards frames between clients and a broker: a length of four bytes, then a request's key in two."""

    def __init__(self, port: int, broker_port: int) -> None:
        self._broker = (HOST, broker_port)
        self._listener = socket.create_server((HOST, port))
        self._lock, self._hold_next = threading.Lock(), False
        self._held: tuple[socket.socket, bytes] | None = None
        self._responses: dict[socket.socket, int] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def hold_next(self) -> None:
        """Hold back the next EndTxn; the one after it passes."""
        with self._lock:
            self._hold_next, self._held = True, None

    @property
    def holds(self) -> bool:
        """Whether an EndTxn was held back."""
        return self._held is not None

    def release(self) -> None:
        """Let the request through that was held back, and return when the broker has answered it."""
        assert self._held is not None
        (upstream, frame), self._held = self._held, None
        before = self._responses[upstream]
        upstream.sendall(frame)
        wait_until(lambda: self._responses[upstream] > before, "the broker answers the delayed EndTxn")
        upstream.close()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._broker)
                self._responses[upstream] = 0
                threading.Thread(target=self._requests, args=(client, upstream), daemon=True).start()
                threading.Thread(target=self._forward_responses, args=(upstream, client), daemon=True).start()

    def _requests(self, client: socket.socket, upstream: socket.socket) -> None:
        """A client that gives up does not take back what it has sent: the broker's side stays open for it."""
        with contextlib.suppress(OSError):
            for frame in _frames(client):
                if not self._keep(upstream, frame):
                    upstream.sendall(frame)
        if self._held is None or self._held[0] is not upstream:
            upstream.close()

    def _keep(self, upstream: socket.socket, frame: bytes) -> bool:
        with self._lock:
            if not self._hold_next or struct.unpack_from(">h", frame, 4)[0] != END_TXN:
                return False
            self._hold_next, self._held = False, (upstream, frame)
            return True

    def _forward_responses(self, upstream: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(upstream):
                with contextlib.suppress(OSError):
                    client.sendall(frame)
                self._responses[upstream] += 1
        client.close()


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """What comes over a connection until its end, by frame."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield head + stream.read(struct.unpack(">i", head)[0])
