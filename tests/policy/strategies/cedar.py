"""Cedar policies, entities and requests from small alphabets: all scopes, conditions that fail, hierarchies."""

from typing import Any

from hypothesis import strategies as st

Uid = tuple[str, str]

USERS: tuple[Uid, ...] = (("User", "ann"), ("User", "bob"), ("App::User", "ann"), ("user", "ann"))
GROUPS: tuple[Uid, ...] = (("Group", "staff"), ("Group", "all"))
RESOURCES: tuple[Uid, ...] = (("Doc", "plan"), ("Doc", 'a"b'), ("Folder", "top"), ("User", "ann"))
ACTIONS = ("read", "write", "own")
PARENTS: tuple[Uid, ...] = (*GROUPS, ("Folder", "top"), ("Folder", "root"), ("User", "bob"))
CONDITIONS = (
    "",
    "when { true }",
    "when { resource.owner == principal }",
    "when { resource has owner && resource.owner == principal }",
    "unless { principal.blocked }",
    "when { principal has level && principal.level > 3 }",
    "when { principal.level > 3 }",
    'when { principal in Group::"all" }',
    "when { resource.owner in principal.teams }",
    "when { resource.owner.level > 3 }",
    'when { User::"bob".level > 3 }',
    'when { User::"bob" in Group::"all" }',
    'when { resource in Folder::"root" || context.admin }',
    "when { context has admin && context.admin }",
    'when { context.ip.isInRange(ip("10.0.0.0/8")) }',
    'when { principal.hasTag("a") && principal.getTag("a") == "x;" } // a comment; with a semicolon',
    'when { context has by && context.by in Group::"staff" } unless { context.by.level > 3 }',
    "when { context has action_properties && context.action_properties.soft }",
)

ROOTS: dict[str, Uid] = {  # expressions for entities that a condition begins at, each with one of its own
    "principal": ("User", "p"),
    "resource": ("Doc", "r"),
    'App::User::"l"': ("App::User", "l"),
    "context.by": ("User", "c"),
    "context.more.by": ("User", "m"),
    "context.action_properties.by": ("User", "a"),
}
STEPS = (".lead", ".meta.by", '.getTag("lead")')  # from one entity to another


def literal(uid: Uid) -> str:
    """An entity as Cedar writes it."""
    return '{}::"{}"'.format(uid[0], uid[1].replace('"', '\\"'))


def json_of(uid: Uid) -> dict[str, str]:
    """An entity as Cedar's JSON writes it."""
    return {"type": uid[0], "id": uid[1]}


def scopes(part: str, uids: tuple[Uid, ...]) -> st.SearchStrategy[str]:
    """What a scope says of the principal or the resource."""
    one = st.sampled_from((uids[0], *uids))
    return st.one_of(
        *[st.just(part)] * 4,
        one.map(lambda uid: f"{part} == {literal(uid)}"),
        st.sampled_from((*uids, *PARENTS)).map(lambda uid: f"{part} in {literal(uid)}"),
        one.map(lambda uid: f"{part} is {uid[0]}"),
        st.builds(lambda uid, above: f"{part} is {uid[0]} in {literal(above)}", one, st.sampled_from(PARENTS)),
    )


actions = st.one_of(
    *[st.just("action")] * 3,
    st.sampled_from(ACTIONS).map(lambda name: f'action == Action::"{name}"'),
    st.sampled_from((*ACTIONS, "any")).map(lambda name: f'action in Action::"{name}"'),
    st.lists(st.sampled_from((*ACTIONS, "any")), max_size=2).map(
        lambda names: "action in [{}]".format(", ".join(f'Action::"{name}"' for name in names))
    ),
)


@st.composite
def policies(draw: st.DrawFn) -> str:
    """One policy."""
    effect = draw(st.sampled_from(("permit", "permit", "forbid")))
    scope = ", ".join((draw(scopes("principal", USERS)), draw(actions), draw(scopes("resource", RESOURCES))))
    note = draw(st.sampled_from(("", "", '@advice("ask; dana")\n')))
    return f"{note}{effect}({scope}) {draw(st.sampled_from(CONDITIONS))}\n;"


