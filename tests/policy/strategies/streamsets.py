"""StreamSets documents and requests from small alphabets: two users' worth of shares, versions, logins and a job."""

from typing import Any

from hypothesis import strategies as st

USERS = ("rita", "miguel")
GROUPS = ("north", "south")
ROLES = ("Organization Administrator", "Auth Token Administrator", "Job Operator")
OBJECTS = ("pipeline:p", "job:j", "engine:e", "engine:f", "connection:c", "deployment:d")
LEVELS = {"connection": ("READ", "WRITE"), "pipeline": ("READ", "WRITE")}
ALL_LEVELS = ("READ", "WRITE", "EXECUTE")
ACTIONS = {
    "pipeline:p": ("pipeline.view", "pipeline.design", "pipeline.use-connection", "object.share"),
    "job:j": ("job.start", "job.monitor", "job.monitor", "job.delete", "job.edit", "object.change-owner"),
    "engine:e": ("engine.view", "engine.assign-labels", "object.share"),
    "engine:f": ("engine.view",),
    "connection:c": ("connection.view-values", "object.share"),
    "deployment:d": ("deployment.view",),
    "organization:o": ("organization.set-enforcement",),
}
FIELDS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "pipeline": {"pipeline_kind": st.just("dc"), "connections": st.lists(st.just("c"), max_size=1)},
    "job": {"pipeline": st.just("p"), "labels": st.lists(st.just("west"), max_size=1)},
    "engine": {"engine_kind": st.sampled_from(("dc", "dc", "tr")), "labels": st.lists(st.just("west"), max_size=1)},
}
OPTIONAL: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "engine": {"provisioned_by": st.just("d"), "permissions_modified_by_admin": st.booleans()},
}
GRANTED = {"grant": {"user:eve": ["READ"]}, "new_owner": "user:eve", "connection": "c"}
REQUESTED = [(name, action) for name, actions in ACTIONS.items() for action in actions]

users = st.sampled_from(USERS)
names = st.lists(st.sampled_from(GROUPS), max_size=2, unique=True)
roles = st.lists(st.sampled_from(ROLES), max_size=1)
moments = st.integers(0, 5)
principals = st.sampled_from((*(f"user:{user}" for user in USERS), *(f"group:{group}" for group in GROUPS)))


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": "streamsets", "kind": kind, "name": name, "spec": spec}


@st.composite
def objects(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """One version's content of the object ``name``; now and then a broken one."""
    type_ = name.partition(":")[0]
    levels = st.lists(st.sampled_from(LEVELS.get(type_, ALL_LEVELS)), min_size=1, max_size=2, unique=True)
    acl = draw(st.dictionaries(principals, levels, max_size=2))
    fields = draw(st.fixed_dictionaries(FIELDS.get(type_, {}), optional=OPTIONAL.get(type_, {})))
    broken = {"lables": []} if draw(st.integers(0, 39)) == 0 else {}
    return {"type": type_, "owner": draw(users), "acl": acl, **fields, **broken}


@st.composite
def versions(draw: st.DrawFn, name: str) -> list[dict[str, Any]]:
    """One to three versions of the object ``name``, at moments of their own."""
    found = draw(st.lists(objects(name), min_size=1, max_size=3))
    dates = draw(st.lists(moments, min_size=len(found), max_size=len(found), unique=True))
    return [
        {**_document("Object", name, spec), "effective_at": at} for spec, at in zip(found, sorted(dates), strict=True)
    ]


sessions = st.fixed_dictionaries({"login_at": moments}, optional={"groups": names, "roles": roles})
organizations = st.fixed_dictionaries(
    {"enforcement": st.sampled_from((True, True, True, False))},
    optional={"task_roles": st.just({"job.delete": ["Job Operator"]})},
)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Mostly one organization, most of the objects in some versions, logins, now and then a running job."""
    known = [name for name in OBJECTS if draw(st.integers(0, 9))]
    found = [version for name in known for version in draw(versions(name))]
    if draw(st.integers(0, 19)):
        found.append(_document("Organization", "o", draw(organizations)))
    found += [_document("Session", user, draw(sessions)) for user in sorted(draw(st.sets(users)))]
    if draw(st.booleans()):
        found.append(_document("ActiveJob", "job:j", {"started_at": draw(moments)}))
    return found


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown user for what one of the objects is good for."""
    name, action = draw(st.sampled_from(REQUESTED))
    properties: dict[str, Any] = draw(st.fixed_dictionaries({}, optional={"groups": names, "roles": roles}))
    user = draw(st.sampled_from((*USERS, *USERS, "nobody", "group:north")))
    request = {
        "id": "r",
        "system": "streamsets",
        "subject": {"type": "user", "id": user, "properties": properties},
        "action": {"name": action if draw(st.integers(0, 19)) else "pipeline.unknown"},
        "resource": {"type": name.partition(":")[0], "id": name},
        "context": GRANTED if draw(st.integers(0, 9)) else {},
    }
    return {**request, "time": draw(moments)} if draw(st.integers(0, 9)) else request
