"""Cedar's answers: those of the library over all policies and entities, where this package gives it a part of them."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cedarpy
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

import policy
from policy.analysis import compare, lint
from policy.analysis.impact import KnownNames, Permitted, Who, known_names, what_is_permitted, who_can
from policy.systems.cedar import engine
from policy.testing import full_request
from tests.examples import examples
from tests.policy.strategies import cedar as strategies


def document(policies: str, name: str = "p", **spec: Any) -> dict[str, Any]:
    """A PolicySet document."""
    return {"system": "cedar", "kind": "PolicySet", "name": name, "spec": {"policies": policies, **spec}}


def entities(*found: dict[str, Any], name: str = "e") -> dict[str, Any]:
    """An Entities document."""
    return {"system": "cedar", "kind": "Entities", "name": name, "spec": {"entities": list(found)}}


def whole(texts: list[str], parsed: cedarpy.PolicySet, known: list[dict[str, Any]], request: dict[str, Any]) -> str:
    """The answer by all policies and all entities at once, read from the rule CE-ERRORS."""
    asked = {
        "principal": _uid(request["subject"]),
        "action": {"type": "Action", "id": request["action"]["name"]},
        "resource": _uid(request["resource"]),
        "context": _context(request),
    }
    by_uid = {(one["uid"]["type"], one["uid"]["id"]): one for one in known}
    for part in (request["subject"], request["resource"]):
        by_uid.setdefault((part["type"], part["id"]), _own(part))
    groups = [{"type": "Group", "id": name} for name in request["subject"].get("properties", {}).get("groups", [])]
    subject = (request["subject"]["type"], request["subject"]["id"])
    by_uid[subject] = {**by_uid[subject], "parents": [*by_uid[subject]["parents"], *groups]}
    answer = cedarpy.is_authorized(asked, parsed, list(by_uid.values()))
    assert answer.decision is not cedarpy.Decision.NoDecision, answer.diagnostics.errors
    failed = {error.split("`")[1] for error in answer.diagnostics.errors}
    effects = {"forbid" if "forbid(" in text else "permit" for n, text in enumerate(texts) if f"policy{n}" in failed}
    if answer.allowed:
        return "error" if "forbid" in effects else "allow"
    return "error" if "permit" in effects and not answer.diagnostics.reasons else "deny"


def _uid(part: dict[str, Any]) -> dict[str, str]:
    return {"type": part["type"], "id": part["id"]}


def _own(part: dict[str, Any]) -> dict[str, Any]:
    return {"uid": _uid(part), "attrs": part.get("properties", {}), "parents": []}


def _context(request: dict[str, Any]) -> dict[str, Any]:
    context = {name: value for name, value in request["context"].items() if name != "min_policy_offsets"}
    properties = request["action"].get("properties")
    return {**context, "action_properties": properties} if properties else context


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(strategies.policies(), min_size=3, max_size=9),
    strategies.entities(),
    strategies.requests(),
    st.integers(0, 9),
)
def test_slices_answer_as_the_whole_does(
    texts: list[str], known: list[dict[str, Any]], drawn: dict[str, Any], cut: int
) -> None:
    """Of policies and entities only those that a request needs are evaluated, and nothing changes (CE-SLICE).

    For every subject, action and resource, with the properties and the context that were drawn.
    """
    sets = [document("\n".join(part), name) for name, part in (("a", texts[:cut]), ("b", texts[cut:])) if part]
    snapshot = policy.compile_documents([*sets, entities(*known)])
    assert snapshot.rejected == ()
    parsed = cedarpy.PolicySet.from_str("\n".join(texts))
    for request in asking(drawn):
        decision = policy.decide(snapshot, request)
        assert decision.outcome == whole(texts, parsed, known, request), (request, decision.reasons)
        event(decision.outcome)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(strategies.linked_entities())
def test_slices_hold_what_conditions_reach_by_attributes_and_the_context(
    drawn: tuple[list[str], list[dict[str, Any]], dict[str, Any]],
) -> None:
    """Entities that no scope names, some steps away, with their own parents (CE-SLICE)."""
    texts, known, request = drawn
    snapshot = policy.compile_documents([document("\n".join(texts)), entities(*known)])
    assert snapshot.rejected == ()
    decision = policy.decide(snapshot, request)
    assert decision.outcome == whole(texts, cedarpy.PolicySet.from_str("\n".join(texts)), known, request)
    event(decision.outcome)


def asking(drawn: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The request for each subject, action and resource; one that is subject and resource says one thing of itself."""
    properties = drawn["subject"].get("properties", {})
    for subject, action, resource in itertools.product(strategies.USERS, strategies.ACTIONS, strategies.RESOURCES):
        of_resource = properties if subject == resource else drawn["resource"].get("properties", {})
        yield {
            **drawn,
            "subject": {**strategies.json_of(subject), "properties": properties},
            "action": {**drawn["action"], "name": action},
            "resource": {**strategies.json_of(resource), "properties": of_resource},
        }


