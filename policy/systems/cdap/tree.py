"""What lies below an entity, as far as Entity documents tell.

Names and links are two tellers. Where they agree, names suffice, and no entity need be looked at. A document that puts
an entity elsewhere than its dots say (``misnamed``) makes names useless for what they wrongly name, and there links
alone count. A refused Entity document without a good version may be anything below: no answer rests on its absence.
"""

from collections.abc import Iterable

from policy.decide import MAX_RELATED
from policy.facts import Facts
from policy.model import Unanswerable
from policy.patterns import Name
from policy.systems.cdap.catalogue import catalogue, lineage
from policy.systems.cdap.entities import KIND, named_above, named_properly, parse_entity, written


class Tree:
    """The entity tree of one snapshot."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def exists(self, entity: Name) -> bool:
        """Whether a document says so; raises Unanswerable when it was refused."""
        return self._facts.get(KIND, written(entity)) is not None

    def parent(self, entity: Name) -> Name | None:
        """By its document, else by its dots; None when neither tells."""
        body = self._facts.get(KIND, written(entity))
        if body is not None:
            return parse_entity(body.parent) if body.parent else None
        return next((above for above in reversed(named_above(entity)) if above[0] == lineage(entity[0])[-1]), None)

    def knows_inside(self, entity: Name) -> bool:
        """Whether it is known what the entity holds: it, or something in it, has a document."""
        return self.exists(entity) or bool(self._facts.find(KIND, "parent", written(entity)))

    def refused_below(self, kinds: Iterable[str]) -> list[str]:
        """Refused Entity documents that may be of one of ``kinds``."""
        known, wanted = catalogue()["tree"], set(kinds)
        named = ((name, name.partition(":")[0]) for name in self._facts.broken(KIND))
        return [name for name, kind in named if kind in wanted or kind not in known]

    def children(self, entity: Name, kind: str) -> list[Name]:
        """The entities of ``kind`` directly in ``entity``, by their documents."""
        inside = (parse_entity(name) for name in self._facts.find(KIND, "parent", written(entity)))
        return _bounded(child for child in inside if child[0] == kind)

    def linked_below(self, entities: Iterable[str]) -> list[Name]:
        """``entities`` and everything below them by the documents' links."""
        found, todo = set[str](), list(entities)
        while todo:
            found.update(todo)
            todo = [child for name in todo for child in self._facts.find(KIND, "parent", name)]
        return _bounded(map(parse_entity, found))

    def contents(self, namespace: Name) -> list[Name]:
        """Everything known in a namespace, also programs of applications that themselves have no document."""
        name = written(namespace)
        linked = self._facts.find(KIND, "parent", name)
        lost = {program for program in self._facts.find(KIND, "grandparent", name) if self._is_lost(program)}
        parents = {written(parent) for program in lost if (parent := self.parent(parse_entity(program)))}
        return self.linked_below({*linked, *lost, *parents})

    def adrift(self) -> list[str]:
        """Programs of which nothing tells the namespace: their application has neither a document nor dots."""
        return [name for name in sorted(self._facts.find(KIND, "adrift", "")) if self._is_lost(name)]

    def _is_lost(self, entity: str) -> bool:
        body = self._facts.get(KIND, entity)
        return body is not None and self._facts.get(KIND, body.parent) is None

    def names_tell(self, entity: Name) -> bool:
        """Whether dotted names tell what lies below ``entity``, no document contradicting them."""
        broken = map(_named_above, self._facts.broken(KIND))
        contradicted = self._facts.find(KIND, "misnamed", written(entity)) or any(entity in above for above in broken)
        return named_properly(entity) and not contradicted

    def beyond_names(self, entity: Name) -> list[Name]:
        """What lies below ``entity`` though its name does not tell so; everything where names do not tell."""
        index = "beyond" if self.names_tell(entity) else "parent"
        return self.linked_below(self._facts.find(KIND, index, written(entity)))


def _bounded(entities: Iterable[Name]) -> list[Name]:
    """Sorted; raises Unanswerable when there are too many to judge."""
    found = sorted(entities)
    if len(found) > MAX_RELATED:
        raise Unanswerable("too-many-objects", f"the request touches more than {MAX_RELATED} entities")
    return found


def _named_above(text: str) -> tuple[Name, ...]:
    try:
        return named_above(parse_entity(text))
    except ValueError:
        return ()
