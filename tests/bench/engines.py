"""Engines that decide the requests of `tests.bench.workload`: policy.decide, and what it is compared with.

Each is made from the policy documents and the requests to come (for who asks, where an engine keeps principals as data
of its own), and answers one request, a dict, with whether it is allowed. The others than `policy` implement of Lenses 6
what these documents and requests use: every resource has all its segments, so that a wildcard matches within one.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

import policy
from policy.evaluation import reference

Document = dict[str, Any]
Request = dict[str, Any]
Decide = Callable[[Request], bool]
Engine = Callable[[Sequence[Document], Sequence[Request]], Decide]


class Pattern(msgspec.Struct, frozen=True):
    """`text` with a closing wildcard if `prefix`; `segments` where a segment before the last has one."""

    text: str
    prefix: bool
    segments: tuple[str, ...] = ()


class Statement(msgspec.Struct, frozen=True):
    """A statement of a role."""

    role: str
    allow: bool
    actions: tuple[Pattern, ...]
    resources: tuple[Pattern, ...]


def statements_of(documents: Iterable[Document]) -> Iterator[Statement]:
    """Every statement of the Role documents."""
    for document in documents:
        if document["kind"] == "Role":
            for one in document["spec"]["statements"]:
                actions, resources = (tuple(map(_pattern, one[field])) for field in ("action", "resource"))
                yield Statement(document["name"], one["effect"] == "allow", actions, resources)


def roles_of(documents: Iterable[Document]) -> dict[str, list[str]]:
    """Group -> its roles."""
    return {document["name"]: document["spec"]["roles"] for document in documents if document["kind"] == "Group"}


def _pattern(text: str) -> Pattern:
    if "*" in text[:-1]:
        return Pattern(text, False, tuple(text.split("/")))
    return Pattern(text.removesuffix("*"), text.endswith("*"))


def _groups(request: Request) -> list[str]:
    groups: list[str] = request["subject"]["properties"].get("groups", [])
    return groups


def decided(documents: Sequence[Document], _requests: Sequence[Request]) -> Decide:
    """`policy.decide`."""
    snapshot = policy.compile_documents(documents)
    return lambda request: policy.decide(snapshot, request).allowed


def referenced(documents: Sequence[Document], _requests: Sequence[Request]) -> Decide:
    """The reference evaluator: nested loops over all that a principal holds, without an index or a cache."""
    snapshot = policy.compile_documents(documents)
    return lambda request: reference.decide(snapshot, request) == "allow"


def looped(documents: Sequence[Document], _requests: Sequence[Request]) -> Decide:
    """A plain Python loop over the statements of the principal's groups, with resources part by part (L6-MATCH-*)."""
    by_role: dict[str, list[tuple[bool, tuple[Pattern, ...], list[Parts]]]] = {}
    for one in statements_of(documents):
        resources = [_parts(_like(pattern)) for pattern in one.resources]
        by_role.setdefault(one.role, []).append((one.allow, one.actions, resources))
    held = {group: [s for role in roles for s in by_role[role]] for group, roles in roles_of(documents).items()}

    def decide(request: Request) -> bool:
        action, resource, allowed = request["action"]["name"], _parts(request["resource"]["id"]), False
        for group in _groups(request):
            for allow, actions, resources in held[group]:
                if _any_matches(actions, action) and any(_part_by_part(pattern, resource) for pattern in resources):
                    if not allow:
                        return False
                    allowed = True
        return allowed

    return decide


Parts = list[str]


def _parts(text: str) -> Parts:
    """Service, type and segments."""
    return text.replace("/", ":").split(":")


def _part_by_part(pattern: Parts, name: Parts) -> bool:
    """After a closing part that is a lone wildcard, what the name has beyond it is ignored (L6-MATCH-SEGMENTS)."""
    if len(name) != len(pattern) and (pattern[-1] != "*" or len(name) < len(pattern)):
        return False
    for part, text in zip(pattern, name, strict=False):
        if part != text and not (part[-1] == "*" and text.startswith(part[:-1])):
            return False
    return True


def _any_matches(patterns: tuple[Pattern, ...], text: str) -> bool:
    for pattern in patterns:
        if pattern.prefix:
            if text.startswith(pattern.text):
                return True
        elif pattern.text == text or (pattern.segments and _segments_match(pattern.segments, text)):
            return True
    return False


def _segments_match(segments: tuple[str, ...], text: str) -> bool:
    return all(
        part.startswith(segment[:-1]) if segment.endswith("*") else part == segment
        for segment, part in zip(segments, text.split("/"), strict=False)
    )


