"""Grants by their objects: which of them match a name, and which one of these decides."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from policy.index import PatternIndex, Place
from policy.model import DENY, Grant
from policy.patterns import EVERYTHING, Name, Pattern


def precedence(grant: Grant) -> tuple[bool, Any, str]:
    """By what grants go before others that match the same: denies first, then by place."""
    return grant.effect != DENY, grant.origin.place, grant.holder


def decisive(grants: Sequence[Grant]) -> Grant:
    """The grant that decides an atom which all of these match, at least one: a deny if any, the first by its place."""
    return grants[0] if len(grants) == 1 else min(grants, key=precedence)


class GrantIndex(PatternIndex[Grant]):
    """Grants by their objects. The digest of a place: the grant that decides there, if any."""

    _deciding: Mapping[int, Grant] | None = None

    def digest(self, values: tuple[Grant, ...]) -> Grant | None:
        """See `decisive`."""
        return decisive(values) if values else None

    def deciding(self, objects: "Objects") -> Mapping[int, Grant]:
        """The grant that decides among those with the same object, by the object's number."""
        if self._deciding is None:
            grouped: dict[int, list[Grant]] = {}
            for grant in self.meeting(EVERYTHING):
                grouped.setdefault(objects.numbers[grant.object], []).append(grant)
            self._deciding = {number: decisive(grants) for number, grants in grouped.items()}
        return self._deciding


def index_of(grants: Iterable[Grant]) -> GrantIndex:
    """An index of these grants."""
    index = GrantIndex()
    for grant in grants:
        index.add(grant.object, grant)
    return index


class Objects:
    """The objects of all grants of a realm, each once and numbered; made when they are first asked for.

    Many subjects ask about the same object. Which of the numbers match its name is the same for all of them, and
    the grant that decides for one of them is among those that it holds on the matching numbers.
    """

    def __init__(self, grants: Mapping[str, Sequence[Grant]]) -> None:
        self._grants = grants

    @functools.cached_property
    def numbers(self) -> Mapping[Pattern, int]:
        """The number of every object."""
        patterns = dict.fromkeys(grant.object for grants in self._grants.values() for grant in grants)
        return {pattern: number for number, pattern in enumerate(patterns)}

    @functools.cached_property
    def _index(self) -> "_NumberIndex":
        index = _NumberIndex()
        for pattern, number in self.numbers.items():
            index.add(pattern, number)
        return index

    def place(self, name: Name) -> Place[int]:
        """Where ``name`` leads to. The digest there: the numbers of the objects that match it, sorted."""
        return self._index.place(name)


class _NumberIndex(PatternIndex[int]):
    """Numbers by their patterns."""

    def digest(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """The numbers, sorted."""
        return tuple(sorted(values))
