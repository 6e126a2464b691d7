"""What a change of documents may concern: the principals and facts by which remembered questions are found."""

from collections.abc import Iterable, Iterator

import msgspec

from policy.analysis.edits import Edit
from policy.core.facts import Lookup
from policy.core.model import Fact
from policy.systems.kit.fact_changes import fact_changes


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
        principals.update(way.member for way in {*before.memberships} ^ {*after.memberships})
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
