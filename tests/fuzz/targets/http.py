"""HTTP as streams of bytes for `serve`: pipelines, chunks, trailers, floods, slow readers, cut off anywhere.

Every request that is well-formed is answered once and in order, nothing after the end of a connection; what a
connection holds is bounded all the while; and when its client does nothing more, the server ends it.
"""

import asyncio
import contextlib
import socket
from random import Random
from typing import Any

import uvicorn
import uvloop
from uvicorn.server import ServerState

from streaming.serve import protocol as http_protocol
from streaming.serve.connections import Connections
from streaming.serve.protocol import FRAMING_BYTES, HEADER_BYTES, HEADERS, Protocol
from tests.fuzz.harness import Execution, Violation
from tests.fuzz.mutation import mutate_bytes
from tests.serve.local_server import BODY, HEAD, Parts, chunked, request, statuses

WELL_KNOWN = b"GET /.well-known/authzen-configuration HTTP/1.1\r\nhost: localhost\r\n"
WAITING = 64  # requests that one connection may hold: more were in the slice that was just parsed
HELD_BYTES = 1 << 20  # of one connection: one reading, one body, one response
DEADLINE = 1000.0  # of the target's clock: beyond all of the server's
TURNS = 50_000
SMALL = 1000  # bytes of a part that is repeated
FLOODED = 3 * max(HEADER_BYTES, FRAMING_BYTES)

Item = tuple[bytes, int, str]
"""Bytes, how often they are there, and their place in the stream: `200`, `400`: answered by that; `ends`: by that and
the end of the connection; `flood`: they are part of a request that has to be refused; `more`: that goes on."""


