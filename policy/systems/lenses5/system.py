"""Lenses 5 translated: groups to grants, inventories to facts, a request to the expression of its rule.

Principals: ``user:ID`` for a subject or member, ``claim:NAME`` for a group that the request claims, ``group:NAME``
for a Group document. The permissions of all groups of a user count (L5-Q1); there is no deny.
"""

import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

from policy.core.facts import Facts
from policy.core.model import AuthorizationQuery, Grant, Unanswerable
from policy.core.pattern import Exact, Name
from policy.core.request import Request
from policy.systems.kit.claims import claimed
from policy.systems.kit.privileged import PrivilegedPermission, read_privileged_permissions
from policy.systems.kit.query import all_of
from policy.systems.kit.system import UNTYPED, Kind, ObjectOf, System
from policy.systems.lenses5.catalogue import catalogue, find_action
from policy.systems.lenses5.description import describe
from policy.systems.lenses5.expression import ExpressionBuilder
from policy.systems.lenses5.groups import dataset, read_group
from policy.systems.lenses5.inventory import KINDS, read_inventory
from policy.systems.lenses5.target import find_target


class Lenses5(System):
    name = "lenses5"
    kinds = {
        "Group": Kind(principals=("members",), read=read_group),
        **{kind: Kind(fact=True, read=read_inventory) for kind in KINDS},
    }
    subject_types = ("user",)
    subjects = ("user:",)
    claims = ("claim:",)
    needed_properties = ("connection", "dataset")

    @functools.cached_property
    def context_fields(self) -> frozenset[str]:
        """All that the context may say of any thing."""
        return frozenset(name for thing in catalogue().things.values() for name in thing.fields)

    def held_by(self, kind: str, name: str, fields: frozenset[str]) -> Iterator[str]:
        """The members of the group, and those that claim it."""
        if kind == "Group":
            yield from (f"group:{name}", f"claim:{name}")

    def canonical_resource(self, request: Request) -> tuple[Any, ...]:
        """What the action is about, its name and the requested properties; as it is written where it cannot be read."""
        try:
            target = find_target(request, find_action(request.action.name))
        except Unanswerable:
            return (request.resource.id, request.resource.properties)
        return (target.noun, target.name or request.resource.id, dict(target.fields))

    def actions(self) -> list[str]:
        return list(catalogue().actions)

    def resource_type(self, action: str, resource: str) -> str:
        """What the action is about: ``topic``, ``consumer-group``, ``administration``, …"""
        entry = catalogue().actions.get(action)
        return entry.about.replace(" ", "-").lower() if entry else UNTYPED

    def object_of(self, request: Request) -> ObjectOf | None:
        """Of an action on a dataset: its rule is one permission on it, and no document describes it."""
        action, properties = catalogue().actions.get(request.action.name), request.resource.properties
        thing = catalogue().things.get(action.about) if action is not None else None
        if thing is None or thing.type is None or thing.document is not None or thing.fields:
            return None
        connection = properties.get("connection")
        if properties.get("dataset") != request.resource.id or not isinstance(connection, str):
            return None
        noun, after = action.about if action is not None else "", f" of connection {connection}"
        return ObjectOf(partial(dataset, connection), f"{noun} ", after, has_levels=False, scope=connection)

    def to_query(self, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
        """The expression of the action's rule on what the request is about; raises Unanswerable."""
        action = find_action(request.action.name)
        descriptions, notes = describe(request, action, facts, "facts" in trust)
        parts = (ExpressionBuilder(description).of_rule(action.rule) for description in descriptions)
        groups, subject = claimed(request, "groups", "L5-Q1", trust), f"user:{request.subject.id}"
        return AuthorizationQuery(
            principals=(subject, *(f"claim:{group}" for group in groups.names)),
            expression=all_of(parts, action.rule),
            claims=(*groups.used, *(("facts",) if any(d.rests_on_claims for d in descriptions) else ())),
            notes=notes,
            untrusted=groups.untrusted,
        )

    def may_grant(self, grant: Grant, permission: Name) -> bool:
        """A permission of the namespace's connection type (L5-NS-AVAILABLE)."""
        return grant.permission.parts[:-1] == tuple(map(Exact, permission[:-1]))

    def privileged_permissions(self) -> tuple[PrivilegedPermission, ...]:
        """The administration permissions, and every dataset of a connection."""
        return read_privileged_permissions(catalogue().privileged_permissions)
