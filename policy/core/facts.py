"""Facts: what exists and how it hangs together. The policy topics win over the facts topic."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from policy.core.model import Fact, Unanswerable
from policy.core.times import Window

Refused = Mapping[tuple[str, str], str]
"""(kind, name) of refused documents without a good version -> ``system/kind/name``."""


RefusedWhile = dict[tuple[str, str], list[tuple[Window, str]]]
"""(kind, name) of documents that are refused for a time -> when, and ``system/kind/name``."""

Refusals = tuple[dict[tuple[str, str], str], RefusedWhile]
"""What is refused at every moment, and what is for a time."""

Lookup = tuple[str, ...]
"""What was looked up: ``("name", kind, name)``, ``("key", kind, index, value)`` or ``("refused", kind)``."""

BOUND: Lookup = ("bound",)
"""Which principals the refused documents of the facts topic affect: every query reads it."""


class Reads:
    """What a decision has read of the facts, found or not, and the moments (ms) at which that begins or ceases."""

    def __init__(self) -> None:
        self.lookups: set[Lookup] = set()
        self.edges: set[int] = set()


class FactTable:
    """Facts of one layer by kind and name, and by their keys, and what is refused in it.

    Of a thing whose document has versions, each in force for a time, there are several facts, and it may be refused for
    a time only. The moment (``at``, ms) then says which counts; None: the time is not known, which raises Unanswerable
    where it matters.
    """

    def __init__(self, facts: Iterable[Fact] = (), refused: Refused | None = None) -> None:
        self.refused = dict(refused or {})
        self._refused_while: RefusedWhile = {}
        self._by_kind: dict[str, dict[str, Fact]] = {}
        self._versions: dict[tuple[str, str], list[Fact]] = {}  # those that do not count at every moment
        self._by_key: dict[tuple[str, str, str], set[str]] = {}
        for fact in facts:
            self.put(fact)

    def with_changes(self, removed: Iterable[Fact], added: Iterable[Fact], refused: "Refusals") -> "FactTable":
        """Another table with the facts ``added`` in place of all that are known of the things of those ``removed``.

        With these refusals. What is alike is shared; this table does not change.
        """
        other, removed, added = FactTable(), tuple(removed), tuple(added)
        other.refused, other._refused_while = refused
        other._by_kind, other._versions, other._by_key = dict(self._by_kind), self._versions, self._by_key
        places = dict.fromkeys((fact.kind, fact.name) for fact in (*removed, *added))
        if not places:
            return other
        for kind in {kind for kind, _ in places}:
            other._by_kind[kind] = dict(self._by_kind.get(kind, {}))
        other._versions, other._by_key = dict(self._versions), dict(self._by_key)
        before = (fact for place in places for fact in self.versions(*place))
        for key in {(fact.kind, *key) for fact in (*before, *added) for key in fact.keys}:
            other._by_key[key] = set(self._by_key.get(key, ()))
        for kind, name in dict.fromkeys((fact.kind, fact.name) for fact in removed):
            other.remove(kind, name)
        for fact in added:
            if not fact.timeless and (fact.kind, fact.name) in other._versions:
                other._versions[fact.kind, fact.name] = list(other._versions[fact.kind, fact.name])
            other.put(fact)
        other._by_kind = {kind: named for kind, named in other._by_kind.items() if named}
        return other

    def __len__(self) -> int:
        return sum(len(named) for named in self._by_kind.values()) + len(self._versions)

    @property
    def timeless(self) -> bool:
        """Whether all of it counts at every moment."""
        return not self._versions and not self._refused_while

    def put(self, fact: Fact) -> None:
        """Add ``fact`` in place of the one with its kind and name; beside it, where each is in force for a time."""
        if fact.timeless:
            self.remove(fact.kind, fact.name)
            self._by_kind.setdefault(fact.kind, {})[fact.name] = fact
        else:
            self._versions.setdefault((fact.kind, fact.name), []).append(fact)
        for index, value in fact.keys:
            self._by_key.setdefault((fact.kind, index, value), set()).add(fact.name)

    def remove(self, kind: str, name: str) -> None:
        """Forget a thing; one that is not known is no error."""
        old = self._by_kind.get(kind, {}).pop(name, None)
        for fact in (*([old] if old else ()), *self._versions.pop((kind, name), ())):
            for index, value in fact.keys:
                names = self._by_key.get((kind, index, value), set())
                names.discard(name)
                if not names:
                    self._by_key.pop((kind, index, value), None)

    def refuse(self, kind: str, name: str, document: str, window: Window) -> None:
        """Note that a document is refused while ``window`` holds."""
        self._refused_while.setdefault((kind, name), []).append((window, document))

    def get(self, kind: str, name: str, at: int | None = None) -> Fact | None:
        """The fact, or None."""
        fact = self._by_kind.get(kind, {}).get(name)
        if fact is None and self._versions:
            return next((one for one in self._versions.get((kind, name), ()) if one.counts(at)), None)
        return fact

    def refusal(self, kind: str, name: str, at: int | None = None) -> str | None:
        """The refused document of a thing that has no good version; None: there is none."""
        document = self.refused.get((kind, name))
        if document is None and self._refused_while:
            refusals = self._refused_while.get((kind, name), ())
            return next((text for window, text in refusals if at is None or window.holds(at)), None)
        return document

    def refusals(self, kind: str, at: int | None = None) -> list[str]:
        """Names of the refused things of ``kind``."""
        known = {name for of, name in (*self.refused, *self._refused_while) if of == kind}
        return [name for name in known if self.refusal(kind, name, at) is not None]

    def find(self, kind: str, index: str, value: str, at: int | None = None) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""
        names = frozenset(self._by_key.get((kind, index, value), ()))
        if not self._versions:
            return names
        return frozenset(name for name in names if self._has_key(kind, name, (index, value), at))

    def _has_key(self, kind: str, name: str, key: tuple[str, str], at: int | None) -> bool:
        versions = self._versions.get((kind, name))
        return versions is None or any(key in fact.keys and fact.counts(at) for fact in versions)

    def kinds(self) -> set[str]:
        """The kinds of all facts; slow: for tools, not for decisions."""
        return {*(kind for kind, named in self._by_kind.items() if named), *(kind for kind, _ in self._versions)}

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind``, sorted; slow: for tools, not for decisions."""
        return sorted({fact.name for fact in self.all(kind)})

    def all(self, kind: str) -> Iterable[Fact]:
        """All facts of ``kind``, in force at whatever moment, in no particular order."""
        yield from self._by_kind.get(kind, {}).values()
        for (of, _), versions in self._versions.items():
            if of == kind:
                yield from versions

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing, each in force for a time, in the order of these times."""
        fact = self._by_kind.get(kind, {}).get(name)
        return tuple(self._versions.get((kind, name), ())) if fact is None else (fact,)

    def edges(self) -> set[int]:
        """The moments (ms) at which a fact or a refusal begins or ceases to count."""
        return set[int]().union(*(self.edges_of(*place) for place in {*self._versions, *self._refused_while}))

    def edges_of(self, kind: str, name: str) -> set[int]:
        """The same of one thing."""
        facts, refusals = self._versions.get((kind, name), ()), self._refused_while.get((kind, name), ())
        return edges_of(facts) | {edge for window, _ in refusals for edge in window.edges}

    def refused_names(self, kind: str) -> set[str]:
        """Names of the things of ``kind`` that are refused at some moment."""
        return {name for of, name in (*self.refused, *self._refused_while) if of == kind}

    def named(self, kind: str, index: str, value: str) -> Iterable[str]:
        """Names of the facts of ``kind`` with the key (index, value) at some moment."""
        return self._by_key.get((kind, index, value), ())


class FactSource(Protocol):
    """One layer of facts, as `Facts` reads it: a `FactTable`, or the layer of the facts topic."""

    @property
    def timeless(self) -> bool:
        """Whether all of it counts at every moment."""

    def get(self, kind: str, name: str, at: int | None = None) -> Fact | None:
        """The fact, or None."""

    def refusal(self, kind: str, name: str, at: int | None = None) -> str | None:
        """The refused document of a thing that has no good version; None: there is none."""

    def refusals(self, kind: str, at: int | None = None) -> list[str]:
        """Names of the refused things of ``kind``."""

    def find(self, kind: str, index: str, value: str, at: int | None = None) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value)."""

    def kinds(self) -> set[str]:
        """The kinds of all facts."""

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind``, sorted."""

    def all(self, kind: str) -> Iterable[Fact]:
        """All facts of ``kind``, in force at whatever moment."""

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing that count at some moment."""

    def edges(self) -> set[int]:
        """The moments (ms) at which a fact or a refusal begins or ceases to count."""

    def edges_of(self, kind: str, name: str) -> set[int]:
        """The same of one thing."""

    def named(self, kind: str, index: str, value: str) -> Iterable[str]:
        """Names of the facts of ``kind`` with the key (index, value) at some moment."""

    def refused_names(self, kind: str) -> Iterable[str]:
        """Names of the things of ``kind`` that are refused at some moment."""


