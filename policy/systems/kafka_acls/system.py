"""Kafka's access control lists translated: entries to grants, a request to its operation on its resource.

What entries do not decide alone is part of the expression as well: whether the principal is a super user, whether
any entry matches the resource, and what a host that is not known would change.
"""

import re
from collections.abc import Iterator
from typing import Any

from policy.core.facts import Facts
from policy.core.model import (
    ALLOW,
    DENY,
    All,
    AuthorizationQuery,
    Condition,
    Effect,
    Expression,
    Grant,
    PermissionCheck,
    Reason,
    Unanswerable,
)
from policy.core.pattern import Exact, Name
from policy.core.request import Request
from policy.systems.kafka_acls.catalogue import (
    catalogue,
    operation_of,
    operations,
    requested_operation,
    resource_type_of,
)
from policy.systems.kafka_acls.entries import (
    ACLS,
    ANYONE,
    AUTHORIZER,
    ENTRIES,
    MAX_PREFIX,
    MEMBERS,
    NAME,
    OF_ENTRIES,
    ONLY,
    PATTERNS,
    PREFIXES,
    PRINCIPAL,
    SUPER,
    UNMATCHED,
    Authorizer,
    host_and_name,
    principal_fault,
    principal_of,
    read_acls,
    read_authorizer,
)
from policy.systems.kafka_acls.unmatchable import GROUP, WILDCARD
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import any_of, check_name
from policy.systems.kit.system import EVERYONE, Kind, System

WORD = re.compile(r"""[^\s,;|"'`\[\](){}<>=]+""")


class KafkaAcls(System):
    name = "kafka-acls"
    context_fields = frozenset({"host"})
    kinds = {
        ACLS: Kind(principals=("principal",), anyone=(f"{GROUP}:",), of_entries=OF_ENTRIES, read=read_acls),
        AUTHORIZER: Kind(missed=True, read=read_authorizer),
    }
    deny_rule = "KA-DENY-WINS"
    default_rule = "KA-DEFAULT-DENY"
    subject_types = ("user",)
    subjects = PREFIXES

    def canonical_action(self, action: str) -> str:
        """The operation as the catalogue writes it: Kafka's logs and tools do so in different ways."""
        return operation_of(action) or action

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """Type and name."""
        return (request.resource.type, request.resource.id)

    def actions(self) -> list[str]:
        return sorted(operations())

    def resource_types(self) -> list[str]:
        return list(catalogue()["operations"])

    def requested_type(self, request: Request) -> str:
        """The resource's own."""
        return request.resource.type

    def resource_type(self, action: str, resource: str) -> str:
        """``Cluster`` for its name, else the one type that has the operation, else ``Topic``, which most are."""
        return "Cluster" if resource == catalogue()["cluster"] else resource_type_of(action) or "Topic"

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """The operation on the resource; raises Unanswerable for unknown types and operations (KA-Q1)."""
        operation = requested_operation(request.resource.type, request.action.name)
        principal = request.subject.id
        if wrong := principal_fault(principal):
            raise Unanswerable("malformed-subject", f"subject.id {wrong}", "KA-PRINCIPAL")
        if principal == ANYONE:  # Kafka's authorizer fails here, too
            message = f"subject.id {ANYONE} stands for every principal, and is none"
            raise Unanswerable("malformed-subject", message, "KA-PRINCIPAL")
        access = _Access(request, operation, facts)
        notes, authorizer, names = _notes(request), _authorizer(facts), _principals(principal)
        # Before any entry, a deny too, as in Kafka's StandardAuthorizer (KA-SUPER).
        if isinstance(authorizer, Authorizer) and principal in authorizer.super_users:
            return AuthorizationQuery(names, access.check("KA-SUPER", permission=SUPER), notes=notes)
        hosts, host = (*_hosts_of(facts, principal), *_hosts_of(facts, ANYONE)), _host(request, trust)
        of_groups = _group_denies(facts, host)
        names = (*names, *(principal_of(*entry) for entry in hosts if entry[2] == host))
        unknown = hosts if host is None else ()
        alternatives = (*access.by_entries(names, unknown, of_groups), *access.without_entries(authorizer))
        needed = any_of(alternatives, "KA-DEFAULT-DENY")
        # The decision rests on the client's word alone where an entry is for one host (KA-HOST-UNKNOWN).
        claims = ("facts",) if hosts and host is not None else ()
        return AuthorizationQuery(names, needed, claims, notes)

    def opened_by(self, change: FactChange, facts: Facts) -> Iterator[Opening]:
        """Resources that no entry matches any more, where these are open to all (KA-EMPTY).

        What the Authorizer opens, its grants say.
        """
        authorizer = _authorizer(facts)
        if change.kind != ENTRIES or not isinstance(authorizer, Authorizer) or not authorizer.open_unmatched:
            return
        kept = {key for fact in change.after for key in fact.keys}
        for index, value in (key for fact in change.before for key in fact.keys if key not in kept):
            resource_type, _, name = value.partition(":")
            literal = index == "literal"
            if index in PATTERNS and next(_matching(facts, resource_type, name, literal), None) is None:
                text = name if literal else f"{name}*"
                yield Opening(f"{resource_type}/*", text, EVERYONE, "no entry matches it, so it is open to all", "high")

    def in_one_request(self, principal: str, other: str) -> bool:
        """Whether both count for one client: its principal, User:*, and those of the entries for its host."""
        (host, name), (other_host, other_name) = host_and_name(principal), host_and_name(other)
        same_host = host == other_host or WILDCARD in (host, other_host)
        return same_host and (name == other_name or bool({ANYONE, MEMBERS} & {name, other_name}))

    def always_with(self, principal: str) -> tuple[str, ...]:
        """Entries for all hosts, of the same name and of User:*, count for a client of any (KA-PRINCIPAL, KA-HOST)."""
        _, name = host_and_name(principal)
        return tuple(other for other in (f"{PRINCIPAL}{name}", f"{PRINCIPAL}{ANYONE}") if other != principal)

    def may_grant(self, grant: Grant, permission: Name) -> bool:
        """An operation of the entry's resource type (KA-TYPES); that a resource has no entry is no entry (KA-EMPTY)."""
        return len(permission) > 1 and grant.permission.parts[:-1] == (Exact(permission[0]),)

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """Super users, the cluster's administration, and all topics."""
        return read_privileged_permissions(catalogue()["privileged_permissions"])


