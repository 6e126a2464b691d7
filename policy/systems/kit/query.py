"""A request as a query of its system, and the all/any trees of a system's catalogue as expressions."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from policy.core.facts import Facts
from policy.core.model import All, AnyOf, AuthorizationQuery, Expression, Unanswerable
from policy.core.names import fault, is_simple
from policy.core.request import Request
from policy.systems.kit.system import System


def authorization_query(system: System, request: Request, facts: Facts, trust: frozenset[str]) -> AuthorizationQuery:
    """See `System.to_query`; raises Unanswerable too for a subject type that the system does not have, and for a name
    that may be taken for another one.
    """
    subject, resource = request.subject, request.resource
    if system.subject_types and subject.type not in system.subject_types:
        types = ", ".join(system.subject_types)
        raise Unanswerable("unknown-subject-type", f"subject.type {subject.type!r} is not one of {types}")
    if not is_simple(subject.id + request.action.name + resource.type + resource.id):
        check_name(subject.id, "subject.id")
        check_name(request.action.name, "action.name")
        check_name(resource.type, "resource.type")
        check_name(resource.id, "resource.id")
    return system.to_query(with_context_fields(request, system), facts, trust)


def with_context_fields(request: Request, system: System) -> Request:
    """The request with as much of its context as its system is shown: on nothing else any decision can depend."""
    context, fields = request.context, system.context_fields
    if not context or fields is None or fields >= context.keys():
        return request
    return msgspec.structs.replace(request, context={name: context[name] for name in context if name in fields})


def check_name(text: str, place: str) -> None:
    """Raise Unanswerable when ``text``, at ``place`` in a request, may be taken for another name."""
    if wrong := fault(text):
        raise Unanswerable("malformed-name", f"{place} {text!r} {wrong}")


Need = Mapping[str, Any]
Leaf = Callable[[Need, str], Expression | None]


def expression(need: Need, leaf: Leaf, rule: str = "") -> Expression | None:
    """``need`` as an expression. ``leaf`` reads a leaf under a rule; None: it asks nothing of this request.

    A tree that asks nothing is None too; at the top the caller must take that for "never".
    """
    rule = need.get("rule", rule)
    if "all" not in need and "any" not in need:
        return leaf(need, rule)
    parts = [expression(part, leaf, rule) for part in need.get("all", need.get("any", ()))]
    items = tuple([part for part in parts if part is not None])
    if not items:
        return None
    return All(items, rule) if "all" in need else AnyOf(items, rule)


def all_of(parts: Iterable[Expression], rule: str) -> Expression:
    """All of the parts; of one part that alone, so that explanations have no node for a single item."""
    items = tuple(parts)
    return items[0] if len(items) == 1 else All(items, rule)


def any_of(parts: Iterable[Expression], rule: str) -> Expression:
    """The same for any of them."""
    items = tuple(parts)
    return items[0] if len(items) == 1 else AnyOf(items, rule)
