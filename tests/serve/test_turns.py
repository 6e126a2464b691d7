"""Requests begin in turn: who sends very many at once delays their own, and nobody else's."""

import asyncio
import itertools
from collections.abc import Callable

import pytest

from streaming.serve.turns import AT_ONCE, Turns
from tests.serve.local_server import local_server, received, request, statuses
from tests.waiting import wait_until

FLOOD = 300


def test_after_hundreds_of_one_address_another_begins_in_the_next_round() -> None:
    """And those of one address begin in their order."""
    begun, rounds = list[tuple[str, int]](), list[int]()

    async def ask() -> None:
        turns = Turns(clock=lambda: 0.0)
        for number in range(FLOOD):
            turns.take("flood", lambda number=number: begun.append(("flood", number)))  # type: ignore[misc]
        assert len(begun) == AT_ONCE, "the loop looks at its connections in between"
        turns.take("other", lambda: begun.append(("other", len(rounds))))
        later = asyncio.create_task(turns.turn("third"))
        while len(begun) < FLOOD + 1:
            rounds.append(len(begun))
            await asyncio.sleep(0)
        assert later.done()
        turns.take("flood", lambda: begun.append(("flood", FLOOD)))
        assert begun[-1] == ("flood", FLOOD), "where nobody waits, at once"

    asyncio.run(ask())
    assert begun.index(("other", 1)) <= 2 * AT_ONCE
    assert max(after - before for before, after in itertools.pairwise(rounds)) <= AT_ONCE
    assert [number for who, number in begun if who == "flood"] == list(range(FLOOD + 1))


def test_after_a_long_round_one_request_begins() -> None:
    """Of batches that take long each: another client's request would wait for all that begin at once."""
    now, begun = [0.0], list[float]()

    def answer() -> None:
        now[0] += 1.0

    def begin() -> None:
        begun.append(now[0])
        asyncio.get_running_loop().call_soon(answer)

    async def ask() -> None:
        turns = Turns(clock=lambda: now[0])
        for _ in range(AT_ONCE + 5):
            turns.take("flood", begin)
        await asyncio.sleep(0)
        assert len(begun) == AT_ONCE + 1
        await asyncio.sleep(0)
        assert len(begun) == AT_ONCE + 2

    asyncio.run(ask())


@pytest.mark.parametrize("parts", [1, 2], ids=["at once", "with a late body"])
def test_every_request_waits_for_its_turn(parts: int) -> None:
    """The first of a connection, those that were pipelined, and one whose body came late: it has begun, for nothing."""

    class Held(Turns):
        def __init__(self) -> None:
            super().__init__()
            self.waiting = list[tuple[str, Callable[[], None]]]()
            self.begun = False

        def take(self, of: str, begin: Callable[[], None]) -> None:
            if parts == 2 and not self.begun:
                self.begun = True
                begin()
            else:
                self.waiting.append((of, begin))

    with local_server() as server, server.connect() as one:
        turns = server.connections.turns = Held()
        head, body = request(b"connection: close\r\n").split(b"\r\n\r\n")
        one.sendall(head + b"\r\n\r\n" + (body if parts == 1 else body[:5]))
        if parts == 2:
            wait_until(lambda: turns.begun, "it has begun")
            one.sendall(body[5:])
        wait_until(lambda: bool(turns.waiting), "it waits")
        [(of, begin)] = turns.waiting
        assert of == "127.0.0.1"
        server.http.call(begin)
        assert statuses(received(one)) == [200]