HostEntry = tuple[str, Effect, str]
"""A principal, the effect of an entry of its, and the one host that it is for."""


def _principals(principal: str) -> tuple[str, ...]:
    """The principal, User:* of which every principal is one (KA-PRINCIPAL), and its bare name.

    Nothing is granted to bare names: a refused document may name the principal so (`policy.store.affected`), and of a
    name such as ``CN=dana,OU=shop`` within a longer text each word is a name, and one is enough.
    """
    name = principal.partition(":")[2]
    word = WORD.search(name.partition("=")[2] or name)
    bare = dict.fromkeys((name, *([word[0]] if word else ())))
    return f"{PRINCIPAL}{principal}", f"{PRINCIPAL}{ANYONE}", *(f"{NAME}{text}" for text in bare)


def _authorizer(facts: Facts) -> Authorizer | str | None:
    """The Authorizer document; its key when it was refused and has no earlier good version; None: there is none."""
    if ONLY in facts.broken(AUTHORIZER):
        return f"kafka-acls/{AUTHORIZER}/{ONLY}"
    authorizer: Authorizer | None = facts.get(AUTHORIZER, ONLY)
    return authorizer


def _hosts_of(facts: Facts, principal: str) -> tuple[HostEntry, ...]:
    """The entries for one host each of a principal."""
    return tuple(
        (principal, effect, host)
        for document in sorted(facts.find(ENTRIES, "host of", principal))
        for effect, host in (facts.get(ENTRIES, document) or {}).get(principal, ())
    )


def _group_denies(facts: Facts, host: str | None) -> tuple[str, ...]:
    """The principals of denies for groups that count for a host, where there are any; None: not known, so for all."""
    if not facts.find(ENTRIES, "denies", MEMBERS):
        return ()
    single = _hosts_of(facts, MEMBERS)
    return (f"{PRINCIPAL}{MEMBERS}", *(principal_of(*entry) for entry in single if host is None or entry[2] == host))


def _host(request: Request, trust: frozenset[str]) -> str | None:
    """The client's address; None: not given, or a claim that is not trusted (KA-HOST-UNKNOWN)."""
    host = request.context.get("host")
    if host is None or "facts" not in trust:
        return None
    if not isinstance(host, str) or not host:
        raise Unanswerable("malformed-context", "context.host must be text that is not empty", "KA-HOST")
    check_name(host, "context.host")
    return host