OPEN = "permit (principal, action, resource);"


def test_actions_and_groups_may_have_other_types() -> None:
    """The tools know them as requests do: a group is no subject, an action no resource."""
    types = {"action_type": "App::Action", "group_type": "Team"}
    settings = {"system": "cedar", "kind": "Settings", "name": "default", "spec": types}
    text = 'permit (principal in Team::"staff", action == App::Action::"read", resource == Doc::"plan");'
    member = {"uid": {"type": "User", "id": "erik"}, "parents": [{"type": "Team", "id": "staff"}]}
    snapshot = policy.compile_documents([document(text), entities(member), settings])
    for subject, groups, expected in (("User", ["staff"], "allow"), ("User", [], "deny"), ("Team", [], "error")):
        asked = {"subject": f'{subject}::"x"', "groups": groups, "action": "read", "resource": 'Doc::"plan"'}
        assert policy.decide(snapshot, {**full_request(asked, "cedar"), "id": "r"}).outcome == expected
    named = known_names(snapshot.policy_sets["cedar"], "cedar")
    assert named == KnownNames(
        (("Doc", "plan"), ("User", "erik")), (("Doc", "plan"), ("Team", "staff"), ("User", "erik")), ("read",)
    )


def test_tools_know_the_types_of_all_times_and_outlive_refused_settings() -> None:
    """A group of one time may be a subject at another; who-can asks for it, and the decision says."""
    settings = {"system": "cedar", "kind": "Settings", "name": "default", "spec": {"group_type": "Team"}}
    named = [document('permit (principal in Team::"t", action == Action::"read", resource == Group::"g");')]
    dated = {**settings, "effective_at": "2026-01-01T00:00:00Z"}
    for found, subjects in ((settings, [("Group", "g")]), (dated, [("Group", "g"), ("Team", "t")])):
        snapshot = policy.compile_documents([*named, found])
        assert snapshot.rejected == ()
        assert list(known_names(snapshot.policy_sets["cedar"], "cedar").subjects) == subjects
    refused = policy.compile_documents([*named, {**settings, "spec": {"group_type": "Action"}}])
    assert [rejected.key for rejected in refused.rejected] == ["cedar/Settings/default"]
    assert known_names(refused.policy_sets["cedar"], "cedar").subjects == (("Team", "t"),)
    asked = {"id": "r", "system": "cedar", "action": {"name": "read"}, "resource": {"type": "Group", "id": "g"}}
    assert who_can(refused, asked).allowed == ()


def test_without_the_library_documents_are_refused_and_nothing_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = policy.compile_documents([document(OPEN)])
    monkeypatch.setattr(engine, "cedarpy", None)
    after = policy.compile_documents([document(OPEN), entities({"uid": {"type": "A", "id": "a"}})])
    assert [rejected.key for rejected in after.rejected] == ["cedar/Entities/e", "cedar/PolicySet/p"]
    assert all(engine.MISSING in rejected.errors[0] for rejected in after.rejected)
    asked = full_request({"subject": 'U::"u"', "action": "a", "resource": 'R::"r"'}, "cedar")
    for snapshot in (before, after):
        decision = policy.decide(snapshot, {**asked, "id": "r"})
        assert decision.outcome == "error"
    assert engine.MISSING in policy.decide(before, {**asked, "id": "r"}).reasons[0].message


