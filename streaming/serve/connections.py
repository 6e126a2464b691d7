"""The open connections of a server: how many there are, how long each may let the server wait, what they buffer.

A connection costs memory and a file descriptor, and unknown clients open it. So each has a deadline in every phase in
which the server waits for its client. When there are too many, the ones that have waited longest make room.
"""

import asyncio
import ipaddress
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import structlog

from streaming.serve.turns import Turns

log = structlog.get_logger()

HANDSHAKE, REQUEST, ANSWER, IDLE, CLOSING = "handshake", "request", "answer", "idle", "closing"
"""Phases of a connection: whom the server waits for is its client, but for `ANSWER`, which is the server's turn."""

MOST_CONNECTIONS = 1000  # of a process: with a descriptor each, below the 1,024 files of many systems' soft limit
HANDSHAKE_SECONDS = 10.0
REQUEST_SECONDS = 10.0  # for a request to be sent, and for its response to be read: both fit into few packets
IDLE_SECONDS = 75.0  # between two requests, as with nginx
CLOSING_SECONDS = 2.0  # for the client to read the last response and to close: a reset would discard the response
PRESSED_SECONDS = 1.0  # in each phase, once there are too many connections
RELIEF_SECONDS = 0.1  # between two reliefs: each looks at all connections
WATCH_SECONDS = 0.25
BUFFERED_BYTES = 64 << 20  # of all connections together: answers that are not read, and pipelined requests
CLOSING_SHARE = 4  # so many connections that are being closed for each that may be open, divided by this
SPARE_FILES = 200  # beside connections: Kafka's, the policies', the metrics'
REFUSING_SECONDS = 3.0  # without any success: then the server is not ready


class Connection(Protocol):
    """What is known of a connection. `since`: when its phase began, s; `pending`: the pipelined bytes that it holds."""

    address: str
    phase: str
    since: float
    unread_since: float | None

    @property
    def caller(self) -> str:
        """Who asks, as far as that is known: for whose share it counts."""

    @property
    def pending(self) -> int:
        """Pipelined bytes that are not parsed yet."""

    @property
    def unread(self) -> int:
        """Bytes of responses that the client has not taken."""

    def end(self, reason: str) -> None:
        """End it now, with a response where that is possible."""

    def abort(self) -> None:
        """End it at once, whatever is left to be sent."""


class Refusals:
    """Since when everything is refused. `clock`: monotonic, s. Used by the loop, read by other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def refused(self) -> None:
        """Note a refusal for lack of room."""
        if self._since is None:
            self._since = self._clock()

    def served(self) -> None:
        """Note that there was room."""
        self._since = None

    def lasting(self) -> float:
        """For how long there was no room, s; 0: there was, or it has only begun."""
        since = self._since
        seconds = 0.0 if since is None else self._clock() - since
        return seconds if seconds > REFUSING_SECONDS else 0.0


class Connections:
    """All connections. `most`: at once; `seconds`: for a request to be sent, and for its response to be read.

    `on_closed`: called with the reason for which one is closed. `clock`: monotonic, s. In the loop's thread.
    """

    def __init__(
        self,
        most: int,
        seconds: float = REQUEST_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most, self._seconds, self.clock = most, seconds, clock
        self.on_closed: Callable[[str], None] = lambda _reason: None
        self.open: dict[Connection, None] = {}
        self.closing: dict[Connection, None] = {}
        self.refusals, self.turns = Refusals(clock), Turns()
        self._relieved = float("-inf")

    def admit(self, connection: Connection) -> bool:
        """Count a new connection if there is room for it, or others can be ended for it."""
        if len(self.open) >= self.most:
            self.relieve()
        if len(self.open) >= self.most:
            self.refusals.refused()
            return False
        self.refusals.served()
        self.open[connection] = None
        return True

    def close(self, connection: Connection, reason: str) -> bool:
        """It is being closed. False: too many are already, so it must not wait for its client."""
        self.open.pop(connection, None)
        self.on_closed(reason)
        self.closing[connection] = None
        return len(self.closing) <= self.most // CLOSING_SHARE + 2

    def remove(self, connection: Connection) -> None:
        """It is closed."""
        self.open.pop(connection, None)
        self.closing.pop(connection, None)

    def relieve(self, sending: bool = False) -> None:
        """End a tenth of the connections that have let the server wait longest; `sending`: of those in a request.

        Those of the caller or address that has most come first, so that a flood from one place ends itself. Those that
        wait between two requests come last: they are not to blame.
        """
        now = self.clock()
        if now - self._relieved < RELIEF_SECONDS:
            return
        self._relieved = now
        waiting = [connection for connection in self.open if self._waited(connection, now) > PRESSED_SECONDS]
        if sending:
            waiting = [connection for connection in waiting if connection.phase == REQUEST]
        counts = Counter(connection.caller or connection.address for connection in self.open)
        waiting.sort(
            key=lambda connection: (
                connection.phase == IDLE,
                -counts[connection.caller or connection.address],
                connection.since,
            )
        )
        for connection in waiting[: self.most // 10 + 1]:
            connection.end("evicted")

    def _waited(self, connection: Connection, now: float) -> float:
        """For how long the server has waited for the client, s."""
        since = connection.unread_since if connection.phase == ANSWER else connection.since
        return 0.0 if since is None else now - since

    async def watch(self) -> None:
        """End what is over its time, for ever."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                self.look()
            except Exception as failure:
                # Without deadlines, clients could hold all connections for ever.
                log.error("connections could not be looked at; please report it", error=type(failure).__name__)

    def look(self) -> None:
        """End what is over its time, and what buffers too much."""
        now = self.clock()
        limits = {HANDSHAKE: HANDSHAKE_SECONDS, REQUEST: self._seconds, IDLE: IDLE_SECONDS}
        for connection in list(self.open):
            if not connection.unread:
                connection.unread_since = None
            elif connection.unread_since is None:
                connection.unread_since = now
            if connection.unread_since is not None and now - connection.unread_since > self._seconds:
                connection.end("unread")
            elif now - connection.since > limits.get(connection.phase, float("inf")):
                connection.end(f"{connection.phase}-timeout")
        for connection in list(self.closing):
            if now - connection.since > (self._seconds if connection.unread else CLOSING_SECONDS):
                connection.abort()
        self._bound_buffers([*self.open, *self.closing])

    def _bound_buffers(self, connections: Iterable[Connection]) -> None:
        buffered = {connection: size for connection in connections if (size := connection.pending + connection.unread)}
        total = sum(buffered.values())
        for connection in sorted(buffered, key=lambda connection: -buffered[connection]):
            if total <= BUFFERED_BYTES:
                break
            total -= buffered[connection]
            self.on_closed("buffered")
            connection.abort()


def room_for(most: int) -> int:
    """So many connections, or fewer where the process may not open so many files.

    Without a descriptor, the kernel's backlog fills, and clients get a reset rather than a response.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most + most // CLOSING_SHARE + SPARE_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return most
    limit = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    room = max((limit - SPARE_FILES) * CLOSING_SHARE // (CLOSING_SHARE + 1), 1)
    if room < most:
        log.warning(
            "fewer connections than a server takes: the process may not open more files; raise its limit",
            connections=room,
            files=limit,
        )
    return min(room, most)


def network_of(peer: object) -> str:
    """Whose share a connection counts for: the address, of IPv6 its /64, which is one customer's (RFC 6177)."""
    if not isinstance(peer, tuple):
        return ""
    host = str(peer[0]).partition("%")[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))
