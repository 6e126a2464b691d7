"""Ververica Platform translated: assignments to grants, a request to the roles that suffice for it.

Principals: ``user:ID`` for the identifier that the identity provider sends, ``group:NAME`` for its groups. A user
whose identifier itself starts with ``group:`` is ``user:group:…``, so no group's assignment is his (VV-Q7).
A role is held on the object ``(namespace, WORKSPACE, NAMESPACE)`` or ``(workspace, WORKSPACE)``; all assignments
that fit add up, each in its own scope (VV-RESOLVE-ALL, VV-RESOLVE-UNION, VV-RESOLVE-SCOPED), and there is no deny
(VV-NO-DENY). Every request is decided by the assignments in force and the groups it comes with (VV-Q10).
"""

import functools
from collections.abc import Iterator
from typing import Any

import msgspec

from policy.core.document import Document
from policy.core.facts import Facts
from policy.core.model import (
    ALLOW,
    All,
    AuthorizationQuery,
    CompiledDocument,
    Condition,
    Expression,
    Grant,
    PermissionCheck,
    StatementId,
    Unanswerable,
)
from policy.core.names import fold
from policy.core.pattern import ANY, Exact, Pattern, exactly, part_text
from policy.core.request import Request, Resource
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import Need, check_name, expression
from policy.systems.kit.system import Kind, System
from policy.systems.kit.validator import Validator, one_fact
from policy.systems.ververica.authentication import KIND, claims_opened, groups_of, read_authentication
from policy.systems.ververica.catalogue import catalogue, need_of

USER, GROUP = "user:", "group:"  # VV-BIND-PREFIX-MATTERS
RESERVED = "ReservedKinds"
SCOPE = ("workspaceId", "namespaceId")  # properties of a resource


def _read_assignments(document: Document) -> CompiledDocument:
    validator = Validator(document.spec)
    entries = validator.forms("initialAccess")
    grants = tuple(_read_entry(document, entry, number) for number, entry in enumerate(entries))
    validator.reject_unknown()
    validator.finish()
    return CompiledDocument(grants)


def _read_entry(document: Document, entry: Validator, number: int) -> Grant:
    """One role for one principal at one scope (VV-BIND-SHAPE, VV-Q8, VV-Q9); errors stay in the validator."""
    is_group = str(entry.raw("userId")).startswith(GROUP)
    user = entry.text("userId", blanks=is_group)  # a group may have such a name (VV-Q11)
    if user == GROUP:
        entry.error(f"names no group after {GROUP} (VV-BIND-GROUP)", "userId")
    workspace, role = entry.text("workspaceId"), entry.one_of("role", catalogue()["roles"])
    namespace = entry.text("namespaceId", required=False)
    if role:
        _check_scope(entry, role)
    entry.reject_unknown()
    object_ = ("namespace", workspace, namespace) if namespace else ("workspace", workspace)
    # With the prefix a group of exactly that name, without it one user (VV-BIND-GROUP-EXACT, VV-BIND-USER).
    principal = user if is_group else f"{USER}{user}"
    statement_id = StatementId(str(document.key), number)
    return Grant(principal, ALLOW, exactly((role,)), exactly(object_), statement_id, document.window)


def _check_scope(entry: Validator, role: str) -> None:
    """A role is assigned at its own scope, never narrower or wider (VV-Q3, VV-Q4)."""
    scope = catalogue()["roles"][role]
    if scope == "namespace" and not entry.has("namespaceId"):
        entry.error(f"required: {role} is a role of a namespace (VV-Q3)", "namespaceId")
    if scope == "workspace" and entry.has("namespaceId"):
        entry.error(f"must be left out: {role} is a role of a workspace (VV-Q4)", "namespaceId")


def _read_reserved(document: Document) -> CompiledDocument:
    """Kinds that Editors may not write (VV-Q1), however they are written: a misspelling must not open one."""
    validator = Validator(document.spec)
    reserved = sorted({fold(kind) for kind in validator.texts("kinds")})
    return one_fact(document, validator, tuple(reserved), (("all", ""), *(("kind", kind) for kind in reserved)))


