"""Acls and Authorizer documents: entries as grants, super users, and what is known of both.

An entry for all hosts is a grant to its principal, ``principal:User:dana``. One for a single host is a grant to a
principal of its own, ``allowed@10.0.0.1:User:dana`` or ``denied@…``, which a request has when it comes from there
(KA-HOST). A permission is (resource type, operation), a resource one flat text in which nothing is special.
"""

import functools
from collections.abc import Iterator
from urllib.parse import quote

import msgspec

from policy.core.document import Document
from policy.core.model import ALLOW, DENY, CompiledDocument, Effect, Fact, Grant, StatementId
from policy.core.pattern import ANY, Exact, Pattern, Prefix, exactly
from policy.core.suggest import nearest
from policy.systems.kafka_acls.catalogue import ALL, catalogue, operation_of, operations
from policy.systems.kafka_acls.unmatchable import GROUP, WILDCARD, principal_warning, warnings_of
from policy.systems.kit.system import EVERYONE
from policy.systems.kit.validator import Validator, one_fact

ACLS, AUTHORIZER = "Acls", "Authorizer"
ENTRIES = "Entries"  # kind of the facts about an Acls document
ONLY = "authorizer"  # the name of the one Authorizer document
PRINCIPAL, NAME, ALLOWED, DENIED = "principal:", "name:", "allowed@", "denied@"
PREFIXES = (PRINCIPAL, NAME, ALLOWED, DENIED)
RESERVED = (*PREFIXES, "group:")  # `policy.store.affected` reads a text with one of these as a principal of ours
ANYONE = "User:*"
MEMBERS = "Group"  # of some group; no principal, as it has no colon
OF_ENTRIES = ("host", "operation", "permission", "resource_type", "pattern_type", "name")  # beside the principal
SUPER, UNMATCHED = ("super",), ("unmatched",)
PATTERNS = ("every", "literal", "prefixed")  # indexes of entries by what they match: TYPE, or TYPE:NAME
EVERY_NAME = Pattern((ANY,))
MAX_PREFIX = 1_000  # characters of a prefix: a request looks up each beginning of its resource's name (KA-EMPTY)


class Entry(msgspec.Struct, frozen=True):
    """One entry of an access control list. ``host``, ``name``: ``*`` for all, the name not with ``prefixed``."""

    principal: str
    host: str
    operation: str
    effect: Effect
    resource_type: str
    prefixed: bool
    name: str

    @property
    def object(self) -> Pattern:
        """What it matches (KA-LITERAL, KA-PREFIXED)."""
        if self.prefixed:
            return Pattern((Prefix(self.name),))
        return EVERY_NAME if self.name == WILDCARD else Pattern((Exact(self.name),))

    @property
    def permissions(self) -> Iterator[Pattern]:
        """What it allows or denies (KA-ALL, KA-IMPLIED)."""
        yield _permission(self.resource_type, self.operation)
        # A deny implies nothing: Describe may be allowed where Read is denied (KA-IMPLIED).
        if self.effect == ALLOW and (implied := catalogue()["implied"].get(self.operation)):
            yield _permission(self.resource_type, implied)

    @property
    def members(self) -> tuple[str, ...]:
        """Whom else a deny may be for: Kafka's principals have no groups, so any may be a member (KA-GROUP-DENY)."""
        return (MEMBERS,) if self.effect == DENY and self.principal.startswith(f"{GROUP}:") else ()

    @property
    def key(self) -> tuple[str, str]:
        """Where the fact of its document is found by the resources that it matches (KA-EMPTY)."""
        if self.prefixed:
            return ("prefixed", f"{self.resource_type}:{self.name}")
        if self.name == WILDCARD:
            return ("every", self.resource_type)
        return ("literal", f"{self.resource_type}:{self.name}")


class Authorizer(msgspec.Struct, frozen=True):
    """Settings of the broker's authorizer. ``open_unmatched``: allow_everyone_if_no_acl_found."""

    super_users: frozenset[str]
    open_unmatched: bool


@functools.cache
def _permission(resource_type: str, operation: str) -> Pattern:
    """The same few objects for all grants, of which there may be very many."""
    return Pattern((Exact(resource_type), ANY if operation == ALL else Exact(operation)))


def principal_fault(text: str) -> str:
    """Why a text is no principal TYPE:NAME; "" when it is one (KA-PRINCIPAL)."""
    type_, _, name = text.partition(":")
    if not type_ or not name:
        return f"{text!r} is not a principal TYPE:NAME such as User:dana"
    return f"{text!r} has a type that is not supported: {text.partition(':')[0]}" if text.startswith(RESERVED) else ""


def principal_of(principal: str, effect: Effect, host: str) -> str:
    """The principal of the grants of an entry for ``host`` (KA-HOST); colons of a host are escaped."""
    if host == WILDCARD:
        return f"{PRINCIPAL}{principal}"
    return f"{ALLOWED if effect == ALLOW else DENIED}{quote(host, safe='')}:{principal}"


def host_and_name(principal: str) -> tuple[str, str]:
    """The host and the TYPE:NAME of a principal of grants, the host escaped; ``*`` for all hosts."""
    if principal.startswith((ALLOWED, DENIED)):
        host, _, name = principal.partition("@")[2].partition(":")
        return host, name
    return WILDCARD, principal.removeprefix(PRINCIPAL)