refs = st.sampled_from((*USERS, *GROUPS)).map(lambda uid: {"__entity": json_of(uid)})
attributes = st.fixed_dictionaries(
    {},
    optional={
        "owner": refs,
        "teams": st.lists(refs, max_size=2),
        "level": st.sampled_from((1, 5, 7, "5")),
        "blocked": st.booleans(),
    },
)


@st.composite
def entities(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Entities without cycles: each has parents behind it in one order."""
    order = [*RESOURCES[:2], *USERS, ("Folder", "top"), ("Folder", "root"), *GROUPS]
    found = []
    for number, uid in enumerate(order):
        if draw(st.integers(0, 2)):
            above = [one for one in order[number + 1 :] if one in PARENTS]
            parents = draw(st.lists(st.sampled_from(above), max_size=2, unique=True)) if above else []
            entity = {"uid": json_of(uid), "attrs": draw(attributes), "parents": [json_of(one) for one in parents]}
            found.append(
                {**entity, "tags": {"a": draw(st.sampled_from(("x;", "y")))}} if draw(st.booleans()) else entity
            )
    above = [json_of(("Action", "any"))]
    grouped = draw(st.sets(st.sampled_from(ACTIONS), max_size=1))
    return [*found, *({"uid": json_of(("Action", name)), "attrs": {}, "parents": above} for name in sorted(grouped))]


ATTRIBUTES = "{owner?: User, teams?: Set<Group>, level?: Long, blocked?: Bool}"
SCHEMA = f"""
entity Group in [Group, Folder]; entity Folder in [Folder, Group, User];
entity User in [User, Group, Folder] {ATTRIBUTES} tags String;
entity user in [User, Group, Folder] {ATTRIBUTES} tags String;
entity Doc in [User, Group, Folder] {ATTRIBUTES} tags String;
action any; action own in [any];
action read, write in [any] appliesTo {{
  principal: [User, user], resource: [Doc, Folder, User],
  context: {{admin?: Bool, by?: User, ip?: ipaddr, action_properties?: {{soft: Bool}}}}
}};
"""


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Policies in one document or two, now and then one that is refused, entities, and other types of groups."""
    found = []
    for name in draw(st.sets(st.sampled_from(("one", "two")), min_size=1)):
        texts = draw(st.lists(policies(), min_size=1, max_size=3))
        window = draw(st.sampled_from(({}, {}, {}, {"valid_until": 3})))
        broken = draw(st.integers(0, 14)) == 0
        found.append({**_document("PolicySet", name, {"policies": "\n".join(texts) + ("oops" * broken)}), **window})
    if draw(st.booleans()):
        found.append(_document("Entities", "all", {"entities": draw(entities())}))
    if draw(st.integers(0, 3)) == 0:
        types = st.sampled_from(({"group_type": "Folder"}, {"action_type": "App::Action"}, {"group_type": "Action"}))
        found.append(_document("Settings", "default", draw(types)))
    if draw(st.integers(0, 3)) == 0:
        found.append(_document("Schema", "all", {"schema": draw(st.sampled_from((SCHEMA, SCHEMA, SCHEMA + "oops")))}))
    return found


def _document(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"system": "cedar", "kind": kind, "name": name, "spec": spec}


contexts = st.fixed_dictionaries(
    {},
    optional={
        "admin": st.booleans(),
        "by": refs,
        "ip": st.just({"__extn": {"fn": "ip", "arg": "10.1.2.3"}}),
        "min_policy_offsets": st.just({}),
    },
)


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Any]:
    """A request, mostly of a known subject, with properties and groups at times."""
    subject: dict[str, Any] = json_of(draw(st.sampled_from((*[USERS[0]] * 4, *USERS, ("Group", "all")))))
    resource: dict[str, Any] = json_of(draw(st.sampled_from((*[RESOURCES[0]] * 3, *RESOURCES))))
    if draw(st.booleans()):
        subject["properties"] = draw(attributes)
        if draw(st.booleans()):
            subject["properties"]["groups"] = draw(st.lists(st.sampled_from(("staff", "all")), max_size=2, unique=True))
    if draw(st.booleans()):
        resource["properties"] = draw(attributes)
    action: dict[str, Any] = {"name": draw(st.sampled_from(ACTIONS))}
    if draw(st.integers(0, 3)) == 0:
        action["properties"] = {"soft": draw(st.booleans())}
    request = {"id": "r", "system": "cedar", "subject": subject, "action": action, "resource": resource}
    request["context"] = draw(contexts)
    return {**request, "time": draw(st.integers(0, 4))} if draw(st.integers(0, 9)) else request