def test_a_panic_of_the_library_is_an_error_and_no_end_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic is no Exception in Python."""

    class Panic(BaseException):
        pass

    def panics(*_: object) -> None:
        raise Panic("at the disco")

    snapshot = policy.compile_documents([document(OPEN)])
    monkeypatch.setattr(cedarpy, "is_authorized", panics)
    asked = full_request({"subject": 'U::"u"', "action": "a", "resource": 'R::"r"'}, "cedar")
    decision = policy.decide(snapshot, {**asked, "id": "r"})
    assert (decision.outcome, decision.reasons[0].code) == ("error", "evaluation-failed")


SCHEMA = "entity User {admin?: Bool}; entity Doc {owner: User}; action read appliesTo {principal: User, resource: Doc};"


def test_lint_reports_what_does_not_conform_to_the_schema() -> None:
    schema = {"system": "cedar", "kind": "Schema", "name": "s", "spec": {"schema": SCHEMA}}
    good = document("permit (principal, action, resource is Doc) when { resource.owner == principal };")
    owner = {"__entity": {"type": "User", "id": "dana"}}
    plan = {"uid": {"type": "Doc", "id": "plan"}, "attrs": {"owner": owner}, "parents": []}
    assert lint([schema, good, entities(plan)]) == []
    misspelt = document("permit (principal, action, resource is Doc) when { resource.ovner == principal };", "q")
    found = lint([schema, good, misspelt, entities({**plan, "attrs": {"owner": "dana"}})])
    assert [(one.document, one.statement, one.level) for one in found] == [
        ("cedar/Entities/e", None, "warning"),
        ("cedar/PolicySet/q", 0, "warning"),
    ]
    assert found[1].message == "attribute `ovner` on entity type `Doc` not found"


def test_lint_validates_a_template_once_whatever_links_it_has() -> None:
    schema = {"system": "cedar", "kind": "Schema", "name": "s", "spec": {"schema": SCHEMA}}
    text = '@id("t") permit (principal == ?principal, action, resource is Doc) when { resource.ovner == principal };'
    values = ({"?principal": {"type": "User", "id": name}} for name in ("dana", "erik"))
    links = [{"templateId": "t", "newId": f"l{n}", "values": one} for n, one in enumerate(values)]
    [found] = lint([schema, document(f"permit (principal, action, resource);\n{text}", links=links)])
    assert (found.document, found.statement, found.code) == ("cedar/PolicySet/p", 3, "schema")


def test_lint_finds_policies_for_actions_that_no_request_can_have() -> None:
    """A forbid for `App::Action::"delete"` forbids nothing, where requests ask for `Action::"delete"`."""
    mine = document(
        'forbid (principal, action == App::Action::"delete", resource); permit (principal, action, resource);'
    )
    [found] = lint([mine])
    assert (found.document, found.statement, found.code) == ("cedar/PolicySet/p", 0, "never-satisfied")
    assert found.message == 'no request has App::Action::"delete": actions of requests are of the type Action'
    some = document('permit (principal, action in [App::Action::"a", Action::"b"], resource);')
    grouped = document('permit (principal, action in App::Action::"all", resource);', "q")
    steps = (("Action", "c"), ("App::Action", "some"), ("App::Action", "all"))
    linked = [
        {"uid": {"type": of[0], "id": of[1]}, "parents": [{"type": to[0], "id": to[1]}]}
        for of, to in itertools.pairwise(steps)
    ]
    assert lint([some, grouped, entities(*linked)]) == []
    assert [one.document for one in lint([some, grouped])] == ["cedar/PolicySet/q"]


def test_apply_warns_of_what_does_not_conform_to_the_schema(tmp_path: Path) -> None:
    """A warning refuses the documents where apply is strict, as it is by default in continuous integration."""
    schema = {"system": "cedar", "kind": "Schema", "name": "s", "spec": {"schema": SCHEMA}}
    text = "permit (principal, action, resource is Doc) when { resource.%s == principal };"
    for name, attribute in (("good", "owner"), ("bad", "ovner")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "all.json").write_text(json.dumps([schema, document(text % attribute)]))
    assert policy.warnings_of(policy.read_documents(tmp_path / "good")) == []
    [warning] = policy.warnings_of(policy.read_documents(tmp_path / "bad"))
    assert warning.startswith(f"{tmp_path}/bad/all.json")
    assert warning.endswith("cedar/PolicySet/p: attribute `ovner` on entity type `Doc` not found")


def test_who_can_asks_for_each_entity_and_says_that_there_may_be_others() -> None:
    """CE-Q2."""
    policies = (
        'permit (principal == User::"dana", action, resource); permit (principal in Group::"g", action, resource);'
    )
    member = {"uid": {"type": "User", "id": "erik"}, "parents": [{"type": "Group", "id": "g"}]}
    snapshot = policy.compile_documents([document(policies), entities(member)])
    asked = full_request({"subject": "any", "action": "read", "resource": 'Doc::"plan"'}, "cedar")
    found = who_can(snapshot, {**asked, "id": "r"})
    assert {(who.type, who.name) for who in found.allowed} == {("User", "dana"), ("User", "erik")}
    assert not found.complete


def test_who_can_asks_for_further_names_as_subjects_of_the_requests_type() -> None:
    """CE-Q2: ``User::"erik"`` and ``user::"erik"`` are two entities."""
    snapshot = policy.compile_documents([document("permit (principal is User, action, resource);")])
    asked = full_request({"subject": 'User::"any"', "action": "read", "resource": 'Doc::"plan"'}, "cedar")
    assert who_can(snapshot, {**asked, "id": "r"}, also=["erik"]).allowed == (Who("erik", "", "User"),)
    as_user = {**asked, "id": "r", "subject": {"type": "user", "id": "any"}}
    assert who_can(snapshot, as_user, also=["erik"]).allowed == ()


def test_who_can_asks_for_those_too_whom_an_attribute_or_a_condition_alone_names() -> None:
    policies = (
        "permit (principal is User, action, resource is Doc) when { resource.owner == principal };"
        'permit (principal, action, resource is Doc) when { principal == User::"erik" };'
    )
    owned = {"uid": {"type": "Doc", "id": "plan"}, "attrs": {"owner": {"__entity": {"type": "User", "id": "dana"}}}}
    snapshot = policy.compile_documents([document(policies), entities(owned)])
    asked = full_request({"subject": "any", "action": "read", "resource": 'Doc::"plan"'}, "cedar")
    found = who_can(snapshot, {**asked, "id": "r"})
    assert {(who.type, who.name) for who in found.allowed} == {("User", "dana"), ("User", "erik")}


def test_what_is_permitted_is_asked_for_each_action_and_resource_that_documents_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CE-Q2: bounded, and never complete."""
    policies = (
        'permit (principal, action == Action::"read", resource in Folder::"f");'
        'forbid (principal, action in Action::"all", resource == Doc::"secret");'
    )
    known = [{"uid": {"type": "Doc", "id": name}, "parents": [{"type": "Folder", "id": "f"}]} for name in ("a", "b")]
    groups = {"uid": {"type": "Action", "id": "read"}, "parents": [{"type": "Action", "id": "all"}]}
    snapshot = policy.compile_documents([document(policies), entities(*known, groups)])
    asked = {**full_request({"subject": 'User::"u"', "action": "any", "resource": 'Doc::"a"'}, "cedar"), "id": "r"}
    reads = [Permitted("read", *uid) for uid in (("Doc", "a"), ("Doc", "b"), ("Folder", "f"))]
    assert what_is_permitted(snapshot, asked) == tuple(reads)
    monkeypatch.setattr("policy.analysis.impact.MOST_PAIRS", 7)  # two actions, four resources
    with pytest.raises(policy.MalformedRequest, match="8 pairs"):
        what_is_permitted(snapshot, asked)
    with pytest.raises(policy.MalformedRequest, match="use what_can"):
        what_is_permitted(snapshot, {**asked, "system": "lenses6"})