def read_acls(document: Document) -> CompiledDocument:
    """Entries as grants; their resources are known also while the document is not valid (KA-EMPTY).

    The end of a time-bound allow must not open a resource to all for having no entry.
    """
    entries = read_entries(document)
    grants = tuple(grant for number, entry in enumerate(entries) for grant in _grants(document, number, entry))
    return CompiledDocument(grants, facts=(_fact(document, entries),), warnings=tuple(warnings_of(entries)))


def read_entries(document: Document) -> list[Entry]:
    """The entries of an Acls document; raises DocumentRefused naming every error."""
    validator = Validator(document.spec)
    entries = [_entry(entry) for entry in validator.forms("entries")]
    validator.reject_unknown()
    validator.finish()
    return entries


def _entry(validator: Validator) -> Entry:
    """Errors stay in the validator. A field that is there and empty is one: its default may be wider than meant."""
    for field in ("host", "permission", "pattern_type"):
        if validator.is_empty(field):
            validator.error("must be text, or left out", field)
    principal, name = validator.text("principal"), validator.text("name")
    if principal and (wrong := principal_fault(principal)):
        validator.error(f"{wrong} (KA-PRINCIPAL)", "principal")
    resource_type = validator.one_of("resource_type", catalogue()["operations"])
    operation = _operation(validator)
    host = validator.text("host", required=False) or WILDCARD
    permission = validator.one_of("permission", ("ALLOW", "DENY"), required=False)
    prefixed = validator.one_of("pattern_type", ("LITERAL", "PREFIXED"), required=False) == "PREFIXED"
    if prefixed and len(name) > MAX_PREFIX:
        validator.error(f"a prefix has at most {MAX_PREFIX} characters, not {len(name)}", "name")
    validator.reject_unknown()
    return Entry(principal, host, operation, DENY if permission == "DENY" else ALLOW, resource_type, prefixed, name)


def _operation(validator: Validator) -> str:
    """An operation of Kafka, or All: its authorizer enforces each of them on every type (KA-TYPES)."""
    text = validator.text("operation")
    name = operation_of(text)
    if text and name is None:
        names = (*operations(), ALL)
        hint = nearest(text, names)
        validator.error(f"{text!r} is not an operation of Kafka: {', '.join(names)}{hint} (KA-TYPES)", "operation")
    return name or ""


def _grants(document: Document, number: int, entry: Entry) -> Iterator[Grant]:
    statement_id = StatementId(str(document.key), number)
    for principal in (entry.principal, *entry.members):
        named = principal_of(principal, entry.effect, entry.host)
        for permission in entry.permissions:
            yield Grant(named, entry.effect, permission, entry.object, statement_id, document.window)


def _fact(document: Document, entries: list[Entry]) -> Fact:
    """What a request looks up of the document: principal → (effect, host) of its entries for one host."""
    hosts: dict[str, set[tuple[Effect, str]]] = {}
    for entry in entries:
        for principal in (entry.principal, *entry.members) if entry.host != WILDCARD else ():
            hosts.setdefault(principal, set()).add((entry.effect, entry.host))
    groups = [("denies", MEMBERS)] if any(entry.members for entry in entries) else []
    named = (("host of", principal) for principal in sorted(hosts))
    keys = dict.fromkeys((*named, *groups, *(entry.key for entry in entries)))
    body = {principal: tuple(sorted(pairs)) for principal, pairs in sorted(hosts.items())}
    return Fact(ENTRIES, document.key.name, body, tuple(sorted(keys)), StatementId(str(document.key)))


def read_authorizer(document: Document) -> CompiledDocument:
    """Super users (KA-SUPER), and whether what no entry matches is open to all (KA-EMPTY).

    Both are grants as well, of permissions that no entry gives: so tools see what a change opens.
    """
    validator = Validator(document.spec)
    if document.key.name != ONLY:
        validator.error(f"must be {ONLY}: there is one {AUTHORIZER}", "name")
    users = validator.texts("super_users", required=False)
    for user in users:
        if wrong := principal_fault(user):
            validator.error(f"{wrong} (KA-PRINCIPAL)", "super_users")
    open_unmatched = validator.flag("allow_everyone_if_no_acl_found") or False
    key, numbered = str(document.key), {user: number for number, user in reversed(list(enumerate(users)))}
    grants = [
        Grant(f"{PRINCIPAL}{user}", ALLOW, exactly(SUPER), EVERY_NAME, StatementId(key, number))
        for user, number in sorted(numbered.items())
        if user != ANYONE  # here it is the name of one principal, which no client has; its grants are everybody's
    ]
    if open_unmatched:
        grants.append(Grant(EVERYONE, ALLOW, exactly(UNMATCHED), EVERY_NAME, StatementId(key)))
    authorizer = Authorizer(frozenset(users), open_unmatched)
    texts = (principal_warning(user, has_wildcard=False) for user in users)
    warnings = (f"super_users: {text}" for text in texts if text)
    return one_fact(document, validator, authorizer, grants=grants, warnings=warnings)