class LinkedEntities:
    """Entities, each reached by one path only from those that a request names: leaving one out changes an answer."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.entities: dict[Uid, dict[str, Any]] = {}

    def condition(self) -> str:
        """A condition about an entity some steps away, with the entities on the way."""
        expression, uid = self._path()
        kind = self._draw(st.sampled_from(("level", "in", "in attribute", "in set", "contains")))
        if kind == "level":
            return f"{expression}.level > 3"
        if kind == "in":
            self._put_in(uid, ("Group", "g"))
            return f'{expression} in Group::"g"'
        other, at = self._path()
        group = ("Group", f"{at[1]}-group")
        if kind == "contains":
            self.entity(at)["attrs"]["team"] = [_ref(uid)] if self._draw(st.booleans()) else []
            return f"{other}.team.contains({expression})"
        self._put_in(uid, group)
        self.entity(at)["attrs"].update(circle=_ref(group), circles=[_ref(group)])
        return f"{expression} in {other}.{'circle' if kind == 'in attribute' else 'circles'}"

    def entity(self, uid: Uid) -> dict[str, Any]:
        """The one with this name."""
        if uid not in self.entities:
            level = self._draw(st.sampled_from((1, 5)))
            self.entities[uid] = {"uid": json_of(uid), "attrs": {"level": level}, "parents": [], "tags": {}}
        return self.entities[uid]

    def _path(self) -> tuple[str, Uid]:
        root = self._draw(st.sampled_from(tuple(ROOTS)))
        expression, uid = root, ROOTS[root]
        self.entity(uid)
        for step in self._draw(st.lists(st.sampled_from(STEPS), max_size=3)):
            number = STEPS.index(step)
            onward = ("User", f"{uid[1]}{number}")
            self.entity(onward)
            where, name = (("attrs", "lead"), ("attrs", "meta"), ("tags", "lead"))[number]
            self.entity(uid)[where][name] = {"by": _ref(onward)} if name == "meta" else _ref(onward)
            expression, uid = f"{expression}{step}", onward
        return expression, uid

    def _put_in(self, uid: Uid, group: Uid) -> None:
        """Perhaps, and perhaps by a group between them."""
        between = ("Group", f"{uid[1]}-in-{group[1]}")
        for above in self._draw(st.sampled_from(((), (group,), (between, group)))):
            parent = json_of(above)
            if parent not in self.entity(uid)["parents"]:
                self.entity(uid)["parents"].append(parent)
            uid = above


def _ref(uid: Uid) -> dict[str, Any]:
    return {"__entity": json_of(uid)}


@st.composite
def linked_entities(draw: st.DrawFn) -> tuple[list[str], list[dict[str, Any]], dict[str, Any]]:
    """Policies whose conditions alone decide, entities, and a request, whose properties describe some of them."""
    linked, texts = LinkedEntities(draw), []
    for _ in range(draw(st.integers(1, 2))):
        clause = draw(st.sampled_from(("when", "when", "unless")))
        effect = draw(st.sampled_from(("permit", "forbid")))
        texts.append(f"{effect}(principal, action, resource) {clause} {{ {linked.condition()} }};")
    if draw(st.booleans()):
        texts.append("permit(principal, action, resource);")
    by = {name: _ref(uid) for name, uid in ROOTS.items()}
    request: dict[str, Any] = {
        "id": "r",
        "system": "cedar",
        "subject": json_of(ROOTS["principal"]),
        "action": {"name": "read", "properties": {"by": by["context.action_properties.by"]}},
        "resource": json_of(ROOTS["resource"]),
        "context": {"by": by["context.by"], "more": {"by": by["context.more.by"]}},
    }
    for part, root in (("subject", "principal"), ("resource", "resource")):
        known = linked.entities.get(ROOTS[root])
        if known and not known["parents"] and not known["tags"] and draw(st.booleans()):
            request[part]["properties"] = linked.entities.pop(ROOTS[root])["attrs"]
    return texts, list(linked.entities.values()), request