def test_diff_shows_policies_by_their_text_wherever_they_are_written() -> None:
    forbid = 'forbid (principal == User::"eve", action, resource);'
    before = policy.compile_documents([document(f"{OPEN} {forbid}")])
    moved = policy.compile_documents([document(OPEN), document(forbid, "q")])
    assert list(compare(before, moved)) == []
    [gone] = compare(before, policy.compile_documents([document(OPEN)]))
    assert (gone.sign, gone.text, gone.widens) == ("removed", forbid, True)


def test_diff_names_the_entity_that_changed_and_its_document() -> None:
    """Not those whose place in the list alone is another."""
    dana, erik = ({"uid": {"type": "User", "id": name}, "attrs": {"level": 1}} for name in ("dana", "erik"))
    before = policy.compile_documents([entities(dana, erik)])
    after = policy.compile_documents([entities({**erik, "attrs": {"level": 2}}, dana)])
    [changed] = compare(before, after)
    assert (changed.sign, changed.text, changed.document, changed.widens) == (
        "changed",
        'what is known of Entity User::"erik"',
        "cedar/Entities/e",
        True,
    )


def test_diff_shows_no_entity_that_moved_to_another_document() -> None:
    """It was reported as one that went and one that came, of which nothing says what that opens."""
    dana, erik = ({"uid": {"type": "User", "id": name}, "attrs": {"level": 1}} for name in ("dana", "erik"))
    before = policy.compile_documents([document(OPEN), entities(dana, erik)])
    moved = [document(OPEN), entities(erik), entities(dana, name="f")]
    assert list(compare(before, policy.compile_documents(moved))) == []
    changed = [document(OPEN), entities(erik), entities({**dana, "attrs": {"level": 2}}, name="f")]
    changes = compare(before, policy.compile_documents(changed))
    assert [(change.sign, change.document) for change in changes] == [
        ("removed", "cedar/Entities/e"),
        ("added", "cedar/Entities/f"),
    ]
    twice = policy.compile_documents([document(OPEN), entities(dana, erik), entities(dana, name="f")])
    assert [change.sign for change in compare(before, twice)] == ["added"]
    once = policy.compile_documents([document(OPEN), entities(erik), entities(dana, name="g")])
    assert list(compare(twice, once)) == []


