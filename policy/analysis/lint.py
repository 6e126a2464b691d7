"""Findings about a set of policy documents: what is refused, and what is valid but perhaps not meant.

What only a system knows (its operations, its permissions) comes from its translator's warnings; the rest
is seen in grants and memberships and is the same for all systems.
"""

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypeVar

import msgspec

from policy.analysis.impact import subsumes
from policy.core.document import MAX_BYTES, Key, identify
from policy.core.grouping import grouped
from policy.core.model import ALLOW, DENY, Effect, Grant, StatementId
from policy.core.pattern import Pattern, example, pattern_text
from policy.core.times import ALWAYS, Window
from policy.matching.index import PatternIndex
from policy.store.documents import DocumentStore
from policy.store.history import DocumentHistory
from policy.store.publishable import encode_document, engine_findings
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from policy.systems.kit.system import EVERYONE, System

Level = Literal["error", "warning"]
Value = TypeVar("Value")
COMPANIONS_APART = 8  # with an index each
_place = operator.attrgetter("place")


class Finding(msgspec.Struct, frozen=True, order=True):
    """One finding at a document (``system/kind/name``) and, where it is about one, its statement from 0."""

    document: str
    statement: int | None
    level: Level
    code: str
    message: str


def lint(documents: Iterable[object]) -> list[Finding]:
    """Every finding about ``documents``, by document."""
    store, excess = DocumentStore(), list[Finding]()
    for document in documents:
        if store.put(document) is None:
            excess += _excess(document)
    return sorted([*lint_documents(store), *excess], key=_order)


def _order(finding: Finding) -> tuple[str, int, str, str]:
    statement = -1 if finding.statement is None else finding.statement
    return finding.document, statement, finding.code, finding.message


def _excess(document: object) -> Iterator[Finding]:
    """A document that no topic takes at the default limit (contracts, "Limits")."""
    if isinstance(document, Mapping) and (size := len(encode_document(document))) > MAX_BYTES:
        message = f"{size} bytes as JSON; topics take at most {MAX_BYTES} at the default limit: split the document"
        yield Finding(str(identify(document)), None, "warning", "too-large", message)


def lint_documents(store: DocumentStore) -> list[Finding]:
    """Every finding about the documents in force in ``store``, by document."""
    findings = [Finding(r.key, None, "error", "refused", error) for r in store.rejected() for error in r.errors]
    findings += _warnings(store)
    findings += _closed(store)
    for system in sorted({key.system for key in store.histories}):
        histories = {key: document_history for key, document_history in store.histories.items() if key.system == system}
        findings += _Policies(all_systems().get(system), histories).findings()
    findings += _of_engines(store)
    return sorted(findings, key=_order)


def _warnings(store: DocumentStore) -> Iterator[Finding]:
    for key, document_history in store.histories.items():
        yield from (Finding(str(key), None, "warning", "odd", text) for text in document_history.compiled().warnings)


def _closed(store: DocumentStore) -> Iterator[Finding]:
    """Refused documents of which it cannot be determined whom they affect."""
    histories = store.histories.items()
    closed = [
        (str(key), key.system)
        for key, document_history in histories
        if document_history.broken and EVERYONE in document_history.affected_principals
    ]
    nameless = store.nameless.items()
    closed += [(r.key, systems[0] if len(systems) == 1 else "every system") for r, systems in nameless if systems]
    for document, system in closed:
        message = f"every request of {system} is answered error until it is corrected or deleted"
        yield Finding(document, None, "error", "answers-error", message)


def _of_engines(store: DocumentStore) -> Iterator[Finding]:
    """What the engines of systems find over all of their documents."""
    if any(engine_of(all_systems().get(key.system)) is not None for key in store.histories):
        for finding in engine_findings(Snapshot(store)):
            yield Finding(finding.document, finding.statement, "warning", finding.code, finding.message)


