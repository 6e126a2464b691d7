"""Changed documents, and where something came or went with them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from policy.analysis.versions import PolicySetVersion, Written, placeless
from policy.core.grouping import grouped
from policy.core.model import CompiledDocument, Effect, Fact, Grant, Membership
from policy.store.history import DocumentHistory, Refusal
from policy.store.policy_set import PolicySet
from policy.systems.kit.engine import engine_of
from policy.systems.kit.fact_changes import FactChange, fact_changes
from policy.systems.kit.system import System

CompiledDocuments = Mapping[str, CompiledDocument]
"""By `system/kind/name`."""

NOTHING = CompiledDocument()


class Edit(msgspec.Struct, frozen=True):
    """A document that changed: its ``system/kind/name``, what it said and what it says; deleted, it says nothing.

    ``refused_before``, ``refused_after``: the principals that it affected or affects as a refused document without a
    good version; None: it was or is none. ``refused_less``: it was refused at a moment at which it is not.
    """

    document: str
    before: CompiledDocument
    after: CompiledDocument
    refused_before: frozenset[str] | None = None
    refused_after: frozenset[str] | None = None
    refused_less: bool = False

    @property
    def is_change(self) -> bool:
        """Whether it may answer a request otherwise."""
        return self.before != self.after or self.lifts_refusal

    @property
    def lifts_refusal(self) -> bool:
        """Whether requests that were answered ``error`` for a refused document no longer are."""
        if self.refused_before is None:
            return False
        return self.refused_less or self.refused_after is None or not self.refused_before <= self.refused_after


def refused(document_history: DocumentHistory | None) -> frozenset[str] | None:
    """The principals that a refused document affects; None: it is not refused, or has a good version."""
    if document_history is None or not document_history.broken:
        return None
    return document_history.affected_principals


def said(document_history: DocumentHistory | None) -> CompiledDocument:
    """What a document says, by the version in force alone; nothing, if there is none.

    Older versions that count for who logged in before (Kind.point_in_time) are left out: they open nothing new.
    """
    current = document_history.in_force if document_history is not None else None
    return current.compiled if current is not None else NOTHING


def edits_between(system: System, old: PolicySet, new: PolicySet) -> list[Edit]:
    """The documents that say something else in another policy set, with all of their versions."""
    if old is new:  # as with the system of a snapshot that a change of another one left as it was
        return []
    facts_before, facts_after = _facts_by_document(system, old), _facts_by_document(system, new)
    refused_before, refused_after = old.refused_documents(), new.refused_documents()
    names = {*_different(facts_before, facts_after), *refused_before, *refused_after}
    names |= _documents_of(old.grants, new.grants) | _documents_of(old.memberships, new.memberships)
    before, after = _by_document(old, names, facts_before), _by_document(new, names, facts_after)
    were_refused, are_refused = old.refusals(), new.refusals()
    edits = (
        Edit(
            *(name, before[name], after[name], refused_before.get(name), refused_after.get(name)),
            _refused_less(were_refused.get(name, ()), are_refused.get(name, ())),
        )
        for name in sorted(names)
    )
    return [edit for edit in edits if edit.is_change]


def _refused_less(before: Iterable[Refusal], after: Collection[Refusal]) -> bool:
    """Whether a refusal is not there for all of its time; several that are so together do not count."""
    return any(not any(other.window.covers(refusal.window) for other in after) for refusal in before)


def principals_that_differ(old: Mapping[str, list[Written]], new: Mapping[str, list[Written]]) -> list[str]:
    """Those who hold something else, or in another order. Snapshots made of one another share the lists of all others:
    comparing these costs nothing.
    """
    return [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]


def _documents_of(old: Mapping[str, list[Written]], new: Mapping[str, list[Written]]) -> set[str]:
    """The documents of all that those hold who hold something else."""
    lists = (side.get(name, ()) for name in principals_that_differ(old, new) for side in (old, new))
    return {written.statement_id.document for written in chain.from_iterable(lists)}


def _different(before: Mapping[str, list[Fact]], after: Mapping[str, list[Fact]]) -> set[str]:
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def _by_document(policy_set: PolicySet, names: set[str], facts: Mapping[str, list[Fact]]) -> CompiledDocuments:
    """What these documents say."""
    grants = _written_in(names, policy_set.grants)
    memberships = _written_in(names, policy_set.memberships)
    parts = ((tuple(part.get(name, ())) for part in (grants, memberships, facts)) for name in names)
    return {name: CompiledDocument(*part) for name, part in zip(names, parts, strict=True)}  # type: ignore[arg-type]


def _written_in(names: set[str], by_principal: Mapping[str, list[Written]]) -> dict[str, list[Written]]:
    """The grants or memberships of some documents, by document."""
    written = (item for items in by_principal.values() for item in items if item.statement_id.document in names)
    return grouped(written, lambda item: item.statement_id.document)


def _facts_by_document(system: System, policy_set: PolicySet) -> dict[str, list[Fact]]:
    facts = policy_set.facts
    versions = (fact for kind in facts.kinds() for name in facts.names(kind) for fact in facts.versions(kind, name))
    return grouped(versions, lambda fact: _document_of(fact, system.name))


def _document_of(fact: Fact, system: str) -> str:
    return fact.statement_id.document if fact.statement_id else f"{system}/{fact.kind}/{fact.name}"


def fact_changes_of(system: System, edits: Sequence[Edit]) -> Iterator[FactChange]:
    """The facts that edits change together, but an engine's statements; one that moves to another document is none."""
    before = [fact for edit in edits for fact in edit.before.facts]
    after = [fact for edit in edits for fact in edit.after.facts]
    engine = engine_of(system)
    return fact_changes(before, after, engine.statement_kinds if engine is not None else ())


class GrantChange(msgspec.Struct, frozen=True):
    """A document brought (or lost) these grants to every member of ``principals``; ``memberships``: by these."""

    document: str
    principals: tuple[str, ...]
    grants: tuple[Grant, ...]
    memberships: tuple[Membership, ...] = ()


def grant_changes(
    here: CompiledDocuments, there: CompiledDocuments, version: PolicySetVersion, effect: Effect
) -> Iterator[GrantChange]:
    """Where grants of ``effect`` are ``here`` that are not ``there``, at once or through memberships.

    ``here``, ``there``: what the changed documents say on either version, by name; ``version``: all that is said here.
    """
    grants_there = {placeless(grant) for grant in _grants(there, effect)}
    memberships_there = {placeless(membership) for compiled in there.values() for membership in compiled.memberships}
    for document, compiled in here.items():
        new = (grant for grant in _grants({document: compiled}, effect) if placeless(grant) not in grants_there)
        for principal, grants in grouped(new, lambda grant: grant.principal).items():
            yield GrantChange(document, (principal,), tuple(grants))
        leading = (entry for entry in compiled.memberships if placeless(entry) not in memberships_there)
        for principal, led in grouped(leading, lambda membership: membership.principal).items():
            members = tuple(dict.fromkeys(membership.member for membership in led))
            yield GrantChange(document, members, _led_to(version, principal, effect), tuple(led))


def _grants(documents: CompiledDocuments, effect: Effect) -> Iterator[Grant]:
    return (grant for compiled in documents.values() for grant in compiled.grants if grant.effect == effect)


def _led_to(version: PolicySetVersion, principal: str, effect: Effect) -> tuple[Grant, ...]:
    """The grants that a membership of ``principal`` leads to."""
    return tuple(
        grant for reached in version.reached(principal) for grant in version.grants(reached) if grant.effect == effect
    )
