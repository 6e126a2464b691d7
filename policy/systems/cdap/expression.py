"""The leaves of the catalogue's needs, read for one request.

What the context names adds needs and never takes any away; where it takes the claim ``facts`` to say so and the request
topic is not trusted with it, the leaf is unknown. A need on "all of" an unknown or empty collection never holds.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from policy.core.facts import Facts
from policy.core.model import All, AnyOf, Condition, Expression, PermissionCheck, Unanswerable
from policy.core.pattern import Name
from policy.core.request import Request
from policy.systems.cdap.catalogue import catalogue, has_below, lineage
from policy.systems.cdap.descendants import Descendants
from policy.systems.cdap.entities import parse_entity, written
from policy.systems.cdap.grants import ADMINISTRATION, BACKEND
from policy.systems.cdap.tree import Tree
from policy.systems.kit.query import Need, any_of

PERMISSION_TEXTS = {"ANY": "any of READ, WRITE, EXECUTE, ADMIN", "BACKEND": "administration"}
REFUSED_NAMED = 100  # of the refused documents that may change an answer, the first by name


class ExpressionBuilder:
    """One request with what is known of its entities. ``claims``: those that its needs have used so far.

    ``principals``: all that the subject is.
    """

    def __init__(
        self, request: Request, entity: Name, facts: Facts, trust: frozenset[str], principals: Sequence[str]
    ) -> None:
        self._context = request.context
        self._entity = entity
        self._tree = Tree(facts)
        self._inside = Descendants(facts, self._tree, principals)
        self._trust = trust
        self.claims: set[str] = set()

    def leaf(self, need: Need, rule: str) -> Expression | None:
        """The requirement of one leaf, None where the context does not name what it is about."""
        if "each" in need:
            return self._removed(need, rule) if need["each"] == "removed" else self._streams(need, rule)
        if "some" in need:
            return self._below(rule)
        field = need.get("known") or need["of"]
        if field not in catalogue()["context"]:
            return self._on(need, rule)
        if self._context.get(field) is None:
            return None
        claim = catalogue()["context"][field].get("claim")
        if claim and claim not in self._trust:
            return Condition(
                None, f"context.{field} is {claim}, which this request topic is not trusted to claim", rule
            )
        self.claims.update([claim] if claim else ())
        return self._known(field, rule) if "known" in need else self._named(need, field, rule)

    def _on(self, need: Need, rule: str) -> Expression:
        if need["of"] == "backend":
            return PermissionCheck(
                ADMINISTRATION, BACKEND, rule, PERMISSION_TEXTS["BACKEND"], "the authorization backend"
            )
        if need["of"] == "entity" or self._entity[0] == need["of"]:
            return _holds(need["permission"], self._entity, rule)
        above = self._tree.parent(self._entity)
        if above is None:
            return Condition(None, f"the {need['of']} of {written(self._entity)} is not known", rule)
        return _holds(need["permission"], above, rule, f"the {need['of']} of {written(self._entity)}")

    def _named(self, need: Need, field: str, rule: str) -> Expression | None:
        """On everything that a field of the context names; None when it names nothing."""
        entities, because = self._field(field), f"context.{field} of the request"
        if not need.get("by") or self._context.get(need["by"]) is None:
            return _all([_holds(need["permission"], entity, rule, because) for entity in entities], rule)
        alternatives: list[Expression] = []
        for user in self._users(need["by"]):
            impersonated = f"{because}, held by {user}, who is impersonated"
            items = [_holds(need["permission"], entity, rule, impersonated, (f"user:{user}",)) for entity in entities]
            alternatives += filter(None, [_all(items, rule)])
        return any_of(alternatives, rule) if alternatives else None

    def _users(self, field: str) -> tuple[str, ...]:
        """The user that a Kerberos principal is: its name up to host and realm, or the whole of it; one of the two."""
        principal = self._field(field)[0][1]
        return tuple(dict.fromkeys((re.split("[/@]", principal, maxsplit=1)[0], principal)))

    def _known(self, field: str, rule: str) -> Condition:
        """Whether what the context names exists; what no document knows is new."""
        entity = self._field(field)[0]
        exists = self._tree.exists(entity)
        return Condition(exists, f"{written(entity)} {'exists' if exists else 'is new: no document knows it'}", rule)

    def _field(self, field: str) -> list[Name]:
        """The entities that a field of the context names; raises Unanswerable when it is malformed."""
        entry: Mapping[str, Any] = catalogue()["context"][field]
        value = self._context[field]
        texts = value if entry.get("list") else [value]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            what = "a list of texts" if entry.get("list") else "text"
            raise Unanswerable("malformed-context", f"context.{field} must be {what} of the form KIND:NAME", "CD-Q6")
        return [named_entity(text, entry["kinds"], f"context.{field}") for text in texts]

    def _below(self, rule: str) -> Expression | None:
        """ANY on something below (CD-LIST, CD-GET)."""
        if not has_below(self._entity[0]):
            return None
        because = f"which lies below {written(self._entity)}"
        others = self._inside.entities(self._entity)
        items: list[Expression] = [_holds("ANY", other, rule, because) for other in others]
        items += self._by_name(self._entity, rule)
        for other in others:
            items += self._by_name(other, rule, because)
        items += self._refused(self._kinds_below(), rule)
        return AnyOf(tuple(items), rule, f"nothing is known below {written(self._entity)}")

    def _by_name(self, entity: Name, rule: str, because: str = "") -> Iterator[PermissionCheck]:
        """ANY on something whose name says that it is below ``entity``, if names can say that."""
        permission = self._inside.by_name(entity) if has_below(entity[0]) else None
        if permission is not None:
            yield PermissionCheck(
                permission, entity, rule, PERMISSION_TEXTS["ANY"], f"something below {written(entity)}", because
            )

    def _kinds_below(self) -> list[str]:
        return [kind for kind in catalogue()["tree"] if self._entity[0] in lineage(kind)]

    def _removed(self, need: Need, rule: str) -> Expression | None:
        """On all that goes with a namespace (CD-DELETE-MANY)."""
        because = f"which goes with {written(self._entity)}"
        items = [_holds(need["permission"], entity, rule, because) for entity in self._tree.contents(self._entity)]
        lost = [
            Condition(None, f"it is not known in which namespace {name} is", rule)
            for name in self._tree.programs_without_namespace()[:1]
        ]
        return _all([*items, *lost, *self._unknown(rule), *self._refused(self._kinds_below(), rule)], rule)

    def _streams(self, need: Need, rule: str) -> Expression:
        """On all streams of a namespace; with none, nothing is dropped (CD-Q8)."""
        namespace = written(self._entity)
        streams = self._tree.children(self._entity, "stream")
        items = [_holds(need["permission"], stream, rule, f"a stream of {namespace}") for stream in streams]
        empty = All((), "CD-Q8", f"{namespace} holds no stream, so there is nothing to drop")
        return _all([*items, *self._unknown("CD-Q8"), *self._refused(["stream"], rule)], rule) or empty

    def _unknown(self, rule: str) -> list[Condition]:
        """That there may be more in a namespace than is known, where it has no document itself."""
        namespace = written(self._entity)
        message = f"what {namespace} holds is not known: there is no Entity document of it"
        return [] if self._tree.exists(self._entity) else [Condition(None, message, rule)]

    def _refused(self, kinds: Iterable[str], rule: str) -> list[Condition]:
        """A refused Entity document may say that there is something more."""
        refused = self._tree.refused_below(kinds)
        named = [f"cdap/Entity/{name} was refused" for name in refused[:REFUSED_NAMED]]
        if more := len(refused[REFUSED_NAMED:]):
            named.append(f"{more} more documents of cdap/Entity were refused")
        return [Condition(None, f"{text}, so where it lies is not known", rule) for text in named]


def named_entity(text: str, kinds: Sequence[str], path: str) -> Name:
    """The entity that ``text`` names, of one of ``kinds``; raises Unanswerable naming ``path``."""
    try:
        entity = parse_entity(text)
    except ValueError as error:
        raise Unanswerable("malformed-resource", f"{path}: {error}", "CD-Q6") from None
    if entity[0] not in kinds:
        message = f"{path}: {text!r} is a {entity[0]}, where {' or '.join(kinds)} is needed"
        raise Unanswerable("wrong-kind", message, "CD-Q6")
    return entity


def _holds(
    permission: str, entity: Name, rule: str, because: str = "", principals: tuple[str, ...] = ()
) -> PermissionCheck:
    text = PERMISSION_TEXTS.get(permission, permission)
    return PermissionCheck((permission,), entity, rule, text, written(entity), because, principals)


def _all(items: Sequence[Expression], rule: str) -> Expression | None:
    return All(tuple(items), rule) if items else None
