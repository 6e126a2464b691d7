"""What lies below an entity, as far as Entity documents say.

Names and links are two tellers, and of an entity with a document the links count. A document may put an entity where
its dots do not say (``beyond``) and not where they say (``misnamed``). A refused Entity document without a good version
may be anything below: no answer rests on its absence.
"""

import contextlib
import functools
from collections.abc import Iterable, Iterator

from policy.core.facts import Facts
from policy.core.limits import MAX_RELATED
from policy.core.model import Unanswerable
from policy.core.pattern import Name
from policy.systems.cdap.catalogue import catalogue, lineage
from policy.systems.cdap.entities import KIND, named_above, parse_entity, written


class Tree:
    """The entity tree of one snapshot."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def exists(self, entity: Name) -> bool:
        """Whether a document says so; raises Unanswerable when it was refused."""
        return self._facts.get(KIND, written(entity)) is not None

    def parent(self, entity: Name) -> Name | None:
        """By its document, else by its dots; None when neither says."""
        body = self._facts.get(KIND, written(entity))
        if body is not None:
            return parse_entity(body.parent) if body.parent else None
        return next((above for above in reversed(named_above(entity)) if above[0] == lineage(entity[0])[-1]), None)

    def refused_below(self, kinds: Iterable[str]) -> list[str]:
        """Refused Entity documents that may be of one of ``kinds``."""
        tree, wanted = catalogue()["tree"], set(kinds)
        named = ((name, name.partition(":")[0]) for name in self._facts.broken(KIND))
        return [name for name, kind in named if kind in wanted or kind not in tree]

    def children(self, entity: Name, kind: str) -> list[Name]:
        """The entities of ``kind`` directly in ``entity``, by their documents."""
        inside = (parse_entity(name) for name in self._facts.find(KIND, "parent", written(entity)))
        return bounded(child for child in inside if child[0] == kind)

    def linked_below(self, entities: Iterable[str]) -> list[Name]:
        """``entities`` and everything below them by the documents' links."""
        below, todo = set[str](), list(entities)
        while todo:
            below.update(todo)
            todo = [child for name in todo for child in self._facts.find(KIND, "parent", name)]
        return bounded(map(parse_entity, below))

    def contents(self, namespace: Name) -> list[Name]:
        """Everything known in a namespace, also programs of applications that themselves have no document."""
        name = written(namespace)
        linked = self._facts.find(KIND, "parent", name)
        lost = {program for program in self._facts.find(KIND, "grandparent", name) if self._is_lost(program)}
        parents = {written(parent) for program in lost if (parent := self.parent(parse_entity(program)))}
        return self.linked_below({*linked, *lost, *parents})

    def programs_without_namespace(self) -> list[str]:
        """Programs of which the namespace is unknown: their application has neither a document nor dots."""
        return [name for name in sorted(self._facts.find(KIND, "without_namespace", "")) if self._is_lost(name)]

    def _is_lost(self, entity: str) -> bool:
        body = self._facts.get(KIND, entity)
        return body is not None and self._facts.get(KIND, body.parent) is None

    def lies_below(self, entity: Name, other: Name) -> bool:
        """Whether ``entity`` is known to lie below ``other``, at any depth."""
        try:
            return other in self._above(entity)
        except Unanswerable:  # a refused document, which stands for itself in the answer
            return False

    def _above(self, entity: Name) -> Iterator[Name]:
        """What ``entity`` lies in, the nearest first; raises Unanswerable past what was refused."""
        parent = self.parent(entity)
        if parent is not None:
            yield parent
            yield from self._above(parent)
        elif not self.exists(entity):
            yield from named_above(entity)

    def linked_beyond(self, entity: Name) -> set[Name]:
        """What documents may put below ``entity`` though its own name does not say so."""
        return self._filed("beyond", entity)

    def misnamed(self, entity: Name) -> set[Name]:
        """What the names wrongly put below ``entity``, or not certainly rightly: its own document was refused."""
        return self._filed("misnamed", entity) | self._refused_in.get(entity, set())

    def _filed(self, index: str, entity: Name) -> set[Name]:
        return set(map(parse_entity, self._facts.find(KIND, index, written(entity))))

    @functools.cached_property
    def _refused_in(self) -> dict[Name, set[Name]]:
        """The refused entities by what they lie in by their dots."""
        by_ancestor: dict[Name, set[Name]] = {}
        for name in self._facts.broken(KIND):
            with contextlib.suppress(ValueError):  # it names no entity
                entity = parse_entity(name)
                for above in named_above(entity):
                    by_ancestor.setdefault(above, set()).add(entity)
        return by_ancestor


def bounded(entities: Iterable[Name]) -> list[Name]:
    """Sorted; raises Unanswerable when there are too many to evaluate."""
    ordered = sorted(entities)
    if len(ordered) > MAX_RELATED:
        raise Unanswerable("too-many-objects", f"the request touches more than {MAX_RELATED} entities")
    return ordered
