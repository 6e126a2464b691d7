"""Schema documents in decisions: what Cedar answers with the schema is the answer (CE-SCHEMA, CE-SCHEMA-FORM)."""

import json
from typing import Any

import cedarpy
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policy
from policy.analysis import compare, lint
from policy.analysis.impact import Who, known_names, who_can
from policy.store.compiler import Compiler
from policy.store.documents import DocumentStore
from policy.testing import full_request
from tests.examples import examples

JSON = dict[str, Any]


def document(kind: str, spec: JSON, name: str = "default") -> JSON:
    """A document of Cedar."""
    return {"system": "cedar", "kind": kind, "name": name, "spec": spec}


def schema(text: str | JSON, name: str = "default") -> JSON:
    """A Schema document."""
    return document("Schema", {"schema": text}, name)


def asked(subject: str, action: str, resource: str, **more: Any) -> JSON:
    """A request."""
    return {**full_request({"subject": subject, "action": action, "resource": resource}, "cedar"), "id": "r", **more}


# One world of ids without repetition, so that a test sees by the text of an entity what it refers to.
USERS, GROUPS, DOCS, FOLDERS = ("ann", "bob", "eve"), ("gang", "hosts"), ("deed", "file"), ("top", "root")
POLICIES = (
    "permit (principal, action, resource);",
    'permit (principal in Group::"gang", action in Action::"every", resource is Doc);',
    'forbid (principal, action in Action::"writes", resource is Doc) when { resource.author == principal };',
    'forbid (principal, action, resource) when { resource has author && resource.author in Group::"hosts" };',
    'forbid (principal, action in [Action::"edit", Action::"every"], resource in Folder::"root");',
    'forbid (principal, action, resource) when { resource has at && !resource.at.isInRange(ip("10.0.0.0/8")) };',
    'permit (principal, action, resource) when { resource has sum && resource.sum.lessThan(decimal("5.0")) };',
    "forbid (principal, action, resource) when { resource has team && resource.team.contains(principal) };",
    'forbid (principal, action, resource) when { resource has meta && resource.meta.by in Group::"gang" };',
    'forbid (principal, action, resource) when { context has by && context.by in Group::"hosts" };',
    'forbid (principal, action, resource) when { context has src && context.src == ip("10.0.0.1") };',
    'forbid (principal, action, resource) when { resource.hasTag("for") && resource.getTag("for") == principal };',
    'forbid (principal, action, resource) when { resource has state && resource.state == State::"red" };',
    "permit (principal, action, resource) when { resource.author.boss == principal };",
)


