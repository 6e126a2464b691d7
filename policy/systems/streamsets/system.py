"""StreamSets Control Hub translated.

Principals: ``user:NAME``, ``group:NAME`` and ``role:ORGANIZATION/NAME``; a request can name none, as its
subject is a bare name. Grants are on versions of objects, requests on those that count (moments.py).
There is no deny, and no level includes another (SS-LEVEL-NO-IMPLICATION, SS-Q18).
"""

from collections.abc import Callable, Iterator
from typing import Any

from policy.core.facts import Facts
from policy.core.model import AnyOf, AuthorizationQuery, Condition, Expression, Grant, Unanswerable
from policy.core.pattern import Name
from policy.core.request import Request
from policy.systems.kit.fact_changes import FactChange, Opening
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import Need, all_of
from policy.systems.kit.system import Kind, NamesKinds
from policy.systems.streamsets.access import Access
from policy.systems.streamsets.catalogue import (
    ANY_OBJECT,
    ORGANIZATION,
    Operation,
    catalogue,
    operation,
    operations,
    type_of,
)
from policy.systems.streamsets.needs import Needs, checked
from policy.systems.streamsets.objects import read_object
from policy.systems.streamsets.organizations import (
    leaves_enforcement,
    read_organization,
    role_name,
    tasks_opened,
    unenforced_without_name,
)
from policy.systems.streamsets.people import User, read_active_job, read_session, user_of
from policy.systems.streamsets.records import (
    ACTIVE_JOB,
    ANYTHING,
    ENGINES,
    FULL,
    OBJECT,
    OWNER,
    SESSION,
    Organization,
    Thing,
)
from policy.systems.streamsets.records import ORGANIZATION as ORGANIZATION_KIND


class StreamSets(NamesKinds):
    name = "streamsets"
    context_fields = frozenset({"connection", "engine", "fragment", "grant", "new_owner", "version", "via"})
    kinds = {
        ORGANIZATION_KIND: Kind(missed=True, read=read_organization),
        OBJECT: Kind(point_in_time=True, missed=True, read=read_object),
        SESSION: Kind(fact=True, since="login_at", read=read_session),
        ACTIVE_JOB: Kind(fact=True, since="started_at", read=read_active_job),
    }
    subject_types = ("user",)
    subjects = ("user:",)
    claims = ("group:", "role:")

    def claimed_name(self, principal: str) -> str:
        """Of a role its own name: the subject's organization is another claim."""
        return role_name(principal) or super().claimed_name(principal)

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """All objects that the operation is on, in any order; as they are written where they cannot be read."""
        resource = request.resource
        try:
            return tuple(sorted(_objects(operation(request.action.name), request)))
        except Unanswerable:
            return (resource.id, resource.properties.get("objects"))

    def actions(self) -> list[str]:
        return list(operations())

    def resource_types(self) -> list[str]:
        """The types of objects, and the organization's."""
        return [*catalogue().types, ORGANIZATION]

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """What the operation needs, and the role that goes with it."""
        wanted, who = operation(request.action.name), user_of(request, facts, trust)
        access = Access(facts, who)
        of = _on_organization if wanted.resource == ORGANIZATION else _on_objects
        needed = all_of(of(wanted, request, access), wanted.rules[0])
        return AuthorizationQuery(who.principals, needed, who.claims, (*who.notes, *access.notes), who.untrusted)

    def grants_that_count(self, request: Request, facts: Facts, trust: frozenset[str]) -> Callable[[Grant], bool]:
        """Those on the versions of objects that count for the user (SS-LOGIN)."""
        return Access(facts, user_of(request, facts, trust)).counts

    def opened_by(self, change: FactChange, facts: Facts) -> Iterator[Opening]:
        """Anything, but for an object that is published again as it was, and an organization's settings.

        The switch of the latter is a grant, and of its tasks' roles those count that are no longer needed. An object
        that moves to an organization without enforcement is open to everyone there (SS-ENF-OFF); so are those that name
        none, once there is no other organization.
        """
        before, after = change.bodies
        if isinstance(before, Organization) and isinstance(after, Organization):
            for task in tasks_opened(before.task_roles, after.task_roles):
                yield Opening(task, lifts="a role that the task needed is no longer needed")
        elif isinstance(before, Organization):
            yield Opening()
            if name := unenforced_without_name(facts):
                lifts = f"objects that name no organization are in {name}, which enforces no permissions"
                yield Opening(lifts=lifts, severity="high")
        elif not (isinstance(before, Thing) and isinstance(after, Thing) and after.repeats(before)):
            yield Opening()
            if isinstance(before, Thing) and isinstance(after, Thing) and leaves_enforcement(before, after, facts):
                lifts = "it is in an organization without enforcement now"
                yield Opening(resource=change.name, lifts=lifts, severity="high")

    def may_grant(self, grant: Grant, permission: Name) -> bool:
        """A level that is shared; ownership (SS-SHARE) and the rights of roles (SS-ADMIN-FULL) are no shares."""
        return permission not in (OWNER, FULL, ENGINES, ANYTHING)

    def retention_floor(self, facts: Facts) -> int | None:
        """The oldest last login or start of an active job; users without a known login look at the newest."""
        # What was shared at a login counts until the next one (SS-LOGIN), and for a run until it ends (SS-ACTIVE-JOB).
        logins = (session.login_at for session in facts.bodies(SESSION))
        starts = (run.started_at for run in facts.bodies(ACTIVE_JOB))
        return min((*logins, *starts), default=None)

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """Everything, for everyone, with enforcement off; and ownership that changes hands."""
        return read_privileged_permissions(catalogue().privileged_permissions)