def test_two_descriptions_of_an_entity_are_alike_in_any_order() -> None:
    """Of attributes and of parents; true is not 1."""
    uid, above = {"type": "Doc", "id": "a"}, [{"type": "Folder", "id": id_} for id_ in "xy"]
    first = {"uid": uid, "attrs": {"a": {"b": 1, "c": 2}, "d": True}, "parents": above}
    again = {"uid": uid, "attrs": {"d": True, "a": {"c": 2, "b": 1}}, "parents": above[::-1]}
    allow = document("permit (principal, action, resource) when { resource.d };")
    request = {"id": "r", "system": "cedar", "subject": {"type": "User", "id": "dana"}}
    request |= {"action": {"name": "read"}, "resource": uid}
    for other, outcome in ((again, "allow"), ({**again, "attrs": {**again["attrs"], "d": 1}}, "error")):
        snapshot = policy.compile_documents([allow, entities(first), entities(other, name="other")])
        assert policy.decide(snapshot, request).outcome == outcome


@pytest.mark.parametrize("value", [{1, 2}, b"a", {(1, 2): 1}, object()])
@pytest.mark.parametrize("part", ["subject", "resource"])
@pytest.mark.parametrize("described", [False, True])
def test_a_property_that_json_does_not_have_is_malformed(value: object, part: str, described: bool) -> None:
    """It was an internal error."""
    known = [entities({"uid": {"type": "User", "id": "a"}, "attrs": {"x": 1}})] if described else []
    snapshot = policy.compile_documents([document("permit (principal, action, resource);"), *known])
    both = {name: {"type": "User", "id": "a" if name == part else "b"} for name in ("subject", "resource")}
    request: dict[str, Any] = {"id": "r", "system": "cedar", "action": {"name": "read"}, **both}
    request[part] = {**request[part], "properties": {"x": value}}
    decision = policy.decide(snapshot, request)
    assert (decision.outcome, decision.reasons[0].code) == ("error", "malformed-properties")


def test_subjects_of_two_types_are_two_subjects_for_the_monitor() -> None:
    """An access by a service is not the one that a user of the same id has requested."""
    asked = {
        "id": "1",
        "system": "cedar",
        "subject": {"type": "User", "id": "a"},
        "action": {"name": "read"},
        "resource": {"type": "Document", "id": "d"},
    }
    user, service = (policy.parse_request({**asked, "subject": {"type": type_, "id": "a"}}) for type_ in ("User", "S"))
    assert isinstance(user, policy.Request)
    assert isinstance(service, policy.Request)
    system = policy.all_systems()["cedar"]
    assert system.canonical_resource(user) != system.canonical_resource(service)