class World:
    """A schema, and entities and requests that mostly conform to it. ``namespace``: of every type, with ``::``."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.namespace = draw(st.sampled_from(("", "", "App::")))

    def of(self, *texts: str) -> str:
        """One of them, the first more often."""
        return self._draw(st.sampled_from((texts[0], *texts)))

    def often(self) -> bool:
        """Mostly."""
        return self._draw(st.integers(0, 19)) > 0

    def schema(self) -> str:
        """Its text."""
        author = self.of(
            *["author?: User"] * 5, "author: User", "author?: {type: String, id: String}", "author?: Set<User>"
        )
        group, src = self.of("in [writes]", "in [every]", ""), self.of("ipaddr", "String")
        text = f"""
            type Meta = {{by?: User, note?: String}};
            entity Group in [Group]; entity State enum ["red", "green"]; entity Folder in [Folder];
            entity User in [Group] {{boss?: User}};
            entity Doc in [Folder] {{{author}, at?: {self.of("ipaddr", "ipaddr", "String")}, sum?: decimal,
              team?: Set<User>, meta?: Meta, state?: State}} {self.of("tags User", "tags User", "")};
            action every; action writes {self.of("in [every]", "")};
            action read in [every] appliesTo {{principal: [User], resource: [Doc]}};
            action edit {group} appliesTo {{principal: [User], resource: [Doc], context: {{by?: User, src?: {src}}}}};
        """
        return f"namespace App {{ {text} }}" if self.namespace else text

    def reference(self, type_: str, id_: str) -> Any:
        """An entity among values, in one of the forms that Cedar takes with a schema."""
        uid = {"type": f"{self.namespace}{type_}", "id": id_}
        forms = ({"__entity": uid}, uid, {"__entity": {**uid, "name": "x"}}, {**uid, "name": "x"}, list(uid.values()))
        return self._draw(st.sampled_from(forms))

    def user(self) -> Any:
        """A reference to a user, or at times to something else."""
        return self.reference("User", self.of(*USERS)) if self.often() else self.reference("Group", self.of(*GROUPS))

    def address(self) -> Any:
        """An address in one of its forms, or none."""
        text = self.of("10.0.0.1", "192.0.2.1")
        forms = [text, {"fn": "ip", "arg": text}, {"__extn": {"fn": "ip", "arg": text}}]
        return self._draw(st.sampled_from(forms)) if self.often() else "x"

    def some(self, **attributes: Any) -> JSON:
        """Some of these, each worked out where it is taken."""
        return {name: value() for name, value in attributes.items() if self._draw(st.booleans())}

    def attributes_of_doc(self) -> JSON:
        """Attributes of a document."""
        return self.some(
            author=self.user,
            at=self.address,
            sum=lambda: self._draw(st.sampled_from(("1.5", {"fn": "decimal", "arg": "9.5"}))) if self.often() else 7,
            team=lambda: [self.user()],
            meta=lambda: self.some(by=self.user, note=lambda: "n"),
            state=lambda: self.reference("State", self.of("red", "green") if self.often() else "blue"),
        )

    def entity(self, type_: str, id_: str, attributes: JSON, above: tuple[str, tuple[str, ...]]) -> JSON:
        """An entity with some parents of a type."""
        ids = self._draw(st.lists(st.sampled_from(above[1]), max_size=1)) if above[1] else []
        parents = [{"type": f"{self.namespace}{above[0]}", "id": one} for one in ids]
        return {"uid": {"type": f"{self.namespace}{type_}", "id": id_}, "attrs": attributes, "parents": parents}

    def entities(self) -> list[JSON]:
        """Some of the world's."""
        found = [self.entity("User", id_, self.some(boss=self.user), ("Group", GROUPS)) for id_ in USERS]
        found += [self.entity("Group", "gang", {}, ("Group", ("hosts",)))]
        found += [self.entity("Folder", "top", {}, ("Folder" if self.often() else "Group", ("root",)))]
        found += [self.entity("Doc", id_, self.attributes_of_doc(), ("Folder", FOLDERS)) for id_ in DOCS]
        for doc in found[-2:]:
            doc["tags"] = self.some(**{"for": self.user})
        return [one for one in found if self.often()]

    def request(self) -> JSON:
        """A request, with properties at times."""
        action, space = self.of("edit", "read", "read", "edit", "edit", "writes"), self.namespace
        subject: JSON = {"type": f"{space}User" if self.often() else f"{space}Folder", "id": self.of(*USERS, "new")}
        resource: JSON = {"type": f"{space}Doc", "id": self.of(*DOCS, "draft", "draft")}
        subject["properties"] = self.some(boss=self.user, groups=lambda: [self.of(*GROUPS)])
        resource["properties"] = self.attributes_of_doc()
        context = self.some(by=self.user, src=self.address) if action == "edit" or not self.often() else {}
        base = {"id": "r", "system": "cedar", "action": {"name": action}, "context": context}
        return {**base, "subject": subject, "resource": resource}

    def policies(self) -> list[str]:
        """Some policies, in the world's namespace."""
        texts = self._draw(st.lists(st.sampled_from(POLICIES), min_size=1, max_size=5, unique=True))
        for type_ in ("Group", "Action", "Folder", "State") if self.namespace else ():
            texts = [text.replace(f'{type_}::"', f'App::{type_}::"') for text in texts]
        return [text.replace("is Doc", f"is {self.namespace}Doc") for text in texts]


