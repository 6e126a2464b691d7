"""Facts: what exists and how it hangs together. The policy topics win over the facts topic."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from policy.core.fact_table import FactTable, Lookup
from policy.core.model import Fact, Unanswerable

BOUND: Lookup = ("bound",)
"""Which principals the refused documents of the facts topic affect: every query reads it."""


class Reads:
    """What a decision has read of the facts, found or not, and the moments (ms) at which that begins or ceases.

    ``principals``: those whose effective principals it has looked up.
    """

    def __init__(self) -> None:
        self.lookups: set[Lookup] = set()
        self.edges: set[int] = set()
        self.principals: set[str] = set()


class Facts:
    """The layers as one: the first that knows a fact wins, also where it knows only that its document was refused.

    ``moment``: whose versions are looked up, ms; None: not known. See `FactTable`. ``reads``: notes what is
    looked up.
    """

    def __init__(self, *layers: FactTable, moment: int | None = None, reads: Reads | None = None) -> None:
        self._layers = layers
        self._moment = moment
        self._reads = reads
        self._timeless: bool | None = None  # worked out at the first lookup that is noted: many decisions make none
        self._bodies: dict[tuple[str, str], Any | None] = {}  # a decision looks up the same thing up to six times

    def at(self, moment: int | None, reads: Reads | None = None) -> "Facts":
        """The facts that count at ``moment`` (ms; None: not known). ``reads``: to note what is looked up."""
        if reads is None and all(layer.timeless for layer in self._layers):
            return self
        return Facts(*self._layers, moment=moment, reads=reads)

    def _note(self, reads: Reads, lookup: Lookup, names: Callable[[FactTable], Iterable[str]]) -> None:
        """Note a lookup, and the moments at which what it found, in any layer, begins or ceases to count."""
        reads.lookups.add(lookup)
        if self._timeless is None:
            self._timeless = all(layer.timeless for layer in self._layers)
        if self._timeless:
            return
        things = {name for layer in self._layers for name in names(layer)}
        reads.edges.update(
            edge for name in things for layer in self._layers for edge in layer.edges_of(lookup[1], name)
        )

    def get(self, kind: str, name: str) -> Any | None:
        """The body of the fact, or None; Unanswerable when its document was refused and has no good version."""
        if self._reads is None:
            return self._get(kind, name)
        thing = (kind, name)
        if thing not in self._bodies:
            self._note(self._reads, ("name", kind, name), lambda _: (name,))
            self._bodies[thing] = self._get(kind, name)
        return self._bodies[thing]

    def _get(self, kind: str, name: str) -> Any | None:
        for layer in self._layers:
            if (fact := layer.get(kind, name, self._moment)) is not None:
                return fact.body
            if (document := layer.refusal(kind, name, self._moment)) is not None:
                raise Unanswerable("refused-document", f"{document} was refused and has no earlier good version")
        return None

    def find(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value), over all layers."""
        if self._reads is not None:
            self._note(self._reads, ("key", kind, index, value), lambda layer: layer.named(kind, index, value))
        return frozenset(
            name
            for number, layer in enumerate(self._layers)
            for name in layer.find(kind, index, value, self._moment)
            if not (number and self._known_above(number, kind, name))
        )

    def find_first(self, kind: str, index: str, value: str) -> frozenset[str]:
        """The same of the first layer alone that has any: where several documents may describe one thing."""
        if self._reads is not None:
            self._note(self._reads, ("key", kind, index, value), lambda layer: layer.named(kind, index, value))
        names = (layer.find(kind, index, value, self._moment) for layer in self._layers)
        return next(filter(None, names), frozenset())

    def kinds(self) -> list[str]:
        """The kinds of all facts at whatever moment, sorted; slow: for tools, not for decisions."""
        return sorted({kind for layer in self._layers for kind in layer.kinds()})

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind`` at whatever moment, sorted; slow: for tools, not for decisions."""
        return sorted({name for layer in self._layers for name in layer.names(kind)})

    def bodies(self, kind: str) -> Iterator[Any]:
        """Every body of ``kind`` in any layer, hidden by another or not, at whatever moment: what may come to count."""
        return (fact.body for layer in self._layers for fact in layer.all(kind))

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing that count at some moment; for tools, not for decisions."""
        return next((facts for layer in self._layers if (facts := layer.versions(kind, name))), ())

    def broken(self, kind: str) -> list[str]:
        """Names of the refused documents of ``kind`` that have no good version there or above, sorted."""
        if self._reads is not None:
            self._note(self._reads, ("refused", kind), lambda layer: layer.refused_names(kind))
        refused = {
            name
            for number, layer in enumerate(self._layers)
            for name in layer.refusals(kind, self._moment)
            if not self._known_above(number, kind, name)
        }
        return sorted(refused)

    def edges(self) -> set[int]:
        """The moments (ms) at which facts begin or cease to count."""
        return set[int]().union(*(layer.edges() for layer in self._layers))

    def _known_above(self, number: int, kind: str, name: str) -> bool:
        return any(above.get(kind, name, self._moment) is not None for above in self._layers[:number])
