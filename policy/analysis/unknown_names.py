"""Names of a request that nothing knows: typing errors, which would else be answered as a deny.

The catalogue of a system knows its actions and types. Its documents know subjects and resources, and, of a system with
an engine of its own (Cedar), actions and types too, as far as they are named.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from policy.analysis.impact import UNKNOWN_PRINCIPALS, document_names, known_names
from policy.analysis.wording import literal_name
from policy.core.facts import Facts, FactTable
from policy.core.model import All, AnyOf, AuthorizationQuery, Condition, Expression, PermissionCheck, Unanswerable
from policy.core.pattern import Exact, Name, Pattern, match_part, matches
from policy.core.request import CLAIMS, Batch, Request, parse_request, usable_time
from policy.core.suggest import misspelt, nearest
from policy.evaluation.authorize import answer
from policy.store.snapshot import PolicySet, Snapshot
from policy.systems import all_systems
from policy.systems.kit.engine import engine_of
from policy.systems.kit.query import authorization_query
from policy.systems.kit.system import EVERYONE, ListsActions, ListsResourceTypes, System

POLICY_SETS = 4  # whose names are kept, of a case file's stages
What = Literal["system", "action", "subject type", "resource type", "subject", "resource"]

CODES: Mapping[str, What] = {"unknown-action": "action", "unknown-subject-type": "subject type"}
"""Codes of reasons by which a system refuses a name."""


class UnknownName(msgspec.Struct, frozen=True):
    """A name that nothing knows. ``hint``: what it may have been meant as, or empty.

    Its text is such as "no action kafka:DeleteTopci; did you mean kafka:DeleteTopic?".
    """

    what: What
    name: str
    hint: str = ""

    @property
    def is_mistake(self) -> bool:
        """Whether it is a typing error: always for what a catalogue lists. Other subjects and resources may exist,
        and are denied because no document names them: one that is near to a known one is taken for it.
        """
        return self.what not in ("subject", "resource") or bool(self.hint)

    def __str__(self) -> str:
        where = " in the documents" if self.what in ("subject", "resource") else ""
        return f"no {self.what} {self.name}{where}{self.hint}"


def unknown_terms(request: Mapping[str, Any]) -> list[UnknownName]:
    """The systems, actions and types of a request (of a batch, of all items) that no catalogue has.

    Needs no documents, so it knows nothing of a system without a catalogue. Raises MalformedRequest.
    """
    return _each(request, lambda one: _terms(one, None, CLAIMS))


def unknown_names(
    snapshot: Snapshot, request: Mapping[str, Any], trust: frozenset[str] = CLAIMS, subject: bool = True
) -> list[UnknownName]:
    """The same, and subjects and resources that no document names or matches.

    A subject that claims a group or role which documents name is known; so is everything where the answer is allow, and
    where a document is refused, which may name it. ``subject`` False: the subject is not looked at. Raises
    MalformedRequest.
    """
    return _each(request, lambda one: _names(snapshot, one, trust, subject))


def _each(request: Mapping[str, Any], find: Callable[[Request], Iterable[UnknownName]]) -> list[UnknownName]:
    parsed = parse_request(request)
    items = parsed.items if isinstance(parsed, Batch) else (parsed,)
    return list(dict.fromkeys(found for item in items if isinstance(item, Request) for found in find(item)))


def _terms(request: Request, policy_set: PolicySet | None, trust: frozenset[str]) -> Iterator[UnknownName]:
    system = all_systems().get(request.system)
    if system is None:
        yield UnknownName("system", request.system, nearest(request.system, all_systems(), most=1))
        return
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
        authorization_query(system, request, Facts(FactTable(())).at(usable_time(request, trust)), trust)
    except Unanswerable as unanswerable:
        return unanswerable.reason.code
    return ""


def _refused(what: What, system: System, request: Request) -> UnknownName:
    if what == "subject type":
        return UnknownName(what, request.subject.type, nearest(request.subject.type, system.subject_types, most=1))
    known = system.actions() if isinstance(system, ListsActions) else ()
    return UnknownName(what, request.action.name, nearest(request.action.name, known, most=1))


def _lists(system: ListsActions, action: str) -> bool:
    """Whether a catalogue has an action; Kafka's are also written in another case, as ``DESCRIBE_CONFIGS``."""
    return _folded(action) in {_folded(name) for name in system.actions()}