class Http:
    """See the module."""

    name, share, records = "http", 6, 1

    def __init__(self, seed: str) -> None:
        self._now = 0.0
        self._connections = Connections(1000, 10.0, clock=lambda: self._now)
        self._parts = Parts(self._connections)
        config = uvicorn.Config(self._parts.app, ws="none", lifespan="off", log_config=None, proxy_headers=False)
        config.load()
        self._config, self._protocol = config, http_protocol.protocol(self._connections)

    def portable(self, given: Any) -> Any:
        """The input itself."""
        return given

    def draw(self, dice: Random, number: int, deep: bool) -> Any:
        """Parts of a stream; one that is not deep is changed anywhere, and then not all is known of its answers."""
        items = [item for _ in range(dice.choice((1, 1, 2, 5, 12))) for item in _draw_item(dice)]
        if len(items) == 1 and len(items[0][0]) < SMALL and dice.random() < 0.3:
            items = [(items[0][0], dice.choice((50, 400)), items[0][2])]
        if not deep:
            items = [(mutate_bytes(dice, part) if dice.random() < 0.3 else part, n, "any") for part, n, _ in items]
        cut = dice.random() if dice.random() < 0.2 else 1.0
        return {
            "items": [list(item) for item in items],
            "cut": cut,
            "pieces": dice.choice((1, 2, 7, 50)),
            "reads": dice.random() < 0.5,
            "shuts": dice.random() < 0.7,
        }

    def run(self, given: Any) -> Execution:
        """Raises Violation."""
        stream = b"".join(part * times for part, times, _ in given["items"])
        stream = stream[: int(len(stream) * given["cut"])]
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(self._session(stream, given))
        got = _statuses(found)
        if 500 in got:
            raise Violation("status: 500")
        if given["cut"] == 1.0 and all(kind != "any" for _, _, kind in given["items"]):
            _check(got, _expected(given["items"]), given["shuts"])
        return Execution(past=int(bool(got)), rejected=int(any(status != 200 for status in got)))

    async def _session(self, stream: bytes, given: Any) -> bytes:
        self._connections.open.clear()  # an input is a world of its own
        self._connections.closing.clear()
        loop, made = asyncio.get_running_loop(), list[Protocol]()
        client, server = socket.socketpair()
        for one in (client, server):
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        state = ServerState()

        def protocol() -> Protocol:
            made.append(self._protocol(config=self._config, server_state=state, app_state={}))
            return made[0]

        await loop.connect_accepted_socket(protocol, server)
        with client:
            received = await self._exchange(client, made[0], stream, given)
        for _ in range(100):
            if not self._connections.open and not self._connections.closing:
                return received
            await asyncio.sleep(0)
        raise Violation("open: the connection is counted though its client has closed it")

    async def _exchange(self, client: socket.socket, server: Protocol, stream: bytes, given: Any) -> bytes:
        """Send the stream, and read until the server ends the connection."""
        step = max(len(stream) // given["pieces"], 1)
        sent, received, idle = 0, b"", 0
        for _ in range(TURNS):
            await asyncio.sleep(0)
            _check_held(server)
            try:
                if sent < len(stream):
                    sent, idle = sent + client.send(stream[sent : sent + step]), 0
                    if sent == len(stream) and given["shuts"]:
                        client.shutdown(socket.SHUT_WR)
            except BlockingIOError:
                pass
            except ConnectionError:  # the server has ended it
                sent = len(stream)
            if given["reads"] or idle > 20:
                with contextlib.suppress(BlockingIOError):
                    part = _read(client)
                    received, idle = received + part, 0
                    if not part:
                        return received
            idle += 1
            if idle > 60:  # the client does nothing more: the server's deadlines are due
                self._now += DEADLINE
                self._connections.look()
        raise Violation("open: the server does not end a connection whose client does nothing")


def _read(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 16)
    except ConnectionError:
        return b""


def _draw_item(dice: Random) -> list[Item]:
    """A request, or several parts of one."""
    what = dice.random()
    if what < 0.75:
        return [dice.choice(_GOOD)(dice)]
    if what < 0.85:
        return [dice.choice(_ENDING)(dice)]
    head, part = dice.choice(_FLOODS)
    return [(head, 1, "more"), (part, FLOODED // len(part) + 1, "flood")]


def _chunks(dice: Random) -> Item:
    size, at, parts = dice.choice((1, 7, 100)), 0, []
    while at < len(BODY):
        parts.append(BODY[at : at + size])
        at += size
    end = dice.choice((b"0\r\n\r\n", b"0;a=b\r\nc: d\r\n\r\n", b"0\r\n%s\r\n" % (b"a: b\r\n" * 50)))
    return chunked(*parts, end=end), 1, "200"


_GOOD: tuple[Any, ...] = (
    lambda dice: (request(), dice.choice((1, 1, 3, 30)), "200"),
    lambda dice: (request(b"x-a: %s\r\n" % (b"b" * dice.choice((1, 900, 60_000)))), 1, "200"),
    lambda dice: (request(body=BODY + b" " * dice.choice((0, 511, 512, 70_000))), 1, "200"),
    lambda dice: (WELL_KNOWN + b"\r\n", dice.choice((1, 100)), "200"),
    lambda dice: (b"\r\n" * dice.choice((1, 2)) + request(), 1, "200"),
    lambda _dice: (request(body=b"{"), 1, "400"),
    _chunks,
)
_ENDING: tuple[Any, ...] = (
    lambda _dice: (request(b"connection: close\r\n"), 1, "ends 200"),
    lambda _dice: (request(head=HEAD.replace(b"/access", b"/nonesuch")), 1, "ends 404"),
    lambda _dice: (HEAD + b"content-length: 999999999\r\n\r\n", 1, "ends 413"),
    lambda _dice: (request(b"content-encoding: gzip\r\n"), 1, "ends 415"),
    lambda dice: (dice.choice((b"nonsense\r\n\r\n", HEAD + b" a: b\r\n\r\n", b"\x16\x03\x01\x00")), 1, "ends 400"),
    lambda _dice: (chunked(BODY, end=b"z\r\n"), 1, "ends 400"),
    lambda _dice: (request(b"connection: upgrade\r\nupgrade: h2c\r\n"), 1, "ends 400"),
)
_FLOODS = (
    (chunked(BODY, end=b"0\r\n"), b"a: b\r\n"),
    (chunked(BODY, end=b"0\r\na: "), b"b" * 1000),
    (chunked(BODY, end=b"0;a="), b"b" * 1000),
    (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1;a=%s\r\n \r\n" % (b"b" * 500)),
    (HEAD, b"a:b\r\n"),
    (HEAD + b"a: ", b"b" * 1000),
    (b"POST /", b"a" * 1000),
)


def _expected(items: list[Any]) -> list[int]:
    """The statuses of a stream, up to the end of the connection."""
    found = list[int]()
    for _, times, kind in items:
        if kind == "flood":
            return [*found, 400]
        if kind.startswith("ends "):
            return [*found, int(kind[5:])]
        if kind != "more":
            found += [int(kind)] * times
    return found


def _check(got: list[int], expected: list[int], shuts: bool) -> None:
    """A client that shuts its sending side before a body is whole may get no answer to that request: RFC 9112, 8."""
    cut_off = shuts and expected[-1:] == [413]
    if got != expected and not (cut_off and got == expected[:-1]):
        raise Violation(f"answers: {len(got)} of {len(expected)}; {got[-5:]} rather than {expected[-5:]}")


def _statuses(found: bytes) -> list[int]:
    try:
        return statuses(found)
    except (AssertionError, ValueError) as error:
        raise Violation(f"responses: {error}: {found[-200:]!r}") from error


def _check_held(server: Protocol) -> None:
    """That a connection holds a bounded part of what its client has sent."""
    cycles = [cycle for cycle, _ in server.pipeline]
    if len(cycles) > WAITING:
        raise Violation(f"held: {len(cycles)} requests")
    if len(server.headers or ()) > HEADERS + 1:
        raise Violation(f"held: {len(server.headers)} headers")
    held = server.pending + server.unread + sum(len(cycle.body) for cycle in cycles)
    if held > HELD_BYTES:
        raise Violation(f"held: {held} bytes")
