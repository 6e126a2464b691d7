"""Kafka's ACLs and requests from small alphabets: prefixes of each other, hosts, super users, empty resources."""

from typing import Any

from hypothesis import strategies as st

PRINCIPALS = ("User:dana", "User:erik", "Service:dana", "User:*", "Service:*", "Group:ops")
ASKING = (*PRINCIPALS, "User:nobody", "dana", "principal:User:dana", "allowed@h:User:dana")
HOSTS = ("h", "i", "::1")
NAMES = ("a", "ab", "abc", "b", "*", "a/b", "kafka-cluster")
OPERATIONS = {
    "Topic": ("Read", "Write", "Alter", "Describe", "DescribeConfigs", "AlterConfigs", "All"),
    "Group": ("Read", "Write", "Describe", "All"),
    "Cluster": ("Alter", "Describe", "IdempotentWrite", "All"),
}

kinds = st.sampled_from(("Topic", "Topic", "Topic", "Group", "Cluster"))
moments = st.integers(0, 4)


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """An entry; few are broken."""
    kind = draw(kinds)
    found: dict[str, Any] = {
        "principal": draw(st.sampled_from(PRINCIPALS)),
        "operation": draw(st.sampled_from(OPERATIONS[kind])),
        "resource_type": kind,
        "name": draw(st.sampled_from(NAMES)),
    }
    found |= draw(st.sampled_from(({}, {"permission": "ALLOW"}, {"permission": "DENY"})))
    found |= draw(st.sampled_from(({}, {"pattern_type": "LITERAL"}, {"pattern_type": "PREFIXED"})))
    found |= draw(st.one_of(st.just({}), st.builds(lambda host: {"host": host}, st.sampled_from(("*", *HOSTS)))))
    return found if draw(st.integers(0, 29)) else {**found, "operation": "Fly"}


windows = st.one_of(st.just({}), st.just({}), st.builds(lambda end: {"valid_until": end}, moments))


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entries in one document or two, mostly with settings of the authorizer.

    Not time-bound where what has no entry is open to all: there, entries count before and after, too (KA-EMPTY).
    """
    settings = draw(st.one_of(st.none(), st.fixed_dictionaries({}, optional=SETTINGS)))
    timeless = settings is not None and settings.get("allow_everyone_if_no_acl_found", False)
    found = [
        _document("Acls", name, {"entries": draw(st.lists(entries(), max_size=4))}, {} if timeless else draw(windows))
        for name in draw(st.sets(st.sampled_from(("one", "two")), min_size=1))
    ]
    if settings is not None:
        found.append(_document("Authorizer", "authorizer", settings, {}))
    return found


SETTINGS = {
    "super_users": st.lists(st.sampled_from(("User:erik", "User:nobody", "User:*")), max_size=2),
    "allow_everyone_if_no_acl_found": st.booleans(),
}


def _document(kind: str, name: str, spec: dict[str, Any], window: dict[str, Any]) -> dict[str, Any]:
    return {"system": "kafka-acls", "kind": kind, "name": name, "spec": spec, **window}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown principal, mostly with a host and a time."""
    kind = draw(kinds)
    context = {"host": draw(st.sampled_from((*HOSTS, "j", "*")))} if draw(st.integers(0, 3)) else {}
    subject: dict[str, Any] = {"type": "user", "id": draw(st.sampled_from(ASKING))}
    if draw(st.integers(0, 4)) == 0:
        subject["properties"] = {"groups": ["team"]}
    request = {
        "id": "r",
        "system": "kafka-acls",
        "subject": subject,
        "action": {"name": draw(st.sampled_from((*OPERATIONS[kind], "DESCRIBE", "describe_configs")))},
        "resource": {"type": kind, "id": draw(st.sampled_from(NAMES))},
        "context": context,
    }
    return {**request, "time": draw(moments)} if draw(st.integers(0, 9)) else request
