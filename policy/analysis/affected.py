"""What a change of documents may concern: the principals and facts by which remembered questions are found."""

from collections.abc import Iterable, Iterator

import msgspec

from policy.analysis.edits import Edit
from policy.core.document import Key
from policy.core.fact_table import Lookup
from policy.core.model import Fact
from policy.store.overlay import FactChange
from policy.systems.kit.fact_changes import fact_changes
from policy.systems.kit.system import EVERYONE


class Affected(msgspec.Struct, frozen=True):
    """What a change of one system's documents may concern: principals, and lookups of facts."""

    system: str
    principals: frozenset[str] = frozenset()
    lookups: frozenset[Lookup] = frozenset()


def affected_by(system: str, edits: Iterable[Edit]) -> Affected:
    """What documents that change concern."""
    principals: set[str] = set()
    lookups: set[Lookup] = set()
    for edit in edits:
        before, after = edit.before, edit.after
        principals.update(grant.principal for grant in {*before.grants} ^ {*after.grants})
        principals.update(membership.member for membership in {*before.memberships} ^ {*after.memberships})
        for change in fact_changes(before.facts, after.facts):
            lookups.update(lookup for fact in (*change.before, *change.after) for lookup in _lookups(fact))
        if edit.refused_before != edit.refused_after:
            principals.update(edit.refused_before or (), edit.refused_after or ())
            kind, name = edit.document.split("/", 2)[1:]
            lookups.update({("refused", kind), ("name", kind, name)})
    return Affected(system, frozenset(principals), frozenset(lookups))


def _lookups(fact: Fact) -> Iterator[Lookup]:
    yield "name", fact.kind, fact.name
    yield from (("key", fact.kind, *key) for key in fact.keys)


def affects_everyone(system: str) -> Affected:
    """What a document concerns that does not say which it is: every request of the system."""
    return Affected(system, frozenset({EVERYONE}))


class FactDocuments:
    """What the documents of the facts topic say, and so what a change of one, or of a policy above it, concerns."""

    def __init__(self) -> None:
        self._said: dict[Key, FactChange] = {}

    def affected_by(self, changes: Iterable[FactChange]) -> list[Affected]:
        """What changes of facts concern, in order; from now on they are what is said."""
        return [self._affected(change) for change in changes]

    def _affected(self, after: FactChange) -> Affected:
        key, before = after.key, self._said.pop(after.key, None)
        if after.facts or after.refused:
            self._said[key] = after
        states = [state for state in (before, after) if state is not None]
        lookups: set[Lookup] = {("name", key.kind, key.name)}
        lookups.update(lookup for state in states for fact in state.facts for lookup in _lookups(fact))
        if any(state.refused for state in states):
            lookups.add(("refused", key.kind))
        principals = frozenset[str]().union(*(state.affected_principals for state in states))
        return Affected(key.system, principals, frozenset(lookups))

    def below(self, key: Key) -> Affected:
        """What a policy document covers while it is there: the facts of the facts topic with its key."""
        said = self._said.get(key)
        facts = said.facts if said is not None else ()
        return Affected(key.system, lookups=frozenset(lookup for fact in facts for lookup in _lookups(fact)))
