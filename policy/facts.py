"""Facts: what exists and how it hangs together. The policy topics win over the facts topic."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from policy.model import Fact, Unanswerable

Refused = Mapping[tuple[str, str], str]
"""(kind, name) of refused documents without a good version -> ``system/kind/name``."""


class FactTable:
    """Facts of one layer by kind and name, and by their keys, and what is refused in it."""

    def __init__(self, facts: Iterable[Fact] = (), refused: Refused | None = None) -> None:
        self.refused = dict(refused or {})
        self._by_kind: dict[str, dict[str, Fact]] = {}
        self._by_key: dict[tuple[str, str, str], set[str]] = {}
        for fact in facts:
            self.put(fact)

    def __len__(self) -> int:
        return sum(len(named) for named in self._by_kind.values())

    def put(self, fact: Fact) -> None:
        """Add ``fact`` in place of the one with its kind and name."""
        self.remove(fact.kind, fact.name)
        self._by_kind.setdefault(fact.kind, {})[fact.name] = fact
        for index, value in fact.keys:
            self._by_key.setdefault((fact.kind, index, value), set()).add(fact.name)

    def remove(self, kind: str, name: str) -> None:
        """Forget a fact; one that is not known is no error."""
        old = self._by_kind.get(kind, {}).pop(name, None)
        for index, value in old.keys if old else ():
            names = self._by_key[kind, index, value]
            names.discard(name)
            if not names:
                del self._by_key[kind, index, value]

    def get(self, kind: str, name: str) -> Fact | None:
        """The fact, or None."""
        return self._by_kind.get(kind, {}).get(name)

    def find(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""
        return frozenset(self._by_key.get((kind, index, value), ()))

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind``, sorted; slow: for tools, not for decisions."""
        return sorted(self._by_kind.get(kind, ()))

    def all(self, kind: str) -> Iterable[Fact]:
        """All facts of ``kind``, in no particular order."""
        return self._by_kind.get(kind, {}).values()


class Facts:
    """The layers as one: the first that knows a fact wins, also where it knows only that its document was refused."""

    def __init__(self, *layers: FactTable) -> None:
        self._layers = layers

    def get(self, kind: str, name: str) -> Any | None:
        """The body of the fact, or None; Unanswerable when its document was refused and has no good version."""
        for layer in self._layers:
            if (fact := layer.get(kind, name)) is not None:
                return fact.body
            if (document := layer.refused.get((kind, name))) is not None:
                raise Unanswerable("refused-document", f"{document} was refused and has no earlier good version")
        return None

    def find(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value), over all layers."""
        found: set[str] = set()
        for number, layer in enumerate(self._layers):
            above = self._layers[:number]
            names = layer.find(kind, index, value)
            found.update(name for name in names if all(other.get(kind, name) is None for other in above))
        return frozenset(found)

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind``, sorted; slow: for tools, not for decisions."""
        return sorted({name for layer in self._layers for name in layer.names(kind)})

    def bodies(self, kind: str) -> Iterator[Any]:
        """Every body of ``kind`` in any layer, hidden by another or not: what may come to count."""
        return (fact.body for layer in self._layers for fact in layer.all(kind))

    def broken(self, kind: str) -> list[str]:
        """Names of the refused documents of ``kind`` that have no good version there or above, sorted."""
        found = {
            name
            for number, layer in enumerate(self._layers)
            for known, name in layer.refused
            if known == kind and all(above.get(kind, name) is None for above in self._layers[:number])
        }
        return sorted(found)