class Ververica(System):
    name = "ververica"
    kinds = {
        "InitialAccess": Kind(principals=("userId",), read=_read_assignments),
        KIND: Kind(missed=True, read=read_authentication),
        RESERVED: Kind(missed=True, read=_read_reserved),
    }
    default_rule = "VV-NO-DENY"
    subject_types = ("user",)
    subjects = (USER,)
    claims = (GROUP,)
    reads_resource_id = False
    context_fields = frozenset()
    needed_properties = SCOPE

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """Kind (in any letter case), id, workspace and namespace."""
        resource = request.resource
        scope = (resource.properties.get(field) for field in SCOPE)
        return (resource.type.casefold(), resource.id, *scope)

    def actions(self) -> list[str]:
        return list(catalogue()["actions"])

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """The roles that suffice for the kind of access, in the namespace of the request."""
        need = need_of(request.action.name)
        workspace, namespace = (_property(request.resource, field) for field in SCOPE)
        leaf = functools.partial(_leaf, request.resource.type, workspace, namespace, facts)
        needed = expression(need, leaf) or All((), self.default_rule)
        groups, notes = groups_of(request, facts, trust)
        principals = (f"{USER}{request.subject.id}", *(f"{GROUP}{group}" for group in groups.names))
        return AuthorizationQuery(principals, needed, groups.used, notes, groups.untrusted)

    def opened_by(self, change: FactChange, facts: Facts) -> Iterator[Opening]:
        """Kinds that are no longer kept from Editors (VV-Q1); groups that tokens give now (VV-GROUP-SOURCE).

        Of what, only the assignments of these groups say: it may be a whole workspace.
        """
        if change.kind != RESERVED:
            yield Opening()
            for protocol, claim in claims_opened(change, facts):
                yield Opening(lifts=f"groups are taken from {claim} of {protocol} tokens now", severity="high")
        elif change.is_first_of(facts.find(RESERVED, "all", "")):  # without any document Editors may write none
            yield Opening("write", "every kind that is not reserved", lifts=f"the first {RESERVED} document opens them")
        elif facts.find(RESERVED, "all", ""):
            before, after = change.bodies
            for kind in sorted(set(before or ()) - set(after or ())):
                if not facts.find(RESERVED, "kind", kind):
                    yield Opening("write", kind, lifts="the kind is no longer kept from Editors")

    def implied(self, grant: Grant) -> Iterator[Grant]:
        """The roles that its role implies, in its namespace or in all of its workspace."""
        [role] = map(part_text, grant.permission.parts)
        kind, *scope = grant.object.parts
        object_ = grant.object if part_text(kind) == "namespace" else Pattern((Exact("namespace"), *scope, ANY))
        for other in catalogue()["implies"].get(role, ()):
            yield msgspec.structs.replace(grant, permission=exactly((other,)), object=object_)

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """The roles that are more than the use of a namespace."""
        return read_privileged_permissions(catalogue()["privileged_permissions"])


def _leaf(kind: str, workspace: str, namespace: str, facts: Facts, need: Need, rule: str) -> Expression:
    """The role, in the namespace of the request or in its workspace (VV-SCOPE-NAMESPACE, VV-SCOPE-WORKSPACE-ID)."""
    if "fact" in need:
        return _open_to_editors(kind, facts, rule)
    role = need["permission"]
    if (scope := catalogue()["roles"][role]) == "workspace":
        return PermissionCheck((role,), (scope, workspace), rule, role, f"workspace {workspace}")
    text = f"namespace {namespace} of workspace {workspace}"
    return PermissionCheck((role,), (scope, workspace, namespace), rule, role, text)


def _property(resource: Resource, field: str) -> str:
    value = resource.properties.get(field)
    if not isinstance(value, str) or not value:
        message = f"resource.properties.{field} is required; it must be text that is not empty"
        raise Unanswerable("malformed-resource", message, "VV-SCOPE-WORKSPACE-ID")
    check_name(value, f"resource.properties.{field}")
    return value


def _open_to_editors(kind: str, facts: Facts, rule: str) -> Condition:
    """Whether Editors may write the kind; without any ReservedKinds document none (VV-Q1)."""
    if keeping := sorted(facts.find(RESERVED, "kind", fold(kind))):
        return Condition(False, f"{kind} is kept from Editors by ververica/{RESERVED}/{keeping[0]}", rule)
    if broken := facts.broken(RESERVED):
        message = f"ververica/{RESERVED}/{broken[0]} was refused, so what is kept from Editors is not known"
        return Condition(None, message, rule)
    if not facts.find(RESERVED, "all", ""):
        return Condition(False, f"no {RESERVED} document says which kinds Editors may write", rule)
    return Condition(True, f"{kind} is not among the kinds kept from Editors", rule)
