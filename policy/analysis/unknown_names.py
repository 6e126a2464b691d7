"""Names of a request that nothing knows: typing errors, which would else be answered as a deny.

The catalogue of a system knows its actions and types. Its documents know subjects and resources, and, of a system with
an engine of its own (Cedar), actions and types too, as far as they are named.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from policy.analysis.impact import OF_SUBJECTS, UNKNOWN_PRINCIPALS, probes
from policy.analysis.named_in_documents import (
    NamesOfDocuments,
    UnknownName,
    What,
    leaves,
    names_of_documents,
    unknown_resources,
    unknown_subjects,
    unknown_to_engine,
)
from policy.core.facts import Facts
from policy.core.model import AuthorizationQuery, PermissionCheck, Unanswerable
from policy.core.pattern import Exact
from policy.core.request import CLAIMS, Request, parse_request, usable_time
from policy.core.suggest import nearest
from policy.evaluation.authorize import answer
from policy.store.policy_set import PolicySet
from policy.store.snapshot import Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from policy.systems.kit.query import authorization_query
from policy.systems.kit.system import ListsActions, ListsResourceTypes, System

CODES: Mapping[str, What] = {"unknown-action": "action", "unknown-subject-type": "subject type"}
"""Codes of reasons by which a system refuses a name."""


def unknown_terms(request: Mapping[str, Any]) -> list[UnknownName]:
    """The systems, actions and types of a request (of a batch, of all items) that no catalogue has.

    Needs no documents, so it knows nothing of a system without a catalogue. Raises MalformedRequest.
    """
    return _each(request, lambda item: _terms(item, None, CLAIMS))


def unknown_names(
    snapshot: Snapshot, request: Mapping[str, Any], trust: frozenset[str] = CLAIMS, subject: bool = True
) -> list[UnknownName]:
    """The same, and subjects and resources that no document names or matches.

    A subject that claims a group or role which documents name is known; so is everything where the answer is allow, and
    where a document is refused, which may name it. ``subject`` False: the subject is not looked at. Raises
    MalformedRequest.
    """
    return _each(request, lambda item: _names(snapshot, item, trust, subject))


def unknown_subject(
    snapshot: Snapshot, system: str, subject: Mapping[str, Any], at: int | None = None, trust: frozenset[str] = CLAIMS
) -> list[UnknownName]:
    """The system that does not exist, or the subject that no document names, of a search for what a subject can do.

    ``at``: the moment, ms. Raises MalformedRequest.
    """
    policy_set = snapshot.policy_sets.get(system)
    fields = {"id": "what-can", "system": system, "subject": dict(subject), "time": at}
    named = {"action": {"name": "any"}, "resource": {"type": "any", "id": "any"}}
    if policy_set is None:
        return unknown_terms(fields | named)
    if policy_set.broken_at(at):
        return []
    if engine_of(all_systems()[system]) is not None:
        names = unknown_to_engine(policy_set, _parsed(fields | named), subject=True)
        return [name for name in names if name.what not in ("action", "resource", "resource type")]
    return _unknown_to_grants(policy_set, system, fields, trust | {"time"})


def _unknown_to_grants(
    policy_set: PolicySet, system: str, fields: dict[str, Any], trust: frozenset[str]
) -> list[UnknownName]:
    facts = policy_set.facts.at(fields["time"])
    for probe in probes(policy_set, system):
        request = _parsed(fields | probe)
        try:
            query = authorization_query(all_systems()[system], request, facts, trust)
        except Unanswerable as unanswerable:
            if unanswerable.reason.code in OF_SUBJECTS:
                break
        else:
            return list(unknown_subjects(names_of_documents(policy_set, system), request, query))
    return []


def _parsed(fields: dict[str, Any]) -> Request:
    request = parse_request(fields)
    assert isinstance(request, Request)
    return request


def _each(request: Mapping[str, Any], find: Callable[[Request], Iterable[UnknownName]]) -> list[UnknownName]:
    items = parse_request(request).items
    return list(dict.fromkeys(name for item in items if isinstance(item, Request) for name in find(item)))


def _terms(request: Request, policy_set: PolicySet | None, trust: frozenset[str]) -> Iterator[UnknownName]:
    system = all_systems().get(request.system)
    if system is None:
        yield UnknownName("system", request.system, nearest(request.system, all_systems(), most=1))
        return
    # An engine is asked nothing without documents: whether it knows an action is in its schemas.
    refused = "" if policy_set is None and engine_of(system) is not None else _refusal(system, request, trust)
    if refused in CODES:
        yield _refused(CODES[refused], system, request)
    elif isinstance(system, ListsActions) and not _lists(system, request.action.name):
        yield _refused("action", system, request)
    if isinstance(system, ListsResourceTypes):
        yield from _unknown_type(system, request)


def _refusal(system: System, request: Request, trust: frozenset[str]) -> str:
    """The code by which a system refuses a request without documents; empty: it does not."""
    try:
        authorization_query(system, request, Facts().at(usable_time(request, trust)), trust)
    except Unanswerable as unanswerable:
        return unanswerable.reason.code
    return ""


def _refused(what: What, system: System, request: Request) -> UnknownName:
    if what == "subject type":
        return UnknownName(what, request.subject.type, nearest(request.subject.type, system.subject_types, most=1))
    actions = system.actions() if isinstance(system, ListsActions) else ()
    return UnknownName(what, request.action.name, nearest(request.action.name, actions, most=1))


def _lists(system: ListsActions, action: str) -> bool:
    """Whether a catalogue has an action; Kafka's are also written in another case, as ``DESCRIBE_CONFIGS``."""
    return _folded(action) in {_folded(name) for name in system.actions()}