@st.composite
def worlds(draw: st.DrawFn) -> tuple[World, str, list[JSON], list[str], list[JSON]]:
    """A world, its schema, entities, policies and some requests."""
    world = World(draw)
    requests = [world.request() for _ in range(draw(st.integers(1, 4)))]
    return world, world.schema(), world.entities(), world.policies(), requests


def answer_of_cedar(world: World, text: str, known: list[JSON], policies: list[str], request: JSON) -> tuple[str, bool]:
    """What Cedar answers with the schema over all entities that conform to it, read from the rule CE-ERRORS.

    And whether the request can reach one that does not.
    """
    by_id = {one["uid"]["id"]: one for one in known}
    space = world.namespace
    for part in (request["subject"], request["resource"]):
        own = {name: value for name, value in part["properties"].items() if name != "groups"}
        groups = [{"type": f"{space}Group", "id": name} for name in part["properties"].get("groups", [])]
        uid = {"type": part["type"], "id": part["id"]}
        if own or groups or part["id"] in by_id:
            of_documents = by_id.get(part["id"]) if by_id.get(part["id"], {}).get("uid") == uid else None
            entity = of_documents or {"uid": uid, "attrs": own, "parents": []}
            by_id[part["id"]] = {**entity, "parents": [*entity["parents"], *groups]}
    parsed = cedarpy.Schema.from_str(text)
    fits = {id_: conforms(one, parsed) for id_, one in by_id.items()}
    asked = {part: {name: request[of][name] for name in ("type", "id")} for part, of in PARTS.items()}
    asked |= {"action": {"type": f"{space}Action", "id": request["action"]["name"]}, "context": request["context"]}
    entities = [one for id_, one in by_id.items() if fits[id_]]
    answer = cedarpy.is_authorized(asked, "\n".join(policies), json.dumps(entities), text)
    reached = reachable(by_id, json.dumps([asked, policies]))
    return outcome_of(answer, policies), not all(fits[id_] for id_ in reached)


PARTS = {"principal": "subject", "resource": "resource"}


def conforms(entity: JSON, parsed: cedarpy.Schema) -> bool:
    """Whether Cedar takes an entity with a schema."""
    try:
        cedarpy.Entities.from_json_str(json.dumps([entity]), parsed)
    except ValueError:
        return False
    return True


def reachable(by_id: dict[str, JSON], text: str) -> set[str]:
    """The ids of entities that a text names, and those that these name, and so on: more than Cedar can reach."""
    found = {id_ for id_ in by_id if f'"{id_}"' in text.replace("\\", "")}
    while True:
        more = {id_ for id_ in by_id if any(f'"{id_}"' in json.dumps(by_id[one]) for one in found)} | found
        if more == found:
            return found
        found = more


def outcome_of(answer: cedarpy.AuthzResult, policies: list[str]) -> str:
    """An answer of Cedar by the rule CE-ERRORS."""
    if answer.decision is cedarpy.Decision.NoDecision:
        return "error"
    failed = [policies[int(error.split("`policy")[1].split("`")[0])] for error in answer.diagnostics.errors]
    effects = {text.split()[0] for text in failed}
    if answer.allowed:
        return "error" if "forbid" in effects else "allow"
    return "error" if "permit" in effects and not answer.diagnostics.reasons else "deny"


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_decisions_are_those_of_cedar_with_the_schema(
    drawn: tuple[World, str, list[JSON], list[str], list[JSON]],
) -> None:
    """CE-SCHEMA, in each form of entities and addresses that Cedar takes; an entity that does not conform is no allow.

    Which of the documents came first does not matter.
    """
    world, text, known, policies, requests = drawn
    types = {"action_type": f"{world.namespace}Action", "group_type": f"{world.namespace}Group"}
    documents = [
        document("PolicySet", {"policies": "\n".join(policies)}),
        document("Entities", {"entities": known}),
        schema(text),
        document("Settings", types),
    ]
    snapshot, reverse = policy.compile_documents(documents), policy.compile_documents(reversed(documents))
    assert snapshot.rejected == ()
    for request in requests:
        decision = policy.decide(snapshot, request)
        expected, unfit = answer_of_cedar(world, text, known, policies, request)
        assert policy.decide(reverse, request) == decision
        assert decision.outcome == expected or (unfit and decision.outcome == "error"), (request, decision.reasons)
        event(f"{decision.outcome}{', an entity does not conform' if unfit else ''}")


