"""CDAP documents and requests from small alphabets: names with and without dots, links that agree and that do not."""

from typing import Any

from hypothesis import strategies as st

USERS = ("dana", "erik", "etl")
GROUPS = ("team", "ops")
PRIVILEGES = ("READ", "WRITE", "EXECUTE", "ADMIN")
NAMES = {  # kind -> names that documents and requests use
    "namespace": ("n", "m"),
    "application": ("n.a", "a", "m.a"),
    "program": ("n.a.p", "p", "n.p"),
    "artifact": ("n.lib", "lib"),
    "dataset": ("n.d", "d", "m.d"),
    "dataset-type": ("n.t", "t"),
    "stream": ("n.s", "s"),
    "secure-key": ("n.k",),
    "kerberos-principal": ("etl@R",),
}
PATTERNS = ("*", "n*", "n.*", "n?d", "?.a.*", "*.d")
PARENTS = {"application": "namespace", "program": "application"}
VERBS = ("create", "read", "write", "admin", "delete", "list", "get")
ACTIONS = {  # kind of the resource -> further actions
    "namespace": ("stream.drop-all", "stream.drop-all", "namespace.delete", "namespace.get", "privilege.grant"),
    "application": ("application.deploy", "application.deploy", "schedule.add"),
    "program": ("program.execute", "program.start", "program.get-arguments", "schedule.resume", "schedule.add"),
    "dataset": ("privilege.revoke", "dataset.reed"),
    "stream": ("stream.send-events", "stream.drop", "stream.list"),
}

kinds = st.sampled_from(sorted(NAMES))
moments = st.integers(0, 4)


def of_kind(kind: str) -> st.SearchStrategy[str]:
    """An entity of ``kind``, written KIND:NAME."""
    return st.sampled_from([f"{kind}:{name}" for name in NAMES[kind]])


entities = kinds.flatmap(of_kind)
patterns = st.builds("{}:{}".format, kinds, st.sampled_from(PATTERNS))
windows = st.one_of(st.just({}), st.just({}), st.builds(lambda end: {"valid_until": end}, moments))


@st.composite
def grants(draw: st.DrawFn) -> dict[str, Any]:
    """What a Grant says; few are broken."""
    users = st.builds(lambda user: {"user": user}, st.sampled_from(USERS))
    principal = draw(st.one_of(users, users, st.builds(lambda group: {"group": group}, st.sampled_from(GROUPS))))
    privileges = draw(st.lists(st.sampled_from(PRIVILEGES), min_size=1, max_size=4))
    if draw(st.integers(0, 29)) == 0:
        privileges.append("OWN")
    return {**principal, "entity": draw(st.one_of(entities, patterns)), "privileges": privileges}


@st.composite
def inventories(draw: st.DrawFn) -> dict[str, Any]:
    """An Entity: with a parent, by its dots, or broken because neither tells where it is."""
    entity = draw(entities)
    kind = entity.partition(":")[0]
    if kind in ("namespace", "kerberos-principal") or draw(st.integers(0, 5)) == 0:
        return {"name": entity, "spec": {"parent": None}}
    return {"name": entity, "spec": {"parent": draw(of_kind(PARENTS.get(kind, "namespace")))}}


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Grants, an inventory with each entity once, and mostly a backend."""
    found = []
    for number, spec in enumerate(draw(st.lists(grants(), min_size=1, max_size=6))):
        found.append({"system": "cdap", "kind": "Grant", "name": f"g{number}", "spec": spec, **draw(windows)})
    known = draw(st.lists(inventories(), max_size=6, unique_by=lambda one: str(one["name"])))
    found += [{"system": "cdap", "kind": "Entity", **inventory} for inventory in known]
    if draw(st.booleans()):
        admins = draw(st.lists(st.sampled_from(USERS), max_size=2))
        found.append({"system": "cdap", "kind": "Backend", "name": "b", "spec": {"admins": admins}, **draw(windows)})
    return found


contexts: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "owner_principal": of_kind("kerberos-principal"),
        "impersonate": of_kind("kerberos-principal"),
        "artifact": st.one_of(of_kind("artifact"), of_kind("artifact"), of_kind("stream")),
        "dataset_type": of_kind("dataset-type"),
        "creates": st.lists(st.one_of(of_kind("dataset"), of_kind("stream")), max_size=2),
        "mode": st.sampled_from(("sync", "batch", "bulk")),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown user on an entity that mostly fits the action, mostly with a time."""
    entity = draw(entities)
    kind = entity.partition(":")[0]
    action = draw(st.sampled_from((*(f"{kind}.{verb}" for verb in VERBS), *ACTIONS.get(kind, ()))))
    subject: dict[str, Any] = {"type": "user", "id": draw(st.sampled_from((*USERS, "nobody", "group:team")))}
    if draw(st.booleans()):
        subject["properties"] = {"groups": draw(st.lists(st.sampled_from(GROUPS), max_size=2, unique=True))}
    request = {
        "id": "r",
        "system": "cdap",
        "subject": subject,
        "action": {"name": action},
        "resource": {"type": "entity", "id": entity if draw(st.integers(0, 9)) else draw(entities)},
        "context": draw(st.one_of(st.just({}), contexts)),
    }
    return {**request, "time": draw(moments)} if draw(st.integers(0, 9)) else request