def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


def _unknown_type(system: ListsResourceTypes, request: Request) -> Iterator[UnknownName]:
    types, type_ = list(system.resource_types()), system.requested_type(request)
    if type_ and type_ not in types:
        yield UnknownName("resource type", type_, nearest(type_, types, most=1))


def _names(snapshot: Snapshot, request: Request, trust: frozenset[str], subject: bool) -> Iterator[UnknownName]:
    policy_set = snapshot.policy_sets.get(request.system)
    terms = list(_terms(request, policy_set, trust))
    if policy_set is None:
        yield from terms
        return
    named, query = names_of_documents(policy_set, request.system), _query(policy_set, request, trust, subject)
    checks = [] if query is None else [leaf for leaf in leaves(query.expression) if isinstance(leaf, PermissionCheck)]
    unknown = [term for term in terms if not _is_in_documents(term, named, checks)]
    yield from unknown
    outcome = answer(snapshot, request, trust).outcome
    if unknown or outcome == "allow" or policy_set.broken_at(usable_time(request, trust)):
        return
    if engine_of(all_systems()[request.system]) is not None:
        yield from unknown_to_engine(policy_set, request, subject)
    elif query is not None:
        if subject and outcome == "deny":  # an error has its own message about the subject
            yield from unknown_subjects(named, request, query)
        yield from unknown_resources(named, request, query.expression)


def _is_in_documents(term: UnknownName, named: NamesOfDocuments, checks: list[PermissionCheck]) -> bool:
    """Whether documents name what the catalogue lacks, as those of a newer platform do."""
    if term.what == "action":
        return any(check.permission in named.permissions for check in checks)
    parts = term.name.count(":") + 1
    heads = {tuple(map(Exact, check.object[:parts])) for check in checks}
    return term.what == "resource type" and any(pattern.parts[:parts] in heads for pattern in named.patterns)


def _query(policy_set: PolicySet, request: Request, trust: frozenset[str], subject: bool) -> AuthorizationQuery | None:
    """The request as a query, with any subject where that is not looked at; None: the system does not answer it."""
    system, facts = all_systems()[request.system], policy_set.facts.at(usable_time(request, trust))
    ids = [request.subject.id] if subject else [request.subject.id, *UNKNOWN_PRINCIPALS]
    for id_ in ids:
        variant = msgspec.structs.replace(request, subject=msgspec.structs.replace(request.subject, id=id_))
        try:
            return authorization_query(system, variant, facts, trust)
        except Unanswerable:
            continue
    return None