GROUPED = "entity User; entity Doc {by?: User}; action writes; action edit in [writes] appliesTo {%s};"
APPLIES = "principal: [User], resource: [Doc]"
FORBID = 'permit (principal, action, resource); forbid (principal, action in Action::"writes", resource);'
WRITES = document("PolicySet", {"policies": FORBID})
EDIT = asked('User::"ann"', "edit", 'Doc::"plan"')


def outcome(snapshot: policy.Snapshot, request: JSON) -> str:
    """The answer."""
    return policy.decide(snapshot, request).outcome


def test_a_snapshot_that_is_compiled_again_reads_the_schema_that_came() -> None:
    """And no answer that was prepared with another one is given again."""
    store = DocumentStore()
    assert store.put(WRITES, at=0) is None
    compiler = Compiler(store)
    assert outcome(compiler.snapshot, EDIT) == "allow"
    for at, text, expected in ((1, GROUPED % APPLIES, "deny"), (2, "entity Use", "deny"), (3, "entity User;", "error")):
        store.put(schema(text), at=at, order=at)
        compiler.compile()
        assert [outcome(compiler.snapshot, EDIT) for _ in range(2)] == [expected] * 2
    store.delete(policy.Key("cedar", "Schema", "default"), at=4, order=4)
    compiler.compile()
    assert outcome(compiler.snapshot, EDIT) == "allow"


def test_versions_of_a_schema_each_answer_in_their_time() -> None:
    """Also where the answers were prepared at another moment; and without a time none is known."""
    ungrouped = (GROUPED % APPLIES).replace(" in [writes]", "")
    versions = [{**schema(text), "effective_at": at} for at, text in ((10, ungrouped), (20, GROUPED % APPLIES))]
    snapshot = policy.compile_documents([WRITES, *versions])
    times = (5, 15, 25, 15, 5, 25)
    found = [outcome(snapshot, {**EDIT, "action": {"name": "edit"}, "time": at}) for at in times]
    assert found == ["allow", "allow", "deny", "allow", "allow", "deny"]
    assert outcome(snapshot, EDIT) == "error"
    assert lint([WRITES, *versions]) == []


def test_a_reason_has_no_value_of_the_request_and_is_the_same_each_time() -> None:
    """Reasons are published, and properties may be secrets. Of several faults Cedar itself names any one."""
    user = 'entity State enum ["red"]; entity User {state?: State, at?: ipaddr, n: Long, boss?: User, on?: Bool};'
    text = f"{user} entity Doc; action edit appliesTo {{%s}};"
    context = "principal: [User], resource: [Doc], context: {n?: Long, at?: ipaddr, more?: {b: Bool}}"
    unfit: list[JSON] = [
        {"n": "hunter2", "boss": "hunter2", "on": "hunter2"},
        {"n": 1, "at": "hunter2"},
        {"n": 1, "boss": {"type": "Doc", "id": "hunter2"}, "on": "hunter2", "x": "hunter2"},
        {"at": "10.0.0.1"},
        {"n": 1, "state": {"type": "State", "id": "hunter2"}, "boss": {"type": "Doc", "id": "b"}, "on": True},
    ]
    requests = [asked('User::"ann"', "edit", 'Doc::"plan"') for _ in range(9)]
    for request, properties in zip(requests, unfit, strict=False):
        request["subject"]["properties"] = properties
    for request, given_context in zip(
        requests[5:],
        ({"n": "hunter2"}, {"at": "hunter2"}, {"more": {"b": "hunter2"}}, {"x": "hunter2", "n": "hunter2"}),
        strict=True,
    ):
        request["context"] = given_context
    for request in requests:
        found = {policy.decide(policy.compile_documents([WRITES, schema(text % context)]), request) for _ in range(6)}
        [decision] = found
        assert (decision.outcome, decision.reasons[0].rule) == ("error", "CE-SCHEMA"), decision
        assert "hunter2" not in decision.reasons[0].message


