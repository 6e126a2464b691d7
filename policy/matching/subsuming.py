"""Which grants say as much as another: found by what they match, not by comparing it with every one of them."""

from collections.abc import Iterator

from policy.core.model import Effect, Grant
from policy.core.pattern import Pattern, covers, example
from policy.core.times import Window
from policy.matching.index import PatternIndex

Holders = dict[str, set[Window]]
"""By principal, when grants of one effect, permission and object are in force."""


class SubsumptionIndex:
    """Grants, found by what they cover: patterns that match an example of another may cover it, all others cannot."""

    def __init__(self) -> None:
        self._objects: dict[tuple[Effect, Pattern], PatternIndex[tuple[Pattern, Holders]]] = {}
        self._permissions: dict[Effect, PatternIndex[Pattern]] = {}

    def add(self, grant: Grant) -> None:
        """File a grant."""
        objects = self._objects_of(grant.effect, grant.permission)
        pattern, holders = objects.get(grant.object) or (grant.object, Holders())
        if not holders:
            objects.put(pattern, (pattern, holders))
        holders.setdefault(grant.principal, set()).add(grant.window)

    def _objects_of(self, effect: Effect, permission: Pattern) -> PatternIndex[tuple[Pattern, Holders]]:
        if (effect, permission) not in self._objects:
            self._objects[effect, permission] = PatternIndex()
            self._permissions.setdefault(effect, PatternIndex()).put(permission, permission)
        return self._objects[effect, permission]

    def covering(self, grant: Grant) -> Iterator[Holders]:
        """Who has grants that cover a grant to the same effect: once for each permission and object that do."""
        if (permissions := self._permissions.get(grant.effect)) is None:
            return
        for permission in permissions.find(example(grant.permission)):
            if covers(permission, grant.permission):
                objects = self._objects[grant.effect, permission].find(example(grant.object))
                yield from (holders for pattern, holders in objects if covers(pattern, grant.object))
