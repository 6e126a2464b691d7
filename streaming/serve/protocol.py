"""uvicorn's HTTP protocol, with bounds on what untrusted clients hold, and what their certificate says."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from streaming.serve import authzen
from streaming.serve.tls import PEER, Peer, peer_of

HEADER_BYTES = 64 << 10
BUSY = authzen.message("too many connections")
CLOSING = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\n" + CLOSING % (len(BUSY), BUSY)


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds. `seconds`: to send a request; `most`: connections."""

    seconds: float
    most: int

    _timer: asyncio.TimerHandle | None = None
    _size, _heading = 0, True
    _peer: Peer | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.write(REFUSED)
            transport.close()
            return
        self._peer = peer_of(transport.get_extra_info("peercert"))
        self._begin()

    def _begin(self) -> None:
        self._end()
        self._size, self._heading = 0, True
        self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER] = self._peer  # type: ignore[literal-required]
        self._begin()

    def data_received(self, data: bytes) -> None:
        # httptools holds a header until it is complete: the bytes have to be counted as they come.
        if self._heading and self._size > HEADER_BYTES:
            self.send_400_response("the headers are too large")
            return
        self._size += len(data)
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        body = authzen.message(msg)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + CLOSING % (len(body), body))
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._size = 0
        self._heading = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)


def protocol(seconds: float, most: int) -> type[Protocol]:
    """The protocol with these bounds: uvicorn makes an instance for each connection."""
    return type("Protocol", (Protocol,), {"seconds": seconds, "most": most})