class _Policies:
    """The grants and memberships of one system, by principal."""

    def __init__(self, system: System | None, histories: Mapping[Key, DocumentHistory]) -> None:
        self._system, self._of_everyone = system, dict[str, _Index]()
        self._own = {
            f"{key.kind.lower()}:{key.name}": key
            for key, document_history in histories.items()
            if not _gone(document_history)
        }
        compiled = [document_history.compiled() for document_history in histories.values()]
        grants = (grant for document in compiled for grant in document.grants)
        memberships = (membership for document in compiled for membership in document.memberships)
        self._grants = grouped(grants, lambda grant: grant.principal)
        self._memberships = grouped(memberships, lambda membership: membership.member)
        self._givers: dict[str, set[str]] = {}
        self._gives: dict[str, set[str]] = {}  # those that deny something
        denying = {name for name, grants in self._grants.items() if any(grant.effect == DENY for grant in grants)}
        for membership in itertools.chain.from_iterable(self._memberships.values()):
            self._givers.setdefault(membership.principal, set()).add(membership.member)
            # Only a deny that is never absent takes an allow away whole: one with an end cancels it for a time.
            if membership.window == ALWAYS and membership.principal in denying:
                self._gives.setdefault(membership.member, set()).add(membership.principal)
        self._beside: dict[frozenset[str], list[_Index]] = {}
        self._denies: dict[frozenset[str], _Index] = {}

    def findings(self) -> Iterator[Finding]:
        """All of them, in no particular order."""
        yield from self._nobody_has()
        yield from self._leads_nowhere()
        for principal in self._grants:
            yield from self._about_statements(principal)

    def _nobody_has(self) -> Iterator[Finding]:
        """Documents that grant to themselves (a role) and that no membership leads to."""
        for principal in self._grants.keys() - self._givers.keys():
            if (key := self._own.get(principal)) is not None:
                message = f"no principal has {principal}: no document assigns it, so its statements have no effect"
                yield Finding(str(key), None, "warning", "nobody-has-it", message)

    def _leads_nowhere(self) -> Iterator[Finding]:
        for memberships in self._memberships.values():
            for membership in memberships:
                principal = membership.principal
                if principal not in self._grants and principal not in self._memberships and principal not in self._own:
                    message = f"{membership.member} refers to {principal}, which no document defines"
                    yield _at(membership.statement_id, "does-not-exist", message)

    def _about_statements(self, principal: str) -> Iterator[Finding]:
        """The effect of each statement of ``principal`` given its others, and what comes with it."""
        statements = grouped(self._grants[principal], lambda grant: grant.statement_id)
        indexes = (_indexed(self._grants[principal]), *self._denies_beside(principal), *self._always_with(principal))
        for statement_id, grants in statements.items():
            yield from _about_statement(statement_id, grants, indexes)

    def _always_with(self, principal: str) -> Iterator["_Index"]:
        """The grants of principals that need no membership to count beside ``principal``."""
        for other in self._system.always_with(principal) if self._system is not None else ():
            if other not in self._of_everyone:
                self._of_everyone[other] = _indexed(self._grants.get(other, ()))
            yield self._of_everyone[other]

    def _denies_beside(self, principal: str) -> list["_Index"]:
        """The denies of every principal that is always assigned with ``principal``: they apply to all of its allows.

        What the same ones give has the same indexes, each one's own denies included. Of a few companions each has one,
        which all share that have it, as a role of denies for everybody; many have one together, for one look-up.
        """
        givers = frozenset(self._givers.get(principal, ()))
        if givers not in self._beside:
            groups = sorted((self._gives.get(giver, set()) for giver in givers), key=len)
            companions = frozenset(set.intersection(*groups) if groups else ())
            is_apart = len(companions) <= COMPANIONS_APART
            indexed = [frozenset({companion}) for companion in companions] if is_apart else [companions]
            self._beside[givers] = [self._denies_of(principals) for principals in indexed]
        return self._beside[givers]

    def _denies_of(self, principals: frozenset[str]) -> "_Index":
        if principals not in self._denies:
            grants = (grant for principal in principals for grant in self._grants[principal])
            self._denies[principals] = _indexed(grant for grant in grants if grant.effect == DENY)
        return self._denies[principals]