def _notes(request: Request) -> tuple[Reason, ...]:
    """Groups count for nothing (KA-Q2)."""
    if request.subject.properties.get("groups") is None:
        return ()
    message = "subject.properties.groups is not used: Kafka's ACLs have no groups"
    return (Reason("claim-ignored", message, "KA-Q2"),)


def _matching(facts: Facts, resource_type: str, name: str, literal: bool = True) -> Iterator[str]:
    """Documents with an entry, of whatever principal, that matches the resource; else every one that begins so."""
    # By index, not by going through entries: LITERAL * (KA-LITERAL), the very name, each beginning of it (KA-PREFIXED).
    yield from sorted(facts.find(ENTRIES, "every", resource_type))
    if literal:
        yield from sorted(facts.find(ENTRIES, "literal", f"{resource_type}:{name}"))
    for end in range(1, min(len(name), MAX_PREFIX) + 1):
        yield from sorted(facts.find(ENTRIES, "prefixed", f"{resource_type}:{name[:end]}"))


class _Access:
    """An operation on a resource."""

    def __init__(self, request: Request, operation: str, facts: Facts) -> None:
        self._type, self._name, self._operation = request.resource.type, request.resource.id, operation
        self._text = f"{self._type} {self._name}"
        self._facts = facts

    def check(
        self, rule: str, because: str = "", principals: tuple[str, ...] = (), permission: Name = ()
    ) -> PermissionCheck:
        """Whether the operation is allowed, by ``permission`` where that is another one."""
        of = permission or (self._type, self._operation)
        return PermissionCheck(of, (self._name,), rule, self._operation, self._text, because, principals)

    def by_entries(
        self, names: tuple[str, ...], hosts: tuple[HostEntry, ...], of_groups: tuple[str, ...]
    ) -> Iterator[Expression]:
        """Allowed where every host is and any principal of a group; denied where none is; else not known.

        ``hosts``: the entries for one host each, while the client's is not known (KA-HOST-UNKNOWN). ``of_groups``: the
        principals of denies for groups, whose members are not known (KA-GROUP-DENY).
        """
        denied = tuple(principal_of(*entry) for entry in hosts if entry[1] == DENY)
        allowed = tuple(principal_of(*entry) for entry in hosts if entry[1] == ALLOW)
        if not hosts and not of_groups:
            yield self.check("KA-PRINCIPAL")
            return
        yield self.check("KA-PRINCIPAL", principals=(*names, *denied, *of_groups))
        if hosts:
            message = "the client's host is not known: context.host is not given, or not trusted on this request topic"
            somewhere = self.check("KA-PRINCIPAL", principals=(*names, *allowed))
            yield All((somewhere, Condition(None, message, "KA-HOST-UNKNOWN")), "KA-HOST-UNKNOWN")
        if of_groups:
            message = "a deny for a group matches, and who is in it is not known: Kafka's ACLs have no groups"
            of_none = self.check("KA-PRINCIPAL", principals=(*names, *denied))
            yield All((of_none, Condition(None, message, "KA-GROUP-DENY")), "KA-GROUP-DENY")

    def without_entries(self, authorizer: Authorizer | str | None) -> Iterator[Expression]:
        """What allows without an entry: a super user, or that no entry matches the resource (KA-SUPER, KA-EMPTY)."""
        if isinstance(authorizer, str):
            message = f"{authorizer} was refused and has no earlier good version, so super users are not known"
            yield Condition(None, message, "KA-SUPER")
        elif authorizer is not None and authorizer.open_unmatched:
            yield self._unmatched()

    def _unmatched(self) -> Expression:
        matching = next(_matching(self._facts, self._type, self._name), None)
        if matching is not None:
            message = f"kafka-acls/{ACLS}/{matching} has an entry that matches {self._text}"
            return Condition(False, message, "KA-DEFAULT-DENY")
        if refused := self._facts.broken(ACLS):
            message = f"kafka-acls/{ACLS}/{refused[0]} was refused, so whether an entry matches is not known"
            return Condition(None, message, "KA-EMPTY")
        return self.check("KA-EMPTY", "which no entry matches", permission=UNMATCHED)
