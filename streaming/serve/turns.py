"""Whose request is begun next."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

AT_ONCE = 8
"""Requests that begin in one round of the loop: so many are answered before it looks at its connections again."""

ROUND_SECONDS = 0.01
"""After a longer round only one begins: of batches, each takes so long. A new client needs some four rounds."""


class Turns:
    """Has requests begin in turn: one of each caller or address, then the next of each; of one, in their order.

    A client that sends thousands of requests in one go, over hundreds of connections, delays its own; another one waits
    for a few rounds of the loop, whatever that client does. `clock`: s. In the loop's thread.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._round = clock, clock()
        self._waiting: OrderedDict[str, deque[Callable[[], None]]] = OrderedDict()
        self._left, self._is_due = AT_ONCE, False

    def take(self, of: str, begin: Callable[[], None]) -> None:
        """Call `begin` when it is the turn of this caller or address: at once, where few requests have begun."""
        if self._left and not self._waiting:
            self._left -= 1
            begin()
        else:
            self._waiting.setdefault(of, deque()).append(begin)
        self._go_on()

    async def turn(self, of: str) -> None:
        """The same for a request that has begun and had to wait for its body."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.take(of, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _go_on(self) -> None:
        if not self._is_due:
            self._is_due, self._round = True, self._clock()
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._left, self._is_due = AT_ONCE if self._clock() - self._round < ROUND_SECONDS else 1, False
        while self._left and self._waiting:
            of, waiting = self._waiting.popitem(last=False)
            self._left -= 1
            begin = waiting.popleft()
            if waiting:
                self._waiting[of] = waiting
            begin()
        if self._waiting:
            self._go_on()