class Facts:
    """The layers as one: the first that knows a fact wins, also where it knows only that its document was refused.

    ``moment``: whose versions are looked up, ms; None: not known. See `FactTable`. ``reads``: notes what is
    looked up.
    """

    def __init__(self, *layers: FactSource, moment: int | None = None, reads: Reads | None = None) -> None:
        self._layers = layers
        self._moment = moment
        self._reads = reads

    def at(self, moment: int | None, reads: Reads | None = None) -> "Facts":
        """The facts that count at ``moment`` (ms; None: not known). ``reads``: to note what is looked up."""
        if reads is None and all(overlay.timeless for overlay in self._layers):
            return self
        return Facts(*self._layers, moment=moment, reads=reads)

    def _note(self, reads: Reads, lookup: Lookup, names: Callable[[FactSource], Iterable[str]]) -> None:
        """Note a lookup, and the moments at which what it found, in any layer, begins or ceases to count."""
        reads.lookups.add(lookup)
        if all(overlay.timeless for overlay in self._layers):
            return
        found = {name for overlay in self._layers for name in names(overlay)}
        reads.edges.update(
            edge for name in found for overlay in self._layers for edge in overlay.edges_of(lookup[1], name)
        )

    def get(self, kind: str, name: str) -> Any | None:
        """The body of the fact, or None; Unanswerable when its document was refused and has no good version."""
        if self._reads is not None:
            self._note(self._reads, ("name", kind, name), lambda _: (name,))
        for overlay in self._layers:
            if (fact := overlay.get(kind, name, self._moment)) is not None:
                return fact.body
            if (document := overlay.refusal(kind, name, self._moment)) is not None:
                raise Unanswerable("refused-document", f"{document} was refused and has no earlier good version")
        return None

    def find(self, kind: str, index: str, value: str) -> frozenset[str]:
        """Names of the facts of ``kind`` with the key (index, value), over all layers."""
        if self._reads is not None:
            self._note(self._reads, ("key", kind, index, value), lambda overlay: overlay.named(kind, index, value))
        found: set[str] = set()
        for number, overlay in enumerate(self._layers):
            names = overlay.find(kind, index, value, self._moment)
            found.update(name for name in names if not self._known_above(number, kind, name))
        return frozenset(found)

    def find_first(self, kind: str, index: str, value: str) -> frozenset[str]:
        """The same of the first layer alone that has any: where several documents may describe one thing."""
        if self._reads is not None:
            self._note(self._reads, ("key", kind, index, value), lambda overlay: overlay.named(kind, index, value))
        found = (overlay.find(kind, index, value, self._moment) for overlay in self._layers)
        return next(filter(None, found), frozenset())

    def kinds(self) -> list[str]:
        """The kinds of all facts at whatever moment, sorted; slow: for tools, not for decisions."""
        return sorted({kind for overlay in self._layers for kind in overlay.kinds()})

    def names(self, kind: str) -> list[str]:
        """Names of all facts of ``kind`` at whatever moment, sorted; slow: for tools, not for decisions."""
        return sorted({name for overlay in self._layers for name in overlay.names(kind)})

    def bodies(self, kind: str) -> Iterator[Any]:
        """Every body of ``kind`` in any layer, hidden by another or not, at whatever moment: what may come to count."""
        return (fact.body for overlay in self._layers for fact in overlay.all(kind))

    def versions(self, kind: str, name: str) -> tuple[Fact, ...]:
        """All facts of one thing that count at some moment; for tools, not for decisions."""
        return next((found for overlay in self._layers if (found := overlay.versions(kind, name))), ())

    def broken(self, kind: str) -> list[str]:
        """Names of the refused documents of ``kind`` that have no good version there or above, sorted."""
        if self._reads is not None:
            self._note(self._reads, ("refused", kind), lambda overlay: overlay.refused_names(kind))
        found = {
            name
            for number, overlay in enumerate(self._layers)
            for name in overlay.refusals(kind, self._moment)
            if not self._known_above(number, kind, name)
        }
        return sorted(found)

    def edges(self) -> set[int]:
        """The moments (ms) at which facts begin or cease to count."""
        return set[int]().union(*(overlay.edges() for overlay in self._layers))

    def _known_above(self, number: int, kind: str, name: str) -> bool:
        return any(above.get(kind, name, self._moment) is not None for above in self._layers[:number])


def edges_of(facts: Iterable[Fact]) -> set[int]:
    """The moments (ms) at which these begin or cease to count."""
    edges = {edge for fact in facts for edge in fact.window.edges}
    return edges | {fact.not_before for fact in facts if fact.not_before is not None}