class _Alike(msgspec.Struct, frozen=True):
    """Grants that differ in principal and statement id alone. ``grant``: one of them; ``statement_ids``: of all."""

    grant: Grant
    statement_ids: list[StatementId]


_Index = PatternIndex[PatternIndex[list[_Alike]]]
"""By object, then by permission: a role may have many of them on one object."""


def _indexed(grants: Iterable[Grant]) -> _Index:
    alike: dict[tuple[Effect, Pattern, Pattern, Window], dict[StatementId, Grant]] = {}
    for grant in grants:
        alike.setdefault((grant.effect, grant.permission, grant.object, grant.window), {})[grant.statement_id] = grant
    by_object: dict[Pattern, dict[Pattern, list[_Alike]]] = {}
    for by_statement in alike.values():
        statement_ids = sorted(by_statement, key=_place)
        first = by_statement[statement_ids[0]]
        by_object.setdefault(first.object, {}).setdefault(first.permission, []).append(_Alike(first, statement_ids))
    return _index_of({pattern: _index_of(by_permission) for pattern, by_permission in by_object.items()})


def _index_of(values: Mapping[Pattern, Value]) -> PatternIndex[Value]:
    index = PatternIndex[Value]()
    for pattern, value in values.items():
        index.put(pattern, value)
    return index


def _gone(document_history: DocumentHistory) -> bool:
    return document_history.in_force is not None and document_history.in_force.deleted


def _about_statement(statement_id: StatementId, grants: list[Grant], indexes: Iterable[_Index]) -> Iterator[Finding]:
    """Cancelled by a deny, or covered by another statement: in whole, or pattern by pattern for denies."""
    wider = {grant: list(_wider(grant, indexes)) for grant in grants}
    for grant, others in wider.items():
        denies = [other.statement_ids[0] for other in others if grant.effect == ALLOW and other.grant.effect == DENY]
        if denies:
            what = f"{pattern_text(grant.permission)} on {pattern_text(grant.object)}"
            message = f"the allow of {what} does nothing: {min(denies, key=_place)} denies all of it"
            yield _at(statement_id, "cancelled-by-deny", message)
    covering = [_first_covering(grant, others) for grant, others in wider.items()]
    if all(covering):
        names = ", ".join(sorted({str(each) for each in covering}))
        yield _at(statement_id, "covered", f"the statement adds nothing: {names} covers it")


def _wider(grant: Grant, indexes: Iterable[_Index]) -> Iterator[_Alike]:
    # What subsumes a pattern matches each of its names, so one name finds all candidates without a scan of the others.
    on_object = (by_permission for index in indexes for by_permission in index.find(example(grant.object)))
    candidates = (alike for by_permission in on_object for alike in by_permission.find(example(grant.permission)))
    return (other for alike in candidates for other in alike if _subsumes_always(other.grant, grant))


def _first_covering(grant: Grant, others: list[_Alike]) -> StatementId | None:
    """The first other statement that says the same or more; of two that say the same only the later is covered."""
    firsts = [_counted(grant, other) for other in others if other.grant.effect == grant.effect]
    return min(filter(None, firsts), key=_place, default=None)


def _counted(grant: Grant, others: _Alike) -> StatementId | None:
    """The first of those alike that is another statement and covers ``grant``."""
    first = next((statement_id for statement_id in others.statement_ids if statement_id != grant.statement_id), None)
    if first is None or (_subsumes_always(grant, others.grant) and first.place >= grant.statement_id.place):
        return None
    return first


def _subsumes_always(wide: Grant, narrow: Grant) -> bool:
    # Windows first: a document may have many versions, each in a window of its own, that are alike in all else.
    return wide.window.covers(narrow.window) and subsumes(wide, narrow)


def _at(statement_id: StatementId, code: str, message: str) -> Finding:
    return Finding(statement_id.document, statement_id.statement, "warning", code, message)
