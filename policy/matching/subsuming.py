"""Which grants say as much as another: found by what they match, not by comparing it with every one of them."""

from collections.abc import Iterable, Iterator

from policy.core.model import Effect, Grant
from policy.core.pattern import Pattern, covers, example
from policy.core.times import Window
from policy.matching.index import PatternIndex

Held = dict[str, set[Window]]
"""By principal, when grants of one effect, permission and object hold."""


class SubsumptionIndex:
    """Grants, found by what they cover: patterns that match an example of another may cover it, all others cannot."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._held: dict[tuple[Effect, Pattern, Pattern], Held] = {}
        self._objects: dict[tuple[Effect, Pattern], PatternIndex[tuple[Pattern, Held]]] = {}
        self._permissions: dict[Effect, PatternIndex[Pattern]] = {}
        for grant in grants:
            self.add(grant)

    def add(self, grant: Grant) -> None:
        """File a grant."""
        key = (grant.effect, grant.permission, grant.object)
        if key not in self._held:
            self._held[key] = {}
            self._objects_of(grant.effect, grant.permission).put(grant.object, (grant.object, self._held[key]))
        self._held[key].setdefault(grant.principal, set()).add(grant.window)

    def _objects_of(self, effect: Effect, permission: Pattern) -> PatternIndex[tuple[Pattern, Held]]:
        if (effect, permission) not in self._objects:
            self._objects[effect, permission] = PatternIndex()
            self._permissions.setdefault(effect, PatternIndex()).put(permission, permission)
        return self._objects[effect, permission]

    def covering(self, grant: Grant) -> Iterator[Held]:
        """Who holds grants that cover a grant to the same effect: once for each permission and object that do."""
        if (permissions := self._permissions.get(grant.effect)) is None:
            return
        for permission in permissions.find(example(grant.permission)):
            if covers(permission, grant.permission):
                found = self._objects[grant.effect, permission].find(example(grant.object))
                yield from (held for wide, held in found if covers(wide, grant.object))

    def says_as_much(self, grant: Grant) -> bool:
        """Whether one of them does all that a grant does, for any principal that has it."""
        held = (windows for held in self.covering(grant) for windows in held.get(grant.principal, ()))
        return any(window.covers(grant.window) for window in held)
