"""Lenses 6 IAM translated: roles to grants, groups to memberships, a request to one atom.

Principals: the subject's id (``user:NAME``, ``service-account:NAME``), ``claim:NAME`` for a group that the
request claims, ``group:NAME`` and ``role:NAME`` for documents.
"""

import re
from collections.abc import Callable, Iterator

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
from policy.systems.kit.privileged import PrivilegedPermission, read_powers
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


class Lenses6(System):
    """The translator."""

    name = "lenses6"
    kinds = {
        "Role": Kind(beside=("statements", *DESCRIBING)),
        "Group": Kind(principals=PEOPLE, beside=("roles", *DESCRIBING)),
    }
    deny_rule = "L6-DECIDE-DENY-WINS"
    default_rule = "L6-DECIDE-DEFAULT-DENY"
    subject_types = ("user", *SERVICE_ACCOUNT)
    subjects = PRINCIPALS
    claims = (CLAIM,)
    name_of_resource = staticmethod(resource_name)

    def read(self, document: Document) -> CompiledDocument:
        """A Role's statements as grants to the role (L6-ROLE), a Group as memberships (L6-GROUP)."""
        return _read_role(document) if document.key.kind == "Role" else _read_group(document)

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
        """Those of the catalogue."""
        return [f"{service}:{name}" for service, names in catalogue.catalogue()["operations"].items() for name in names]

    def resource_types(self) -> list[str]:
        """Those of the catalogue, each with its service: ``kafka:topic``."""
        services = catalogue.catalogue()["resources"]
        return [f"{service}:{type_}" for service, types in services.items() for type_ in types]

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
        whole = _in_its_letter_case(needed)
        return AuthorizationQuery(
            _principals_of(subject, groups.names), whole, claims=groups.used, untrusted=groups.untrusted
        )

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """What changes users, roles and Lenses itself, and the lone ``*``."""
        return read_powers(catalogue.catalogue()["privileged_permissions"], action_pattern, resource_pattern)


def _in_its_letter_case(needed: PermissionCheck) -> Expression:
    """An operation of the catalogue in another letter case is none, and passes by a deny of the right one: no allow."""
    meant = catalogue.other_case(*needed.permission)
    if not meant:
        return needed
    return All((needed, Condition(None, f"{needed.permission_text} {meant}", "L6-ACTION-FORMAT")), "L6-ACTION-FORMAT")


def _principals_of(subject: str, groups: tuple[str, ...]) -> tuple[str, ...]:
    """``groups``: sorted, each once."""
    return (subject, *[CLAIM + group for group in groups])


def _read_group(document: Document) -> CompiledDocument:
    form, group = Validator(document.spec), f"group:{document.key.name}"
    roles, members = form.texts("roles"), form.texts("members", required=False)
    sso_name = form.text("sso_name", required=False)
    for member in members:
        if not member.startswith(PRINCIPALS) or member in PRINCIPALS:
            form.error(f"{member!r} is not user:NAME or service-account:NAME", "members")
        if SEVERAL.search(member):
            form.error(f"{member!r} is more than one principal: write each as an item of its own", "members")
    form.reject_unknown(*DESCRIBING)
    form.finish()
    statement_id, window = StatementId(str(document.key)), document.window
    claims = {f"{CLAIM}{name}" for name in (document.key.name, sso_name) if name}
    into = [Membership(member, group, statement_id, window) for member in (*members, *sorted(claims))]
    onward = [Membership(group, f"role:{role}", statement_id, window) for role in roles]
    return CompiledDocument(memberships=(*into, *onward))


def _read_role(document: Document) -> CompiledDocument:
    form = Validator(document.spec)
    statements = _small_enough(form, form.forms("statements"))
    warnings: list[str] = []
    if form.has("data_policies"):
        warnings.append("data_policies are not enforced: every principal that may read sees unmasked data")
    grants = [g for number, s in enumerate(statements) for g in _read_statement(document, s, number, warnings)]
    form.reject_unknown(*DESCRIBING)
    form.finish()
    return CompiledDocument(tuple(grants), warnings=tuple(warnings))


def _small_enough(form: Validator, statements: list[Validator]) -> list[Validator]:
    """The statements; none of them, and an error, when there are too many to read."""
    errors = len(form.errors)
    if (pairs := sum(map(_pairs, statements))) > MAX_PAIRS:
        form.error(f"{pairs} pairs of an action and a resource; at most {MAX_PAIRS}: split the role", "statements")
    return statements if len(form.errors) == errors else []


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
LONGEST = 256  # characters of a text that is kept: statements say the same again and again
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


def _read_statement(document: Document, form: Validator, number: int, warnings: list[str]) -> Iterator[Grant]:
    """One grant for each pair of an action pattern and a resource pattern (L6-STATEMENT)."""
    effect = form.one_of("effect", (ALLOW, DENY))
    actions = _patterns(form, "action", _action, _ACTIONS)
    resources = _patterns(form, "resource", _resource, _RESOURCES)
    form.reject_unknown("sid")
    if not effect or form.errors:
        return
    warnings += [f"{form.where}: {text}" for text in _warnings(actions, resources)]
    statement_id = StatementId(str(document.key), number)
    principal, verdict = f"role:{document.key.name}", ALLOW if effect == ALLOW else DENY
    for action in actions.values():
        for resource in resources.values():
            yield Grant(principal, verdict, action.pattern, resource.pattern, statement_id, document.window)


def _patterns(
    form: Validator, field: str, parse: Callable[[str], _Written], known: Cache[str, _Written]
) -> dict[str, _Written]:
    """The field's patterns by what was written; one text stands for a list of one (L6-Q18)."""
    found: dict[str, _Written] = {}
    errors = len(form.errors)
    for text in form.texts(field, one=True):
        try:
            found[text] = known.get(text) or _parsed(text, parse, known)
        except ValueError as error:
            form.error(f"{text!r} {error}", field)
    if not found and len(form.errors) == errors:
        form.error("at least one is needed (L6-STATEMENT)", field)
    return found


def _parsed(text: str, parse: Callable[[str], _Written], known: Cache[str, _Written]) -> _Written:
    written = parse(text)
    if len(text) <= LONGEST:
        known.hold(text, written, WRITTEN_BYTES + len(text))
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
