"""uvicorn's HTTP protocol, with bounds on what untrusted clients hold, and what their certificate says.

uvicorn has no bound for trailers, for pipelined requests and for responses that are not read, and its TLS handshakes do
not count as connections. Other servers do not fit: granian does not pass a client's certificate on, and hypercorn's
parser in Python has a fraction of the throughput.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Callable

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from streaming.serve import authzen
from streaming.serve.access_log import CALLER
from streaming.serve.connections import (
    ANSWER,
    CLOSING,
    HANDSHAKE,
    IDLE,
    REQUEST,
    Connections,
    network_of,
)
from streaming.serve.tls import PEER, Peer, peer_of, start_tls

HEADER_BYTES = 64 << 10
HEADERS = 256  # a header of 4 bytes takes some 200 here
FRAMING_BYTES = 64 << 10  # of chunks' sizes and extensions, and of trailers, in one request
FRAMING_OF_A_BYTE = 8  # that a byte of a body may take beside: a chunk of one byte takes 5
PIPELINED = 4  # requests that wait for the one that is answered; further bytes wait unparsed
SLICE = 512  # bytes for the parser at once, which has no way to stop: so many bytes may hold a few requests at most
UNREAD_BYTES = 16 << 10  # of responses, before the next one waits

CLOSE = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s"
BUSY = authzen.message("too many connections; try again")
REFUSED = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\n" + CLOSE % (len(BUSY), BUSY)
BAD_REQUEST = b"HTTP/1.1 400 Bad Request\r\n"


class _Flow(FlowControl):
    """Reading goes on only once what was read is parsed. `held`: it is not."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class _Transport:
    """The transport as uvicorn uses it. Closing is left to the protocol, which lets the client read first."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None], closes: Callable[[], bool]) -> None:
        self.write, self.get_extra_info = transport.write, transport.get_extra_info
        self.pause_reading, self.resume_reading = transport.pause_reading, transport.resume_reading
        self.close, self.is_closing = close, closes


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with bounds. `load`: the server's connections. `tls`: the context, None without TLS."""

    load: Connections
    tls: ssl.SSLContext | None
    flow: _Flow

    address, phase, since = "", REQUEST, 0.0
    unread_since: float | None = None
    _plain: asyncio.Transport | None = None
    _secure: asyncio.Transport | None = None
    _handshake: asyncio.Task[None] | None = None
    _peer: Peer | None = None
    _size, _framing, _body_size = 0, 0, 0
    _heading, _receiving, _stopped, _half_closed = True, False, False, False
    _rest, _rest_at = b"", 0  # not cut at each request: that would copy it as often
    _farewell: bytes | None = None
    _active: RequestResponseCycle | None = None
    _asked_by = ""  # of the request before

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._plain = transport
        self.address = network_of(transport.get_extra_info("peername"))
        self._enter(REQUEST if self.tls is None else HANDSHAKE)
        if not self.load.admit(self):
            self._turn_away(transport)
        elif self.tls is None:
            self._open(transport)
        else:
            # Not by `create_server`: a connection would count once its handshake is done, which may be never.
            self._handshake = self.loop.create_task(self._start_tls(transport, self.tls))

    def _turn_away(self, transport: asyncio.Transport) -> None:
        if self.tls is None:
            transport.write(REFUSED)
            self._close("refused", lingers=True)
        else:
            self.load.close(self, "refused")
            self.abort()

    async def _start_tls(self, transport: asyncio.Transport, context: ssl.SSLContext) -> None:
        secure = await start_tls(transport, self, context, self._take_rest)
        if secure is None or self.phase == CLOSING:
            if self.phase != CLOSING:
                self.load.close(self, "handshake")
            self.load.remove(self)
            self._enter(CLOSING)
            transport.close()  # after the alert that says why
            return
        self._secure = secure
        self._enter(REQUEST)
        self._open(secure)
        self._feed(self._take_rest())  # this task is resumed after the first bytes have come

    def _take_rest(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def _open(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(UNREAD_BYTES)
        wrapped = _Transport(transport, self._close, self._is_closing)
        super().connection_made(wrapped)  # type: ignore[arg-type]
        self.flow = _Flow(transport)
        self._peer = peer_of(transport.get_extra_info("peercert"))

    def _enter(self, phase: str) -> None:
        self.phase, self.since = phase, self.load.clock()

    @property
    def caller(self) -> str:
        return self.scope.get(CALLER, "") if self.scope else ""  # type: ignore[return-value]

    @property
    def pending(self) -> int:
        return len(self._rest)

    @property
    def unread(self) -> int:
        transports = (self._secure, self._plain)
        return sum(transport.get_write_buffer_size() for transport in transports if transport is not None)

    # What comes from the client.

    def data_received(self, data: bytes) -> None:
        if self.flow is None or self._rest:
            if self.phase != CLOSING:
                self._rest += data  # once at most: reading is paused then
        else:
            self._feed(data)

    def _feed(self, data: bytes, at: int = 0) -> None:
        """Parse as much as may wait for its turn; the rest waits as bytes. `at`: the first one that is not parsed."""
        while at < len(data) and not self._stopped and self.phase != CLOSING:
            if len(self.pipeline) >= PIPELINED:
                self._rest, self._rest_at, self.flow.held = data, at, True
                self.flow.pause_reading()
                return
            step = SLICE if len(data) - at <= SLICE else max(SLICE, self._body_left())
            self._parse(data[at : at + step])
            at += step

    def _parse(self, part: bytes) -> None:
        # httptools holds a header until it is complete: the bytes have to be counted as they come.
        if self._heading:
            self._size += len(part)
        self._framing += len(part)
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._stop()  # what follows is of a protocol that is not spoken here, and must not be read as requests
        except httptools.HttpParserError:
            many = self._heading and len(self.headers or ()) > HEADERS
            self.send_400_response(f"more than {HEADERS} headers" if many else "Invalid HTTP request received.")
            return
        self._framing = max(self._framing, 0)
        if self._heading and self._size > HEADER_BYTES:
            self.send_400_response("the headers are too large")
        elif not self._heading and self._framing > FRAMING_BYTES:
            self.send_400_response("the chunks' extensions or trailers are too large")

    def _body_left(self) -> int:
        """How many bytes are missing of a body whose length was said: there is no request in them."""
        if self._heading:
            return 0
        length = next((value for name, value in self.headers if name == b"content-length"), b"")
        return int(length) - self._body_size if length.isdigit() and len(length) < 16 else 0

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope[PEER] = self._peer  # type: ignore[literal-required]
        self._size, self._heading, self._receiving = 0, True, True
        if self._active is None:
            self._enter(REQUEST)

    def on_url(self, url: bytes) -> None:
        # RFC 9112, 3.2: a target has no fragment. The parser would cut it off, and Envoy's upstream may not.
        if b"#" in url:
            raise ValueError("a fragment")  # ends the parser
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        # A trailer is no header (RFC 9110, 6.5.1): what is in front of the server has not looked at it as one.
        if self._heading:
            super().on_header(name, value.rstrip(b" \t"))  # RFC 9110, 5.5: which the parser leaves at the end
            if len(self.headers) > HEADERS:
                raise ValueError("too many headers")  # ends the parser

    def on_headers_complete(self) -> None:
        # RFC 9112, 6.1: what is in front of the server would take another coding off, or end one of 1.0 elsewhere.
        codings = [value.lower() for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (codings != [b"chunked"] or self.parser.get_http_version() != "1.1"):
            raise ValueError("a transfer coding")  # ends the parser
        self._heading, self._framing, self._body_size = False, 0, 0
        super().on_headers_complete()
        if self._active is None:
            self._active = self.cycle

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body) * (1 + FRAMING_OF_A_BYTE)
        self._body_size += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._receiving, self._heading, self._size = False, True, 0
        if self.phase == REQUEST:
            self._enter(IDLE if self._active is None else ANSWER)
        super().on_message_complete()

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that will send nothing more may still read: it gets the responses to what it has sent.

        A request whose body was not sent whole gets none, whatever its length: RFC 9112, 8 leaves that open.
        """
        if self._secure is not None or self._active is None or self._active.more_body:
            return False  # the transport closes
        self._half_closed = True
        self._drop_incomplete()
        return True

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """In turn with the requests of others: of a connection one is answered at a time, but there may be hundreds."""
        begin = super()._start_asgi_task
        self.load.turns.take(self._asked_by or self.address, lambda: None if self._is_closing() else begin(cycle, app))

    # What goes to the client.

    def on_response_complete(self) -> None:
        """In place of uvicorn's, which reads on while requests wait."""
        self.server_state.total_requests += 1
        if self._active is not None:
            self._asked_by = self._active.scope.get(CALLER, "")  # type: ignore[assignment]
        self._active = None
        if self._is_closing():
            return
        if self.pipeline:
            self._active, app = self.pipeline.pop()
            self._start_asgi_task(self._active, app)
        self._read_on()
        self._enter(ANSWER if self._active and not self._receives() else REQUEST if self._receiving else IDLE)
        if self._active is None and self._farewell is not None:
            self.transport.write(self._farewell)
            self._close("malformed", lingers=True)
        elif self._active is None and (self._half_closed or self._stopped):
            self._close(lingers=self._stopped)

    def _receives(self) -> bool:
        return self._active is not None and self._active is self.cycle and self._receiving

    def _read_on(self) -> None:
        if self.flow.held:
            self.flow.held = False
            self._feed(self._take_rest(), self._rest_at)
        self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """The last response, after those to requests that came before."""
        body = authzen.message(msg)
        response, active = BAD_REQUEST + CLOSE % (len(body), body), self._active
        self._drop_incomplete()
        self._stopped = True
        if active is not None and not active.more_body:
            self._farewell = response
            return
        if active is None or not active.response_started:
            self._disconnect()
            self.transport.write(response)
        self._close("malformed", lingers=True)

    def _drop_incomplete(self) -> None:
        """Forget the newest of the requests that wait, if the rest of its body will not come."""
        if self.pipeline and self.pipeline[0][0].more_body:
            self.pipeline.popleft()

    def _stop(self) -> None:
        """Parse nothing more; close after what is under way."""
        self._stopped = True
        if self._active is None:
            return
        last = self.pipeline[0][0] if self.pipeline else self._active
        last.keep_alive = False

    # The end.

    def end(self, reason: str) -> None:
        """See `Connection`."""
        if self.unread or self.flow is None:
            self.load.close(self, reason)
            self._enter(CLOSING)
            self.abort()
            return
        evicted = reason == "evicted" and self.phase == REQUEST and not (self._active and self._active.response_started)
        if evicted:
            self.transport.write(REFUSED)
        self._close(reason, lingers=evicted)

    def abort(self) -> None:
        """See `Connection`."""
        for transport in (self._secure, self._plain):
            if transport is not None:
                transport.abort()

    def _is_closing(self) -> bool:
        transport = self._secure or self._plain
        return self.phase == CLOSING or transport is None or transport.is_closing()

    def _close(self, reason: str = "", lingers: bool | None = None) -> None:
        """Close it. `lingers`: once the client has, for the kernel discards a response when more comes from the client.

        By default with the response that is just sent.
        """
        if self.phase == CLOSING:
            return
        lingers = (self._active is not None if lingers is None else lingers) and not self._half_closed
        self._rest = b""
        self._enter(CLOSING)
        self._disconnect()
        may_linger = self.load.close(self, reason or "closed")
        if self._plain is None:
            self.load.remove(self)
        elif self._secure is not None or not lingers or not may_linger:
            (self._secure or self._plain).close()
        else:
            if self.flow is not None:
                self.flow.held = False
                self.flow.resume_reading()
            with contextlib.suppress(OSError, RuntimeError):  # the client is gone
                self._plain.write_eof()

    def _disconnect(self) -> None:
        """Let applications that wait for a body know that none will come."""
        for cycle in (self._active, *(cycle for cycle, _ in self.pipeline)):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.phase != CLOSING:
            self.load.on_closed("client" if self.flow is not None else "handshake")
        self.load.remove(self)
        self._enter(CLOSING)
        self._rest = b""
        if self.flow is not None:
            self._disconnect()
            super().connection_lost(exc)


def protocol(load: Connections, tls: ssl.SSLContext | None = None) -> type[Protocol]:
    """The protocol with these bounds: uvicorn makes an instance for each connection."""
    return type("Protocol", (Protocol,), {"load": load, "tls": tls})
