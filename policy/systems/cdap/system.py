"""CDAP translated: privileges to grants, entities to facts, a request to what its action needs (see catalogue.yaml).

The single-entity rules ask for the privilege on the entity itself (CD-EXACT-ENTITY), and one privilege never stands for
another (CD-NO-IMPLICATION). Groups and roles are what the request claims of its user (CD-Q9).
"""

import functools

from policy.core.facts import Facts
from policy.core.model import All, AuthorizationQuery, Grant, Unanswerable
from policy.core.pattern import Name, exactly
from policy.core.request import Request
from policy.systems.cdap.catalogue import actions, catalogue, need_of, resource_kinds
from policy.systems.cdap.entities import KIND as ENTITY
from policy.systems.cdap.entities import read_entity
from policy.systems.cdap.expression import ExpressionBuilder, named_entity
from policy.systems.cdap.grants import PRINCIPAL_KINDS, SINGLED_OUT, read_backend, read_grant
from policy.systems.kit.claims import claimed
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import Need, check_name, expression
from policy.systems.kit.system import Kind, NamesKinds

CLAIMS = {"groups": "group", "roles": "role"}  # claim -> prefix of its principals


class Cdap(NamesKinds):
    name = "cdap"
    kinds = {
        ENTITY: Kind(fact=True, read=read_entity),
        "Grant": Kind(principals=PRINCIPAL_KINDS, read=read_grant),
        "Backend": Kind(principals=("admins",), read=read_backend),
    }
    subject_types = ("user",)
    subjects = ("user:",)
    claims = tuple(f"{prefix}:" for prefix in CLAIMS.values())

    @functools.cached_property
    def context_fields(self) -> frozenset[str]:
        return frozenset({"mode", "to", "from", "privileges", *catalogue()["context"]})

    def actions(self) -> list[str]:
        return list(actions())

    def resource_types(self) -> list[str]:
        """The kinds of entity."""
        return list(catalogue()["tree"])

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """What the action needs of the entity and of what the context names."""
        need = need_of(request.action.name)
        entity = named_entity(request.resource.id, resource_kinds(request.action.name, need), "resource.id")
        _check_context(request, need)
        by_claim = {claim: claimed(request, claim, "CD-Q9", trust) for claim in CLAIMS}
        untrusted = tuple(claim for asserted in by_claim.values() for claim in asserted.untrusted)
        groups = (f"{CLAIMS[claim]}:{name}" for claim, asserted in by_claim.items() for name in asserted.names)
        principals = (f"user:{request.subject.id}", *groups)
        builder = ExpressionBuilder(request, entity, facts, trust, principals)
        needed = expression(need, builder.leaf) or All((), need.get("rule", ""))
        claims = tuple(sorted({*builder.claims, *(claim for asserted in by_claim.values() for claim in asserted.used)}))
        return AuthorizationQuery(principals, needed, claims, untrusted=untrusted)

    def opened_by(self, change: FactChange, facts: Facts) -> tuple[Opening, ...]:
        """Anything where entities come, go or move; what grants single out their own changes say."""
        return () if change.kind == SINGLED_OUT else (Opening(),)

    def may_grant(self, grant: Grant, permission: Name) -> bool:
        """A privilege on the entities of a Grant, not on those above them (CD-EXACT-ENTITY)."""
        names = [(privilege,) for privilege in catalogue()["privileges"]]
        return permission in names and grant.permission in map(exactly, names)

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """The backend's administration, ADMIN on what others live in, and the lone ``*``."""
        return read_privileged_permissions(catalogue()["privileged_permissions"])


def _check_context(request: Request, need: Need) -> None:
    """What says how or to whom, and needs nothing by itself, must still be well-formed (CD-STREAM-SEND, CD-GRANT)."""
    mode, modes = request.context.get("mode"), need.get("modes")
    if modes and mode is not None and mode not in modes:
        raise Unanswerable(
            "malformed-context", f"context.mode: {mode!r} is not one of {', '.join(modes)}", need["rule"]
        )
    if need.get("of") == "backend":
        _check_grant(request)


def _check_grant(request: Request) -> None:
    for field in ("to", "from"):
        user = request.context.get(field)
        if user is not None and (not isinstance(user, str) or not user):
            raise Unanswerable("malformed-context", f"context.{field} must be the name of a user", "CD-GRANT")
        check_name(user or "", f"context.{field}")
    allowed, privileges = catalogue()["privileges"], request.context.get("privileges")
    is_list = isinstance(privileges, list) and bool(privileges)
    if privileges is not None and not (is_list and all(privilege in allowed for privilege in privileges)):
        message = f"context.privileges must be a list of some of {', '.join(allowed)}"
        raise Unanswerable("malformed-context", message, "CD-GRANT")
