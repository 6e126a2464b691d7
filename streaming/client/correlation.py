"""Which answer belongs to which question: pure, without Kafka, threads or a clock.

A question is known by its record's place, and the place only by the delivery report. Its answer may be read before
that report, among the answers to others; so answers that may be ours are held until no open question can be theirs.
"""

from collections import Counter, OrderedDict
from typing import Generic, TypeVar

from streaming.client.decision import Place

A = TypeVar("A")


class Correlation(Generic[A]):
    """Open questions, by tickets that count up. A ticket is closed by its answer, or by `forget`."""

    def __init__(self) -> None:
        self._next = 0
        self._unreported: OrderedDict[int, str] = OrderedDict()  # ticket → the question's id, oldest first
        self._ids: Counter[str] = Counter()  # of those
        self._places: dict[int, Place] = {}
        self._reported: dict[Place, int] = {}
        self._early: OrderedDict[Place, tuple[int, A]] = OrderedDict()  # with the ticket that came next, in order

    def __len__(self) -> int:
        """How many questions are open."""
        return len(self._unreported) + len(self._reported)

    @property
    def held(self) -> int:
        """How many answers are held that may yet turn out to be ours."""
        return len(self._early)

    def open(self, id_: str) -> int:
        """A ticket for a question with an id, before it is sent."""
        ticket, self._next = self._next, self._next + 1
        self._unreported[ticket] = id_
        self._ids[id_] += 1
        return ticket

    def report(self, ticket: int, place: Place) -> A | None:
        """The question's record stands at `place`. Its answer, if that was read before; it is closed then."""
        if ticket not in self._unreported:
            return None  # forgotten
        self._leave_unreported(ticket)
        found = self._early.pop(place, None)
        self._drop_strangers()
        if found is not None:
            return found[1]
        self._places[ticket], self._reported[place] = place, ticket
        return None

    def answer(self, place: Place, id_: str | None, answer: A) -> int | None:
        """An answer to the record at `place` was read. The ticket that it closes, if one is known to be there.

        `id_`: the id that the answer names; None when it names none.
        """
        ticket = self._reported.pop(place, None)
        if ticket is not None:
            del self._places[ticket]
        elif self._unreported and (id_ is None or self._ids[id_] > 0):
            self._early[place] = (self._next, answer)
        return ticket

    def forget(self, ticket: int) -> None:
        """Close a request without a waiting caller; closing twice is allowed."""
        if ticket in self._unreported:
            self._leave_unreported(ticket)
            self._drop_strangers()
        elif (place := self._places.pop(ticket, None)) is not None:
            del self._reported[place]

    def place_of(self, ticket: int) -> Place | None:
        """Where an open question's record stands, once that is known."""
        return self._places.get(ticket)

    def _leave_unreported(self, ticket: int) -> None:
        id_ = self._unreported.pop(ticket)
        self._ids[id_] -= 1
        if not self._ids[id_]:
            del self._ids[id_]

    def _drop_strangers(self) -> None:
        """A question asked after an answer was read is not the one it answers."""
        oldest = next(iter(self._unreported), self._next)
        while self._early and next(iter(self._early.values()))[0] <= oldest:
            self._early.popitem(last=False)
