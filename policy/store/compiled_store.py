"""What the documents of a store say, and what a snapshot of them differs in from the one before.

It costs as much as the documents that changed, beside the hash of the version. What is known of each document is kept
for that: what it said before is what a change takes away.
"""

import bisect
import copy
import hashlib
import itertools
import operator
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from policy.core.document import SINCE_EVER, Key
from policy.core.fact_table import FactVersion, Thing
from policy.core.model import CompiledDocument, Fact
from policy.store.affected import ALL
from policy.store.delta import PolicySetChange, SnapshotChange, difference, refused_of
from policy.store.documents import DocumentStore
from policy.store.history import DocumentHistory, Refusal, Rejected

Item = TypeVar("Item")
Sorted = TypeVar("Sorted", str, tuple[str, str])


class _Document(msgspec.Struct, frozen=True):
    """What is known of one document. `lines`: of the version; `at`: the moment of its newest version, ms."""

    compiled: CompiledDocument = CompiledDocument()
    refusals: tuple[Refusal, ...] = ()
    lines: tuple[str, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    superseded: int = 0
    in_force: bool = False
    refused: bool = False
    at: int = -1

    @property
    def things(self) -> set[Thing]:
        """The things of which it says facts."""
        return {(fact.kind, fact.name) for fact in self.compiled.facts}


NOTHING = _Document()

Changed = dict[Key, tuple[_Document, _Document]]
"""What is known of documents before and after a change."""


class CompiledStore:
    """Knows nothing of its store at first: the first `change` is of all documents.

    ``in_force``, ``refused``: by system, how many documents are in force, and how many have a refused newest version.
    """

    def __init__(self, store: DocumentStore) -> None:
        self.store = store
        self._documents: dict[Key, _Document] = {}
        self._lines: list[str] = []
        self._warnings: list[tuple[str, str]] = []
        self._nameless: dict[Rejected, tuple[str, ...]] = {}
        self._refusals: dict[str, dict[Key, tuple[Refusal, ...]]] = {name: {} for name in store.systems}
        self._rejected: dict[Key, tuple[Rejected, ...]] = {}
        self._sayers: dict[str, Counter[Thing]] = {name: Counter() for name in store.systems}  # how many documents
        self._superseded = 0
        self.in_force, self.refused = Counter[str](), Counter[str]()

    def following(self, store: DocumentStore) -> "CompiledStore":
        """The same of another store with the same systems, as if all that is different there was to come."""
        other = copy.copy(self)
        other.store = store
        other._documents, other._lines, other._warnings = dict(self._documents), [*self._lines], [*self._warnings]
        other._nameless, other._rejected = dict(self._nameless), dict(self._rejected)
        other._sayers = {system: sayers.copy() for system, sayers in self._sayers.items()}
        other._refusals = {system: dict(refusals) for system, refusals in self._refusals.items()}
        other.in_force, other.refused = self.in_force.copy(), self.refused.copy()
        return other

    def different(self, store: DocumentStore) -> list[Key]:
        """The documents of which another store may say something else: they have not the very same versions."""
        own, others = self.store.histories, store.histories
        return [key for key in {**own, **others} if not _are_alike(own.get(key), others.get(key))]

    @property
    def newest(self) -> int:
        """The moment of the newest version of any document, ms; 0: there is none."""
        return max((document.at for document in self._documents.values()), default=0)

    @property
    def warnings(self) -> tuple[tuple[str, str], ...]:
        """(document, warning) pairs of all documents in force, sorted."""
        return tuple(self._warnings)

    @property
    def rejected(self) -> tuple[Rejected, ...]:
        """Every refused version that is kept, and refused documents without a key, sorted."""
        return tuple(sorted({*itertools.chain.from_iterable(self._rejected.values()), *self._nameless}))

    def change(self, keys: Iterable[Key]) -> SnapshotChange:
        """What has become different, of which at most these documents have changed since the last call."""
        changed = {key: (self._documents.get(key, NOTHING), _document(self.store.histories.get(key))) for key in keys}
        for key, (before, after) in changed.items():
            self._replace(key, before, after)
        documents = changed.values()
        _replace(self._lines, ((before.lines, after.lines) for before, after in documents))
        _replace(self._warnings, ((_warnings(key, old), _warnings(key, new)) for key, (old, new) in changed.items()))
        nameless_changed = self._nameless != self.store.nameless
        self._nameless = dict(self.store.nameless)
        systems = self.store.systems if nameless_changed else dict.fromkeys(key.system for key in changed)
        policy_sets = {system: self._policy_set(system, changed, nameless_changed) for system in systems}
        policy_sets = {system: part for system, part in policy_sets.items() if part != PolicySetChange()}
        return SnapshotChange(self._version(), self._superseded, policy_sets)

    def _replace(self, key: Key, before: _Document, after: _Document) -> None:
        """Put what is known of a document in place of what was."""
        _keep(self._documents, key, None if after is NOTHING else after)
        _keep(self._refusals[key.system], key, after.refusals)
        _keep(self._rejected, key, after.rejected)
        self._superseded += after.superseded - before.superseded
        self.in_force[key.system] += after.in_force - before.in_force
        self.refused[key.system] += after.refused - before.refused
        if before.compiled.facts or after.compiled.facts:
            sayers = self._sayers[key.system]
            sayers.subtract(before.things)
            sayers.update(after.things)
            for thing in before.things - after.things:
                if not sayers[thing]:
                    del sayers[thing]

    def _policy_set(self, system: str, all_changed: Changed, nameless_changed: bool) -> PolicySetChange:
        changed = {key: documents for key, documents in all_changed.items() if key.system == system}
        refused = None
        if nameless_changed or any(before.refusals != after.refusals for before, after in changed.values()):
            refusals = itertools.chain.from_iterable(self._refusals[system].values())
            refused = refused_of(refusals, _nameless_of(system, self._nameless))
        pairs = [(before.compiled, after.compiled) for before, after in changed.values()]
        grants = _together(difference(before.grants, after.grants) for before, after in pairs)
        memberships = _together(difference(before.memberships, after.memberships) for before, after in pairs)
        return PolicySetChange(*grants, *memberships, self._facts(system, changed), refused)

    def _facts(self, system: str, changed: Changed) -> dict[Thing, FactVersion]:
        """What is known now of the things of which changed documents say something else.

        Of a thing of which several documents say facts the last one counts: it is looked for among all documents.
        """
        facts: dict[Thing, list[Fact]] = {}
        for key, (before, after) in changed.items():
            if before.compiled.facts != after.compiled.facts:
                facts.update((thing, []) for thing in before.things | after.things)
            if before.refusals != after.refusals:
                facts[key.kind, key.name] = []
        _gather(facts, (after.compiled for _, after in changed.values()))
        sayers, refusals = self._sayers[system], self._refusals[system]
        # Nearly every thing has one document, which is among those that changed. Only for others all are gone through.
        elsewhere = {thing: list[Fact]() for thing, said in facts.items() if sayers[thing] > bool(said)}
        if elsewhere:
            of_system = (key for key in self.store.histories if key.system == system)
            _gather(elsewhere, (self._documents[key].compiled for key in of_system))
            facts |= elsewhere
        versions: dict[Thing, FactVersion] = {}
        for thing, said in facts.items():
            refused = refusals.get(Key(system, *thing), ()) if refusals else ()
            while_refused = tuple((refusal.window, str(refusal.key)) for refusal in refused)
            versions[thing] = FactVersion(SINCE_EVER, tuple(said), while_refused)
        return versions

    def _version(self) -> str:
        """``sha256:…`` over the policy documents (not the facts), whatever their order."""
        nameless = sorted(f"{rejected.key} {rejected.errors}" for rejected in self._nameless)
        text = "\n".join([*self._lines, *nameless])
        # A key may have lone surrogates, which JSON can hold and UTF-8 cannot.
        return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _document(document_history: DocumentHistory | None) -> _Document:
    if document_history is None:
        return NOTHING
    in_force = document_history.in_force
    return _Document(
        document_history.compiled(),
        tuple(document_history.refusals()),
        tuple(document_history.version_lines()),
        tuple(Rejected(str(document_history.key), v.errors) for v in document_history.versions if v.errors),
        document_history.superseded,
        in_force is not None and not in_force.deleted,
        not document_history.newest.good,
        document_history.newest.at,
    )


def _are_alike(own: DocumentHistory | None, other: DocumentHistory | None) -> bool:
    """Whether two histories surely say the same: they have the very same versions."""
    if own is other:
        return True
    if own is None or other is None or (own.kind.point_in_time and own.known_from != other.known_from):
        return False
    return len(own.versions) == len(other.versions) and all(map(operator.is_, own.versions, other.versions))


def _gather(facts: Mapping[Thing, list[Fact]], documents: Iterable[CompiledDocument]) -> None:
    """Add what documents say of things, in their order: a fact for every moment takes the place of all before it."""
    for compiled in documents:
        for fact in compiled.facts:
            said = facts.get((fact.kind, fact.name))
            if said is not None:
                if fact.timeless:
                    said.clear()
                said.append(fact)


def _nameless_of(system: str, nameless: Mapping[Rejected, Collection[str]]) -> dict[Key, frozenset[str]]:
    """The documents of which every request of a system is answered ``error``: they do not say which they are."""
    return {
        Key(*(*rejected.key.split("/", 2), "?", "?")[:3]): ALL  # as far as it says one
        for rejected, systems in nameless.items()
        if system in systems
    }


def _warnings(key: Key, document: _Document) -> list[tuple[str, str]]:
    return [(str(key), text) for text in document.compiled.warnings]


def _keep(items: dict[Key, Any], key: Key, item: Any) -> None:
    if item:
        items[key] = item
    else:
        items.pop(key, None)


def _replace(ordered: list[Sorted], changes: Iterable[tuple[Sequence[Sorted], Sequence[Sorted]]]) -> None:
    """Take items out of a sorted list, and put others in. Sorting is linear in what is sorted already (Timsort)."""
    removed, added = _together(changes)
    for item in removed:
        del ordered[bisect.bisect_left(ordered, item)]
    if added:
        ordered += added
        ordered.sort()


def _together(changes: Iterable[tuple[Sequence[Item], Sequence[Item]]]) -> tuple[list[Item], list[Item]]:
    """All that went, and all that came."""
    removed, added = list[Item](), list[Item]()
    for before, after in changes:
        removed += before
        added += after
    return removed, added