def cedar_whole(documents: Sequence[Document], requests: Sequence[Request]) -> Decide:
    """cedarpy with all policies and entities, parsed once."""
    import cedarpy

    policies = cedarpy.PolicySet.from_str("\n".join(map(_cedar_policy, statements_of(documents))))
    roles = roles_of(documents)
    users = {request["subject"]["id"]: _groups(request) for request in requests}
    entities = [_entity("User", user, "Group", groups) for user, groups in users.items()]
    entities += [_entity("Group", group, "Role", held) for group, held in roles.items()]
    entities += [_entity("Role", role, "", ()) for role in {role for held in roles.values() for role in held}]
    parsed = cedarpy.Entities.from_json_str(_json(entities))
    return lambda request: cedarpy.is_authorized(_cedar_request(request), policies, parsed).allowed


def cedar_sliced(documents: Sequence[Document], _requests: Sequence[Request]) -> Decide:
    """cedarpy with the policies of the principal's groups alone, parsed at their first use."""
    import cedarpy

    roles, texts = roles_of(documents), dict[str, list[str]]()
    for statement in statements_of(documents):
        texts.setdefault(statement.role, []).append(_cedar_policy(statement))
    slices: dict[tuple[str, ...], Any] = {}

    def decide(request: Request) -> bool:
        groups = tuple(_groups(request))
        held = {role for group in groups for role in roles[group]}
        if groups not in slices:
            written = "\n".join(text for role in sorted(held) for text in texts[role])
            slices[groups] = cedarpy.PolicySet.from_str(written)
        entities = [_entity("User", request["subject"]["id"], "Role", held)]
        return bool(cedarpy.is_authorized(_cedar_request(request), slices[groups], entities).allowed)

    return decide


def _cedar_policy(statement: Statement) -> str:
    effect = "permit" if statement.allow else "forbid"
    conditions = (
        " || ".join(f"context.{field} like {_json(_like(pattern))}" for pattern in patterns)
        for field, patterns in (("action", statement.actions), ("resource", statement.resources))
    )
    needed = " && ".join(f"({condition})" for condition in conditions)
    return f'{effect}(principal in Role::"{statement.role}", action, resource) when {{ {needed} }};'


def _like(pattern: Pattern) -> str:
    return pattern.text + "*" if pattern.prefix else pattern.text


def _entity(kind: str, name: str, parents: str, of: Iterable[str]) -> dict[str, Any]:
    above = [{"type": parents, "id": parent} for parent in of]
    return {"uid": {"type": kind, "id": name}, "attrs": {}, "parents": above}


def _cedar_request(request: Request) -> dict[str, Any]:
    return {
        "principal": {"type": "User", "id": request["subject"]["id"]},
        "action": {"type": "Action", "id": "access"},
        "resource": {"type": "Resource", "id": "any"},
        "context": {"action": request["action"]["name"], "resource": request["resource"]["id"]},
    }


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


CASBIN_MODEL = """
[request_definition]
r = sub, act, obj
[policy_definition]
p = sub, act, obj, eft
[role_definition]
g = _, _
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = g(r.sub, p.sub) && match(r.act, p.act) && match(r.obj, p.obj)
"""


def casbin(documents: Sequence[Document], requests: Sequence[Request]) -> Decide:
    """casbin with all policies, and a function for the patterns."""
    import casbin as pycasbin

    logging.getLogger("casbin").setLevel(logging.WARNING)
    model = pycasbin.Enforcer.new_model(text=CASBIN_MODEL)
    enforcer = pycasbin.Enforcer(model)
    rules = [
        [one.role, _like(action), _like(resource), "allow" if one.allow else "deny"]
        for one in statements_of(documents)
        for action in one.actions
        for resource in one.resources
    ]
    users = {request["subject"]["id"]: _groups(request) for request in requests}
    links = [*roles_of(documents).items(), *users.items()]
    enforcer.model.add_policies("p", "p", rules)
    enforcer.model.add_policies("g", "g", [[member, above] for member, held in links for above in held])
    enforcer.build_role_links()
    enforcer.add_function("match", _like_matches)
    return lambda request: bool(
        enforcer.enforce(request["subject"]["id"], request["action"]["name"], request["resource"]["id"])
    )


def _like_matches(text: str, pattern: str) -> bool:
    return _any_matches((_pattern(pattern),), text)


ENGINES: dict[str, Engine] = {
    "policy.decide": decided,
    "plain loop": looped,
    "cedarpy, sliced": cedar_sliced,
    "cedarpy, whole": cedar_whole,
    "casbin": casbin,
}
