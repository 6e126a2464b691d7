"""Lenses 6 IAM translated: roles to grants, groups to memberships, a request to one atom.

Principals: the subject's id (``user:NAME``, ``service-account:NAME``), ``claim:NAME`` for a group that the
request claims, ``group:NAME`` and ``role:NAME`` for documents.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from policy.core.caching import Cache
from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import (
    ALLOW,
    DENY,
    All,
    AuthorizationQuery,
    CompiledDocument,
    Condition,
    Expression,
    Grant,
    Membership,
    PermissionCheck,
    StatementId,
    Unanswerable,
)
from policy.core.pattern import Pattern
from policy.core.request import Request
from policy.systems.kit.claims import claimed
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.system import Kind, System
from policy.systems.kit.validator import Validator
from policy.systems.lenses6 import catalogue
from policy.systems.lenses6.grammar import (
    action_name,
    action_pattern,
    resource_name,
    resource_pattern,
    written_action,
    written_resource,
)

MAX_PAIRS = 200_000  # of an action and a resource pattern, over the statements of a role
PRINCIPALS = ("user:", "service-account:")  # L6-PRINCIPAL
SERVICE_ACCOUNT = ("service-account", "service_account")  # types of a subject; "user" is any principal's
CLAIM = "claim:"
SEVERAL = re.compile(rf"[\s,;]({'|'.join(PRINCIPALS)})")
PEOPLE = ("members", "sso_name")
DESCRIBING = ("display_name", "description", "metadata")


def _read_group(document: Document) -> CompiledDocument:
    """Memberships (L6-GROUP)."""
    validator, group = Validator(document.spec), f"group:{document.key.name}"
    roles, members = validator.texts("roles"), validator.texts("members", required=False)
    sso_name = validator.text("sso_name", required=False)
    for member in members:
        if not member.startswith(PRINCIPALS) or member in PRINCIPALS:
            validator.error(f"{member!r} is not user:NAME or service-account:NAME", "members")
        if SEVERAL.search(member):
            validator.error(f"{member!r} is more than one principal: write each as an item of its own", "members")
    validator.reject_unknown(*DESCRIBING)
    validator.finish()
    statement_id, window = StatementId(str(document.key)), document.window
    claims = {f"{CLAIM}{name}" for name in (document.key.name, sso_name) if name}
    into = [Membership(member, group, statement_id, window) for member in (*members, *sorted(claims))]
    onward = [Membership(group, f"role:{role}", statement_id, window) for role in roles]
    return CompiledDocument(memberships=(*into, *onward))


def _read_role(document: Document) -> CompiledDocument:
    """The statements as grants to the role (L6-ROLE)."""
    validator = Validator(document.spec)
    statements = _small_enough(validator, validator.forms("statements"))
    warnings: list[str] = []
    if validator.has("data_policies"):
        warnings.append("data_policies are not enforced: every principal that may read sees unmasked data")
    grants = [g for number, s in enumerate(statements) for g in _read_statement(document, s, number, warnings)]
    validator.reject_unknown(*DESCRIBING)
    validator.finish()
    return CompiledDocument(tuple(grants), warnings=tuple(warnings))


class Lenses6(System):
    name = "lenses6"
    context_fields = frozenset()
    kinds = {
        "Role": Kind(beside=("statements", *DESCRIBING), read=_read_role),
        "Group": Kind(principals=PEOPLE, beside=("roles", *DESCRIBING), read=_read_group),
    }
    deny_rule = "L6-DECIDE-DENY-WINS"
    default_rule = "L6-DECIDE-DEFAULT-DENY"
    subject_types = ("user", *SERVICE_ACCOUNT)
    subjects = PRINCIPALS
    claims = (CLAIM,)
    name_of_resource = staticmethod(resource_name)

    def held_by(self, kind: str, name: str, fields: frozenset[str]) -> Iterator[str]:
        """Those that have the role, those that are in the group or claim it (L6-Q10)."""
        if kind == "Role" or "statements" in fields:
            yield f"role:{name}"
        if kind == "Group" or not fields.isdisjoint(("roles", *PEOPLE)):
            yield from (f"group:{name}", f"{CLAIM}{name}")

    def notation(self, grant: Grant) -> tuple[str, str]:
        """An action and a resource pattern of a statement."""
        return written_action(grant.permission), written_resource(grant.object)

    def actions(self) -> list[str]:
        return [f"{service}:{name}" for service, names in catalogue.catalogue()["operations"].items() for name in names]

    def resource_types(self) -> list[str]:
        """Those of the catalogue, each with its service: ``kafka:topic``."""
        services = catalogue.catalogue()["resources"]
        return [f"{service}:{type_}" for service, types in services.items() for type_ in types]

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """The parts of the LRN, whichever separator and name of the service it is written with (L6-Q1, L6-Q3)."""
        try:
            return resource_name(request.resource.id)
        except Unanswerable:
            return (request.resource.id,)

    def requested_type(self, request: Request) -> str:
        """Service and type of an LRN."""
        try:
            return ":".join(resource_name(request.resource.id)[:2])
        except Unanswerable:
            return ""

    def resource_type(self, action: str, resource: str) -> str:
        """``lrn`` for every resource."""
        return "lrn"

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """One atom: the operation on the resource (L6-MATCH-STATEMENT)."""
        subject = request.subject.id
        if not subject.startswith(PRINCIPALS) or subject in PRINCIPALS:
            message = f"subject {subject!r} is not user:NAME or service-account:NAME"
            raise Unanswerable("unknown-principal", message, "L6-PRINCIPAL")
        if request.subject.type in SERVICE_ACCOUNT and not subject.startswith(PRINCIPALS[1]):
            message = f"subject {subject!r} is no service account, as its type {request.subject.type!r} says"
            raise Unanswerable("unknown-principal", message, "L6-PRINCIPAL")
        action, resource = action_name(request.action.name), resource_name(request.resource.id)
        needed = PermissionCheck(action, resource, "L6-DECIDE-ALLOW", request.action.name, request.resource.id)
        groups = claimed(request, "groups", "L6-GROUP", trust)
        principals = (subject, *[CLAIM + group for group in groups.names])
        return AuthorizationQuery(
            principals, _in_its_letter_case(needed), claims=groups.used, untrusted=groups.untrusted
        )

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """What changes users, roles and Lenses itself, and the lone ``*``."""
        entries = catalogue.catalogue()["privileged_permissions"]
        return read_privileged_permissions(entries, action_pattern, resource_pattern)


def _in_its_letter_case(needed: PermissionCheck) -> Expression:
    """An operation of the catalogue in another letter case is none, and passes by a deny of the right one: no allow."""
    meant = catalogue.other_case(*needed.permission)
    if not meant:
        return needed
    return All((needed, Condition(None, f"{needed.permission_text} {meant}", "L6-ACTION-FORMAT")), "L6-ACTION-FORMAT")


def _small_enough(validator: Validator, statements: list[Validator]) -> list[Validator]:
    """The statements; none of them, and an error, when there are too many to read."""
    errors = len(validator.errors)
    if (pairs := sum(map(_pairs, statements))) > MAX_PAIRS:
        validator.error(f"{pairs} pairs of an action and a resource; at most {MAX_PAIRS}: split the role", "statements")
    return statements if len(validator.errors) == errors else []


def _pairs(statement: Validator) -> int:
    written = (statement.raw("action"), statement.raw("resource"))
    actions, resources = (len(value) if isinstance(value, list | tuple) else 1 for value in written)
    return actions * resources


class _Written(msgspec.Struct, frozen=True):
    """A pattern of a statement, with its warnings. Of an action ``types`` are those of its resources.

    ``kinds``: of a resource (service, type), of an action those of the resources that it may be on.
    """

    pattern: Pattern
    warnings: tuple[str, ...]
    kinds: frozenset[tuple[str, str]]
    types: tuple[str, ...] = ()


_ACTIONS: Cache[str, _Written] = Cache()
_RESOURCES: Cache[str, _Written] = Cache()
LONGEST = 256  # characters of a text that is kept: of 100,000 statements most say a pattern that another says too
WRITTEN_BYTES = 1_000


def _action(text: str) -> _Written:
    """An action pattern; raises ValueError."""
    pattern, types = action_pattern(text), catalogue.types_of(text)
    kinds = frozenset(kind for type_ in types for kind in catalogue.kinds_including(*type_.split(":")))
    return _Written(pattern, tuple(catalogue.action_warnings(text)), kinds, tuple(sorted(types)))


def _resource(text: str) -> _Written:
    """A resource pattern; raises ValueError."""
    pattern = resource_pattern(text)
    kind = _kind_of(pattern)
    return _Written(pattern, tuple(catalogue.resource_warnings(text, *kind)), frozenset((kind,)))


def _read_statement(document: Document, validator: Validator, number: int, warnings: list[str]) -> Iterator[Grant]:
    """One grant for each pair of an action pattern and a resource pattern (L6-STATEMENT)."""
    effect = validator.one_of("effect", (ALLOW, DENY))  # required: one without an effect never grants (L6-Q13)
    actions = _patterns(validator, "action", _action, _ACTIONS)
    resources = _patterns(validator, "resource", _resource, _RESOURCES)
    validator.reject_unknown("sid")
    if not effect or validator.errors:
        return
    warnings += [f"{validator.where}: {text}" for text in _warnings(actions, resources)]
    statement_id = StatementId(str(document.key), number)
    principal, verdict = f"role:{document.key.name}", ALLOW if effect == ALLOW else DENY
    # A deny too counts where action and resource both match (L6-Q12); the order of statements is nothing (L6-ORDER).
    for action in actions.values():
        for resource in resources.values():
            yield Grant(principal, verdict, action.pattern, resource.pattern, statement_id, document.window)


def _patterns(
    validator: Validator, field: str, parse: Callable[[str], _Written], cache: Cache[str, _Written]
) -> dict[str, _Written]:
    """The field's patterns by what was written; one text stands for a list of one (L6-Q18)."""
    patterns: dict[str, _Written] = {}
    errors = len(validator.errors)
    for text in validator.texts(field, one=True):
        try:
            patterns[text] = cache.get(text) or _parsed(text, parse, cache)
        except ValueError as error:
            validator.error(f"{text!r} {error}", field)
    if not patterns and len(validator.errors) == errors:
        validator.error("at least one is needed (L6-STATEMENT)", field)
    return patterns


def _parsed(text: str, parse: Callable[[str], _Written], cache: Cache[str, _Written]) -> _Written:
    written = parse(text)
    if len(text) <= LONGEST:
        cache.hold(text, written, WRITTEN_BYTES + len(text))
    return written


def _warnings(actions: dict[str, _Written], resources: dict[str, _Written]) -> Iterator[str]:
    """Valid, and perhaps not what was meant (L6-Q2, L6-Q4, L6-Q16)."""
    for written in (*actions.values(), *resources.values()):
        yield from written.warnings
    kinds = frozenset[tuple[str, str]]().union(*[resource.kinds for resource in resources.values()])
    for text, action in actions.items():
        if action.types and kinds.isdisjoint(action.kinds):
            yield f"action {text}: is on {', '.join(action.types)}, and no resource of the statement is one"


def _kind_of(pattern: Pattern) -> tuple[str, str]:
    """(service, type) of a resource pattern; "" for what it leaves open."""
    texts = [part.text for part in pattern.parts[:2]]
    return (texts[0] if texts else "", texts[1] if len(texts) > 1 else "")
