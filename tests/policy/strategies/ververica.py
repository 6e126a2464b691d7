"""Ververica documents and requests from small alphabets, so that assignments meet requests often."""

from typing import Any

from hypothesis import strategies as st

USERS = ("dana", "erik", "group:readers")
GROUPS = ("readers", "writers", "Readers")
WORKSPACES = ("w", "v")
NAMESPACES = ("n", "m")
KINDS = ("Job", "ApiToken", "apitoken")
CLAIMS = ("groups", "roles")

user_ids = st.sampled_from(("dana", "erik", "readers", "group:readers", "group:writers"))
names = st.lists(st.sampled_from(GROUPS), max_size=2, unique=True)
moments = st.integers(0, 4)


def entry(role: str) -> st.SearchStrategy[dict[str, Any]]:
    """An assignment of ``role`` at its scope."""
    fields = {"userId": user_ids, "workspaceId": st.sampled_from(WORKSPACES), "role": st.just(role)}
    if role != "ADMIN":
        fields["namespaceId"] = st.sampled_from(NAMESPACES)
    return st.fixed_dictionaries(fields)


entries = st.lists(st.sampled_from(("VIEWER", "EDITOR", "OWNER", "ADMIN")).flatmap(entry), max_size=3)
settings: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "oidc": st.fixed_dictionaries({"enabled": st.just(True), "groupsClaim": st.sampled_from(CLAIMS)}),
        "saml": st.fixed_dictionaries(
            {
                "enabled": st.booleans(),
                "identity-provider": st.fixed_dictionaries({"groups-attribute": st.sampled_from(CLAIMS)}),
            }
        ),
    },
)
windows = st.one_of(st.just({}), st.just({}), st.builds(lambda end: {"valid_until": end}, moments))


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Assignments, mostly settings and reserved kinds; some bound in time, few of them broken."""
    found = []
    for name in sorted(draw(st.sets(st.sampled_from(("one", "two")), min_size=1))):
        assigned = draw(entries)
        assigned += assigned[: draw(st.integers(0, 1))]
        if draw(st.integers(0, 19)) == 0:
            assigned.append({"userId": "dana", "workspaceId": "w", "role": "OWNER"})
        found.append(_document("InitialAccess", name, {"initialAccess": assigned}, draw(windows)))
    setups = draw(st.lists(st.one_of(settings, settings, st.just({"ldap": {}})), max_size=2))
    found += [_document("Authentication", f"a{number}", spec) for number, spec in enumerate(setups)]
    for name in sorted(draw(st.sets(st.sampled_from(("one", "two"))))):
        kinds = draw(st.lists(st.sampled_from(KINDS), max_size=2))
        found.append(_document("ReservedKinds", name, {"kinds": kinds} if draw(st.integers(0, 9)) else {"kind": kinds}))
    return found


def _document(kind: str, name: str, spec: dict[str, Any], window: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"system": "ververica", "kind": kind, "name": name, "spec": spec, **(window or {})}


@st.composite
def tokens(draw: st.DrawFn, user: str) -> Any:
    """What an identity provider tells of ``user``, now and then of somebody else."""
    claims = {draw(st.sampled_from(CLAIMS)): draw(st.one_of(names, names, st.just("readers,writers"), st.just([7])))}
    owner = user if draw(st.integers(0, 9)) else "mallory"
    both = {"email": owner, "NameId": user, "attributes": claims, **claims}
    return draw(st.sampled_from(({"email": owner, **claims}, {"NameId": owner, "attributes": claims}, both, claims)))


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request of a known or unknown user, with groups, with a token or with neither, mostly with a time."""
    user = draw(st.sampled_from((*USERS, "nobody")))
    properties: dict[str, Any] = {}
    if draw(st.booleans()):
        properties["groups"] = draw(names)
    if draw(st.booleans()):
        properties["token"] = draw(tokens(user))
    place = {"workspaceId": draw(st.sampled_from(WORKSPACES)), "namespaceId": draw(st.sampled_from(NAMESPACES))}
    request = {
        "id": "r",
        "system": "ververica",
        "subject": {"type": "user", "id": user, "properties": properties},
        "action": {"name": draw(st.sampled_from(("read", "write", "write", "full", "admin")))},
        "resource": {"type": draw(st.sampled_from(KINDS)), "id": "x", "properties": place},
    }
    return {**request, "time": draw(moments)} if draw(st.integers(0, 9)) else request
