"""TCP proxies before a broker: one delays an EndTxn, one acts when a request goes by, one is slow."""

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.waiting import wait_until

PRODUCE, METADATA, INIT_PRODUCER_ID, END_TXN, TXN_OFFSET_COMMIT = 0, 3, 22, 26, 28
"""Keys in Kafka's protocol: https://kafka.apache.org/protocol#protocol_api_keys."""

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


class StepProxy:
    """Calls `on_step` with the process of a client, once, when it sends a request with a key and a text in it.

    `answered`: when the broker has answered, and the client has not got the answer; else before the broker gets it.
    """

    def __init__(self, port: int, broker_port: int) -> None:
        self._port, self._broker = port, (HOST, broker_port)
        self._listener = socket.create_server((HOST, port))
        self._lock = threading.Lock()
        self._step: tuple[int, bytes, bool, Callable[[int], None]] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def act_at(self, key: int, text: bytes, answered: bool, on_step: Callable[[int], None]) -> None:
        """Wait for the next such request."""
        with self._lock:
            self._step = key, text, answered, on_step

    @property
    def waits(self) -> bool:
        """Whether there was none yet."""
        return self._step is not None

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, address = self._listener.accept()
                upstream = socket.create_connection(self._broker)
                threading.Thread(target=self._forward, args=(client, upstream, address[1]), daemon=True).start()

    def _forward(self, client: socket.socket, upstream: socket.socket, port: int) -> None:
        """A connection's requests; the answers are in their order."""
        steps: dict[int, Callable[[int], None]] = {}  # by the correlation id of the request
        threading.Thread(target=self._forward_answers, args=(client, upstream, port, steps), daemon=True).start()
        with contextlib.suppress(OSError):
            for frame in _frames(client):
                if (taken := self._take(frame)) is not None:
                    answered, on_step = taken
                    if answered:
                        steps[struct.unpack_from(">i", frame, 8)[0]] = on_step
                    else:
                        on_step(process_of(port, self._port))
                upstream.sendall(frame)
        upstream.close()

    def _take(self, frame: bytes) -> tuple[bool, Callable[[int], None]] | None:
        with self._lock:
            if self._step is None:
                return None
            key, text, answered, on_step = self._step
            if struct.unpack_from(">h", frame, 4)[0] != key or text not in frame:
                return None
            self._step = None
            return answered, on_step

    def _forward_answers(
        self, client: socket.socket, upstream: socket.socket, port: int, steps: dict[int, Callable[[int], None]]
    ) -> None:
        with contextlib.suppress(OSError):
            for frame in _frames(upstream):
                if on_step := steps.pop(struct.unpack_from(">i", frame, 4)[0], None):
                    on_step(process_of(port, self._port))
                client.sendall(frame)
        client.close()


def process_of(port: int, remote_port: int) -> int:
    """The process with a TCP connection from a local port to another one."""
    ends = f":{port:04X}", f":{remote_port:04X}"
    lines = [
        line.split() for file in ("tcp", "tcp6") for line in Path(f"/proc/net/{file}").read_text().splitlines()[1:]
    ]
    [inode] = {line[9] for line in lines if line[1].endswith(ends[0]) and line[2].endswith(ends[1])}
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if str(link.readlink()) == f"socket:[{inode}]":
                return int(link.parts[2])
    raise ProcessLookupError(f"no process has a connection from port {port}")


def _frames(connection: socket.socket) -> Iterator[bytes]:
    """What comes over a connection until its end, by frame."""
    with connection.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield head + stream.read(struct.unpack(">i", head)[0])


class SlowProxy:
    """Holds back all bytes for so many seconds, in both directions: a query takes twice that, and a login more."""

    def __init__(self, port: int, broker_port: int, seconds: float) -> None:
        self._broker, self._seconds = (HOST, broker_port), seconds
        self._listener = socket.create_server((HOST, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                upstream = socket.create_connection(self._broker)
                for source, target in ((client, upstream), (upstream, client)):
                    delayed: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
                    threading.Thread(target=self._delay, args=(source, delayed), daemon=True).start()
                    threading.Thread(target=self._forward, args=(delayed, target), daemon=True).start()

    def _delay(self, source: socket.socket, delayed: queue.SimpleQueue[tuple[float, bytes]]) -> None:
        data = b"-"
        while data:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            delayed.put((time.monotonic() + self._seconds, data))

    def _forward(self, delayed: queue.SimpleQueue[tuple[float, bytes]], target: socket.socket) -> None:
        with contextlib.suppress(OSError), target:
            while True:
                at, data = delayed.get()
                time.sleep(max(at - time.monotonic(), 0))
                if not data:
                    return
                target.sendall(data)