def _folded(name: str) -> str:
    return name.replace("_", "").casefold()


def _unknown_type(system: ListsResourceTypes, request: Request) -> Iterator[UnknownName]:
    known, type_ = list(system.resource_types()), system.requested_type(request)
    if type_ and type_ not in known:
        yield UnknownName("resource type", type_, nearest(type_, known, most=1))


class _Known(msgspec.Struct, frozen=True):
    """What the documents of a system name. ``permissions``, ``patterns``: of all grants."""

    names: frozenset[str]
    facts: frozenset[str]
    permissions: frozenset[Name | None]
    patterns: frozenset[Pattern]


@functools.lru_cache(POLICY_SETS)
def _known(policy_set: PolicySet, system: str) -> _Known:
    grants = {(grant.permission, grant.object) for held in policy_set.grants.values() for grant in held}
    permissions, patterns = {permission for permission, _ in grants}, {object_ for _, object_ in grants}
    facts = (name for kind in all_systems()[system].kinds for name in policy_set.facts.names(kind))
    names = frozenset(document_names(policy_set, system)) - {EVERYONE}
    return _Known(names, frozenset(facts), frozenset(map(literal_name, permissions)), frozenset(patterns))


def _names(snapshot: Snapshot, request: Request, trust: frozenset[str], subject: bool) -> Iterator[UnknownName]:
    policy_set = snapshot.policy_sets.get(request.system)
    terms = list(_terms(request, policy_set, trust))
    if policy_set is None:
        yield from terms
        return
    known, query = _known(policy_set, request.system), _query(policy_set, request, trust, subject)
    checks = [] if query is None else [leaf for leaf in _leaves(query.expression) if isinstance(leaf, PermissionCheck)]
    found = [term for term in terms if not _is_in_documents(term, known, checks)]
    yield from found
    outcome = answer(snapshot, request, trust).outcome
    if found or outcome == "allow" or policy_set.broken_at(usable_time(request, trust)):
        return
    if engine_of(all_systems()[request.system]) is not None:
        yield from _of_engine(policy_set, request, subject)
    elif query is not None:
        if subject and outcome == "deny":  # an error has its own message about the subject
            yield from _unknown_subject(known, request, query)
        yield from _unknown_resource(known, request, query.expression)


def _is_in_documents(term: UnknownName, known: _Known, checks: list[PermissionCheck]) -> bool:
    """Whether documents name what the catalogue lacks, as those of a newer platform do."""
    if term.what == "action":
        return any(check.permission in known.permissions for check in checks)
    parts = term.name.count(":") + 1
    heads = {tuple(map(Exact, check.object[:parts])) for check in checks}
    return term.what == "resource type" and any(pattern.parts[:parts] in heads for pattern in known.patterns)


def _query(policy_set: PolicySet, request: Request, trust: frozenset[str], subject: bool) -> AuthorizationQuery | None:
    """The request as a query, with any subject where that is not looked at; None: the system does not answer it."""
    system, facts = all_systems()[request.system], policy_set.facts.at(usable_time(request, trust))
    ids = [request.subject.id] if subject else [request.subject.id, *UNKNOWN_PRINCIPALS]
    for id_ in ids:
        one = msgspec.structs.replace(request, subject=msgspec.structs.replace(request.subject, id=id_))
        try:
            return authorization_query(system, one, facts, trust)
        except Unanswerable:
            continue
    return None