def _on_organization(wanted: Operation, request: Request, access: Access) -> Iterator[Expression]:
    """An operation on the organization itself, ``organization:ID`` (SS-ENF-TOGGLE)."""
    type_, _, organization = request.resource.id.partition(":")
    if type_ != ORGANIZATION or not organization:
        message = f"resource: {request.action.name} is on organization:ID, not on {request.resource.id!r}"
        raise Unanswerable("wrong-resource", message)
    body = access.member(organization)
    yield body if isinstance(body, Condition) else access.administrator(organization, wanted.rules[0])


def _on_objects(wanted: Operation, request: Request, access: Access) -> Iterator[Expression]:
    """What is needed on each object, all or nothing (SS-SHARE-BULK, SS-Q17), and the task's role."""
    needs = Needs(access, request.context, wanted.rules[0])
    if wanted.resource != ANY_OBJECT:
        _check_single(request)
    for name in _objects(wanted, request):
        yield needs.on(_need(wanted, request, type_of(name)), name)
        yield from _task_role(access, request.action.name, name)


def _check_single(request: Request) -> None:
    """Raise Unanswerable where an action on one object names others: an allow of the one would pass for all of them."""
    if request.resource.properties.get("objects") not in (None, [request.resource.id]):
        message = f"resource.properties.objects: {request.action.name} is on one object: send a request for each"
        raise Unanswerable("malformed-resource", message, "SS-SHARE-BULK")


def _objects(wanted: Operation, request: Request) -> tuple[str, ...]:
    """The resource; where several are possible also properties.objects, beside which its id may be no object's."""
    several = request.resource.properties.get("objects") if wanted.resource == ANY_OBJECT else None
    if several is None:
        return (checked(request.resource.id, wanted.resource),)
    if not isinstance(several, list) or not several or not all(isinstance(name, str) for name in several):
        message = "resource.properties.objects must be a list of at least one TYPE:NAME"
        raise Unanswerable("malformed-resource", message, "SS-SHARE-BULK")
    return tuple(dict.fromkeys((*_if_object(request.resource.id), *(checked(name, ANY_OBJECT) for name in several))))


def _if_object(name: str) -> tuple[str, ...]:
    try:
        type_of(name)
    except ValueError:
        return ()
    return (name,)


def _need(wanted: Operation, request: Request, object_type: str) -> Need:
    via = request.context.get("via")
    if via is None or not wanted.via:
        return wanted.instead.get(object_type) or wanted.needs
    if not isinstance(via, str) or via not in wanted.via:
        message = f"context.via: {via!r} is not one of {', '.join(wanted.via)}"
        raise Unanswerable("malformed-context", message, wanted.rules[0])
    return wanted.via[via]


def _task_role(access: Access, action: str, name: str) -> Iterator[Expression]:
    """One role of every list that goes with the task, or the administrator's; also with enforcement off (SS-Q2)."""
    body = access.organization_of_object(name)
    if isinstance(body, Condition):
        return
    organization, record = body
    for roles in record.task_roles.get(action, ()):
        condition = Condition(*_holds_one(access.user, roles, action), rule="SS-TASK-ROLE", code="task-role")
        yield AnyOf((condition, access.administrator(organization, "SS-Q2")), "SS-TASK-ROLE")


def _holds_one(who: User, roles: tuple[str, ...], action: str) -> tuple[bool, str]:
    fitting = [role for role in roles if role in who.roles]
    if fitting:
        return True, f"{who.name} has the role {fitting[0]}, which goes with {action}"
    return False, f"{action} needs a role: one of {', '.join(roles)}"
