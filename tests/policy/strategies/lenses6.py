"""Lenses 6 documents and requests from small alphabets, so that patterns meet names often."""

from typing import Any

from hypothesis import strategies as st

NAMES = ("a", "ab", "b")
GROUPS = ("readers", "writers", "okta")
ROLES = ("r1", "r2", "r3")
SUBJECTS = ("user:dana", "user:erik", "service-account:ci")
ACTIONS = ("kafka:ListTopic", "kafka:ListQuotas", "kafka:DeleteTopic", "iam:ListRoles")
ACTION_PATTERNS = (*ACTIONS, "*", "kafka:*", "kafka:List*", "iam:L*")

segments = st.sampled_from((*NAMES, "a*", "*"))
topics = st.tuples(segments, segments, segments).map(lambda parts: f"kafka:topic:{'/'.join(parts)}")
open_topics = segments.map(lambda part: f"kafka:topic/{part}/*")
roles = segments.map(lambda part: f"iam:role:{part}")
resource_patterns = st.one_of(topics, open_topics, roles, st.sampled_from(("*", "kafka:*", "iam:*:*")))
names = st.sampled_from(NAMES)
resources = st.one_of(
    st.tuples(names, names, names).map(lambda parts: f"kafka:topic:{'/'.join(parts)}"),
    names.map(lambda name: f"iam:role/{name}"),
    st.sampled_from(("kafka:topic:a/b", "kafka:topic:a", "iam:role:")),
)


def some(items: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """One to three of ``items``."""
    return st.lists(items, min_size=1, max_size=3)


statements: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "effect": st.sampled_from(("allow", "allow", "deny")),
        "action": some(st.sampled_from(ACTION_PATTERNS)),
        "resource": some(resource_patterns),
    }
)
broken_statements: st.SearchStrategy[dict[str, Any]] = st.just({"effect": "deny", "action": "*:x", "resource": "*"})
moments = st.integers(0, 4)


def windows() -> st.SearchStrategy[dict[str, int]]:
    """No window, mostly; else one or both ends."""
    both = st.tuples(moments, st.integers(1, 3)).map(lambda w: {"valid_from": w[0], "valid_until": w[0] + w[1]})
    return st.one_of(st.just({}), st.just({}), st.builds(lambda end: {"valid_until": end}, moments), both)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Roles and groups with each name once; some with a validity window, few of them broken."""
    found = []
    for name in sorted(draw(st.sets(st.sampled_from(ROLES), min_size=1))):
        content = draw(st.lists(statements, max_size=3))
        if draw(st.integers(0, 19)) == 0:
            content.append(draw(broken_statements))
        role = {"system": "lenses6", "kind": "Role", "name": name, "spec": {"statements": content}}
        found.append({**role, **draw(windows())})
    for name in sorted(draw(st.sets(st.sampled_from(GROUPS[:2]), min_size=1))):
        spec: dict[str, Any] = {
            "roles": draw(st.lists(st.sampled_from(ROLES), max_size=3, unique=True)),
            "members": draw(st.lists(st.sampled_from(SUBJECTS), max_size=2, unique=True)),
            **({"sso_name": "okta"} if draw(st.booleans()) else {}),
        }
        found.append({"system": "lenses6", "kind": "Group", "name": name, "spec": spec, **draw(windows())})
    return found


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown subject, mostly with a time."""
    groups = draw(st.lists(st.sampled_from(GROUPS), max_size=2, unique=True))
    subject = {"type": "user", "id": draw(st.sampled_from((*SUBJECTS, "user:nobody", "group:readers")))}
    request = {
        "id": "r",
        "system": "lenses6",
        "subject": {**subject, "properties": {"groups": groups}} if groups else subject,
        "action": {"name": draw(st.sampled_from((*ACTIONS, "kafka:Unknown", "kafka")))},
        "resource": {"type": "lrn", "id": draw(resources)},
    }
    return {**request, "time": draw(moments)} if draw(st.integers(0, 9)) else request