def _unknown_subject(known: _Known, request: Request, query: AuthorizationQuery) -> Iterator[UnknownName]:
    """No grant, membership or fact has a principal of the subject's name, nor one that it claims."""
    system, id_ = all_systems()[request.system], request.subject.id
    names = known.names
    claimed = [name for name in query.principals if system.claims and name.startswith(system.claims)]
    if id_ in names | known.facts or any(name.endswith(f":{id_}") for name in names) or names.intersection(claimed):
        return
    own = next((name for name in query.principals if name.endswith(id_)), id_)
    prefix = own.removesuffix(id_)
    ids = sorted({name.removeprefix(prefix) for name in names if name.startswith(prefix)})
    yield UnknownName("subject", id_, misspelt(id_, [name for name in ids if name.startswith(_kind(id_))]))


def _kind(id_: str) -> str:
    """``user:`` of ``user:dana``: names of one kind alone are suggested."""
    kind, colon, _ = id_.partition(":")
    return f"{kind}:" if colon else ""


def _unknown_resource(known: _Known, request: Request, expression: Expression) -> Iterator[UnknownName]:
    """Nothing that the action needs is on an object which a grant matches, and no fact has the resource's name."""
    id_, leaves = request.resource.id, list(_leaves(expression))
    objects = {leaf.object for leaf in leaves if isinstance(leaf, PermissionCheck)}
    missing = any(isinstance(leaf, Condition) and leaf.code == "unknown-object" for leaf in leaves)
    if id_ in known.facts or not (objects or missing):
        return
    if not missing and any(matches(pattern, name) for pattern in known.patterns for name in objects):
        return
    near = {_with_part(id_, old, new) for name in objects for old, new in _one_part_off(known.patterns, name)}
    same_kind = {name for name in known.facts if name.startswith(_kind(id_))}
    yield UnknownName("resource", id_, misspelt(id_, sorted(near | same_kind)))


def _with_part(id_: str, old: str, new: str) -> str:
    """The id with another text for the last part that is this one."""
    found = list(re.finditer(rf"(?<![\w.-]){re.escape(old)}(?![\w.-])", id_))
    return f"{id_[: found[-1].start()]}{new}{id_[found[-1].end() :]}" if found else id_


def _leaves(expression: Expression) -> Iterator[Expression]:
    if isinstance(expression, All | AnyOf):
        for item in expression.items:
            yield from _leaves(item)
    else:
        yield expression


def _one_part_off(patterns: Iterable[Pattern], name: Name) -> Iterator[tuple[str, str]]:
    """The part of a name by which alone it differs from a pattern, and what the pattern has there."""
    for pattern in patterns:
        if len(pattern.parts) != len(name):
            continue
        off = [(text, part) for text, part in zip(name, pattern.parts, strict=True) if not match_part(part, text)]
        if len(off) == 1 and isinstance(off[0][1], Exact):
            yield off[0][0], off[0][1].text


def _of_engine(policy_set: PolicySet, request: Request, subject: bool) -> Iterator[UnknownName]:
    """What policies of an engine may match is not known: a name counts as unknown where it is near to a known one."""
    named = known_names(policy_set, request.system)
    assert named is not None
    names = [_RequestedName("action", request.action.name, frozenset(named.actions))]
    names.append(_requested_name("resource", request.resource.type, request.resource.id, named.resources))
    if subject:
        names.append(_requested_name("subject", request.subject.type, request.subject.id, named.subjects))
    for one in names:
        near = misspelt if one.what in ("subject", "resource") else functools.partial(nearest, most=1)
        if one.name not in one.known and (hint := near(one.name, sorted(one.known))):
            yield UnknownName(one.what, one.name, hint)


class _RequestedName(msgspec.Struct, frozen=True):
    what: What
    name: str
    known: frozenset[str]


def _requested_name(
    what: Literal["subject", "resource"], type_: str, id_: str, known: Iterable[tuple[str, str]]
) -> _RequestedName:
    """The type, where no entity that is known is of it; else the id."""
    ids = frozenset(id_ for other, id_ in known if other == type_)
    if ids:
        return _RequestedName(what, id_, ids)
    types: What = "subject type" if what == "subject" else "resource type"
    return _RequestedName(types, type_, frozenset(other for other, _ in known))