def test_lint_and_decisions_read_a_document_alike() -> None:
    """What a request would be refused for is found before it is published."""
    implicit = {"uid": {"type": "Doc", "id": "plan"}, "attrs": {"by": {"type": "User", "id": "ann"}}}
    documents = [WRITES, document("Entities", {"entities": [{"uid": {"type": "User", "id": "ann"}}, implicit]})]
    [found] = lint(documents)
    assert (found.document, found.statement, found.code) == ("cedar/Entities/default", 1, "schema")
    assert found.message.startswith('Doc::"plan".by is {type, id}, which is a record')
    assert outcome(policy.compile_documents(documents), EDIT) == "error"
    assert lint([*documents, schema(GROUPED % APPLIES)]) == []
    assert outcome(policy.compile_documents([*documents, schema(GROUPED % APPLIES)]), EDIT) == "deny"
    [found] = lint([*documents, schema((GROUPED % APPLIES).replace("by?: User", "by?: Long"))])
    assert (found.document, found.code) == ("cedar/Entities/default", "schema")


def test_lint_knows_the_actions_and_groups_of_the_schema() -> None:
    """A policy about a group of another namespace is no mistake where an action of requests is in it."""
    text = """namespace Org { action all; }
        namespace App {
          entity User;
          action read in [Org::Action::"all"] appliesTo {principal: [User], resource: [User]};
        }
    """
    types = document("Settings", {"action_type": "App::Action"})
    grouped = document("PolicySet", {"policies": 'permit (principal, action in Org::Action::"all", resource);'})
    assert [one.code for one in lint([types, grouped])] == ["never-satisfied"]
    assert lint([types, grouped, schema(text)]) == []
    snapshot = policy.compile_documents([types, grouped, schema(text)])
    named = known_names(snapshot.policy_sets["cedar"], "cedar")
    assert named is not None
    assert named.actions == ("read",)


def test_who_can_asks_with_the_schema() -> None:
    """Those of types that the action is not for are not allowed."""
    known = [{"uid": {"type": type_, "id": "x"}} for type_ in ("User", "Doc")]
    documents = [document("PolicySet", {"policies": "permit (principal, action, resource);"})]
    documents += [document("Entities", {"entities": known}), schema(GROUPED % APPLIES)]
    assert who_can(policy.compile_documents(documents), EDIT).allowed == (Who("x", "", "User"),)


def test_diff_shows_a_schema_that_changed() -> None:
    """It may open what was closed: a group of actions that is gone."""
    ungrouped = (GROUPED % APPLIES).replace(" in [writes]", "")
    before, after = (policy.compile_documents([WRITES, schema(text)]) for text in (GROUPED % APPLIES, ungrouped))
    changed, lifted = compare(before, after)
    for one in (changed, lifted):
        assert (one.sign, one.document, one.widens) == ("changed", "cedar/Schema/default", True)
    assert "a forbid may no longer match" in "".join((changed.text, lifted.text))
    assert before.version != after.version


def test_documents_that_contradict_each_other_are_no_fault_of_the_request() -> None:
    """The code ``fact-contradiction`` raises an alert about the subject, who claimed nothing."""
    ann = {"uid": {"type": "User", "id": "ann"}}
    entities = [document("Entities", {"entities": [{**ann, "attrs": {"n": n}}]}, f"e{n}") for n in (1, 2)]
    for documents in (entities, [schema("entity User;", name) for name in "ab"]):
        decision = policy.decide(policy.compile_documents([WRITES, *documents]), EDIT)
        assert (decision.outcome, decision.reasons[0].code) == ("error", "contradicting-documents")
