"""A door before a server: a port that leads to another one while it is open, and to nothing while it is shut."""

import contextlib
import socket
import threading
from types import TracebackType
from typing import Self


class Door:
    """Open while this object is; connections that are open end with it."""

    def __init__(self, host: str, port: int, behind: int) -> None:
        self._address, self._behind = (host, port), (host, behind)
        self._connections: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(self._address)
        threading.Thread(target=self._let_in, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                visitor, _ = self._listener.accept()
                inside = socket.create_connection(self._behind)
                self._connections += [visitor, inside]
                for one, other in ((visitor, inside), (inside, visitor)):
                    threading.Thread(target=_carry, args=(one, other), daemon=True).start()


def _carry(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
